"""Everything that defines a run: checked when built, written to `config.json`."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import jax
import tyro

from .. import estimators, operators, surrogates
from ..data import Dataset
from ..models import VAE, BernoulliLikelihood, GaussianLikelihood, mlp_vae, resnet_vae

DatasetName = Literal["digits", "mnist", "fashion_mnist", "omniglot", "binarized_mnist"]
LikelihoodName = Literal["bernoulli", "gaussian"]
EstimatorName = Literal[
    "reinforce", "rloo", "rodeo", "double_cv", "disarm", "arms", "rebar", "relax",
    "local_expectation",
]  # fmt: skip
OperatorName = Literal["gibbs", "mpf", "barker", "birth_death", "difference"]
SurrogateName = Literal["mlp", "pooled", "linear", "exact"]


class ConfigError(Exception):
    """Settings that do not go together. (Not a ValueError, which tyro would wrap.)"""


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings of a run. Defaults are the paper's where it has one value for all tasks."""

    dataset: DatasetName = "digits"
    """What to train on."""
    likelihood: LikelihoodName = "bernoulli"
    """Binary pixels drawn anew at each visit, or real-valued ones (paper: both)."""

    estimator: EstimatorName = "rodeo"
    """How the encoder's gradient is estimated."""
    samples: int = 2
    """K, the samples for each image (paper: 2 and 3). REBAR and RELAX: evaluations, 3 a sample."""
    operator: OperatorName = "gibbs"
    """RODEO: the Stein operator (paper: gibbs; ablation: barker, mpf, difference)."""
    scan: Literal["random", "own"] = "random"
    """RODEO with gibbs: a random coordinate's update (paper), or each component its own."""
    damping: float = 0.0
    """RODEO: added to the denominator of ratios (paper's mpf and difference: 1e-3, biased)."""
    coordinates: int | None = None
    """RODEO: visit this many coordinates, drawn at random (default and paper: all)."""
    surrogate: SurrogateName = "mlp"
    """RODEO: the stand-in for f at the neighbours (paper: mlp)."""
    surrogate_hidden: int = 100
    """RODEO: hidden units of the surrogate (paper: 100)."""
    surrogate_layers: int = 1
    """RODEO: hidden layers of the surrogate, 1 or 2 (paper: 1; ablation: 2)."""
    loo: bool = True
    """RODEO: leave-one-out baseline (off only in the paper's ablation)."""
    local: bool = True
    """RODEO: local control variate (off only in the paper's ablation)."""
    global_: Annotated[bool, tyro.conf.arg(name="global")] = True
    """RODEO: global control variate (off only in the paper's ablation)."""
    baseline: Literal["none", "moving_average", "learned"] = "none"
    """REINFORCE: its baseline."""
    relax_surrogate: bool = False
    """RELAX: RODEO's surrogate as its control variate (the paper's ablation)."""

    network: Literal["mlp", "resnet"] = "mlp"
    """Encoders and decoders: perceptrons, or residual convolutional networks (one layer only)."""
    layer_sizes: tuple[int, ...] = (200,)
    """Bits of each stochastic layer, from the image up (paper: 200 each)."""
    common_random_numbers: bool = False
    """Several layers: the same random numbers above for all K samples (paper: no)."""
    average_decoder: bool = False
    """Several layers: the decoder's gradient averages over the K samples of the first layer, in
    place of one ancestral sample (paper: no)."""
    hidden: tuple[int, ...] = (200, 200)
    """Hidden units of each encoder and decoder (paper: 200 200; hierarchical: none)."""

    steps: int = 10_000
    """Training steps (paper: 1000000)."""
    batch_size: int = 100
    """Images a step (paper: 100)."""
    learning_rate: float = 1e-3
    """Adam's step size for the model (paper: 1e-3 binarised MNIST and Omniglot, 3e-4 binarised
    Fashion-MNIST, 1e-4 elsewhere; `--preset paper` chooses)."""
    cv_learning_rate: float = 1e-3
    """Adam's step size for the control variates (paper: 1e-3)."""
    adapt_every: int = 1
    """Update the control variates every n-th step (paper: 1)."""
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(aliases=("--seed",))] = (1,)
    """One run each, side by side (paper: 5 seeds)."""
    bound_samples: int = 100
    """Samples of the importance-weighted bound at the end (paper: 100)."""

    def __post_init__(self):
        for name in ("samples", "steps", "batch_size", "adapt_every", "bound_samples"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"--{name.replace('_', '-')} must be 1 or more, not {getattr(self, name)}."
                )
        for name in ("learning_rate", "cv_learning_rate"):
            if not getattr(self, name) > 0:
                raise ConfigError(
                    f"--{name.replace('_', '-')} must be above 0, not {getattr(self, name)}."
                )
        if not self.layer_sizes or min(self.layer_sizes) < 1 or min(self.hidden, default=1) < 1:
            raise ConfigError(
                f"Layers need one unit or more: sizes {self.layer_sizes}, hidden {self.hidden}."
            )
        if self.network == "resnet" and len(self.layer_sizes) > 1:
            raise ConfigError(
                "--network resnet has one stochastic layer, but was given layer sizes "
                f"{self.layer_sizes}."
            )
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"--seeds must be one or more different numbers, not {self.seeds}.")
        if not all(0 <= seed < 2**31 for seed in self.seeds):
            raise ConfigError(f"--seeds must be between 0 and 2^31 - 1, not {self.seeds}.")
        if self.coordinates is not None and self.coordinates > min(self.layer_sizes):
            raise ConfigError(
                f"--coordinates {self.coordinates} is more than the bits of a layer: "
                f"{self.layer_sizes}."
            )
        self._check_owners()
        try:
            self.build_estimator(pixels=1)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def _check_owners(self) -> None:
        """Raise for a setting that would do nothing."""
        ratio = self.estimator == "rodeo" and self.operator != "gibbs"
        owners = {
            "scan": ("--operator gibbs", self.operator == "gibbs"),
            "damping": ("an --operator other than gibbs", ratio),
            "baseline": ("--estimator reinforce", self.estimator == "reinforce"),
            "relax_surrogate": ("--estimator relax", self.estimator == "relax"),
            "hidden": ("--network mlp", self.network == "mlp"),
            "average_decoder": ("several layers", len(self.layer_sizes) > 1),
            "common_random_numbers": ("several layers", len(self.layer_sizes) > 1),
        }
        for name, (owner, there) in owners.items():
            default = type(self).__dataclass_fields__[name].default
            if getattr(self, name) != default and not there:
                raise ConfigError(f"--{name.replace('_', '-')} goes with {owner}.")

    def build_operator(self) -> operators.Operator:
        m = self.coordinates
        if self.operator == "gibbs":
            return operators.Gibbs(scan=self.scan, num_coordinates=m)
        if self.operator in ("barker", "mpf"):
            kind = operators.Barker if self.operator == "barker" else operators.MPF
            return kind(damping=self.damping, num_coordinates=m)
        kind = operators.BirthDeath if self.operator == "birth_death" else operators.Difference
        return kind(damping=self.damping, num_coordinates=m)

    def build_surrogate(self) -> surrogates.Surrogate:
        if self.surrogate == "linear":
            return surrogates.LinearSurrogate()
        if self.surrogate == "exact":
            return surrogates.ExactSurrogate()
        kind = surrogates.MLPSurrogate if self.surrogate == "mlp" else surrogates.PooledSurrogate
        return kind(self.surrogate_hidden, self.surrogate_layers)

    def build_estimator(self, pixels: int, layer: int = 0) -> estimators.Estimator:
        """The estimator of one stochastic layer."""
        if self.estimator == "rodeo":
            return estimators.Rodeo(
                self.samples,
                self.build_operator(),
                self.build_surrogate(),
                self.loo,
                self.local,
                self.global_,
            )
        if self.estimator == "reinforce":
            baseline = None if self.baseline == "none" else self.baseline
            return estimators.Reinforce(self.samples, baseline)
        if self.estimator in ("rebar", "relax"):
            return self._build_relaxed(pixels, layer)
        kind = {
            "rloo": estimators.RLOO,
            "double_cv": estimators.DoubleCV,
            "disarm": estimators.DisARM,
            "arms": estimators.ARMS,
            "local_expectation": estimators.LocalExpectation,
        }[self.estimator]
        return kind(self.samples)

    def _build_relaxed(self, pixels: int, layer: int) -> estimators.Estimator:
        if self.estimator == "relax" and self.relax_surrogate:
            surrogate = surrogates.MLPSurrogate(self.surrogate_hidden, self.surrogate_layers)
            return estimators.ModifiedRelax(self.samples, surrogate)
        if self.samples % 3:
            raise ConfigError(
                f"{self.estimator} evaluates the objective 3 times a sample, so --samples (the "
                f"evaluations) must be a multiple of 3, not {self.samples}."
            )
        if self.estimator == "rebar":
            return estimators.Rebar(self.samples // 3)
        return estimators.Relax(self.samples // 3, context_size=(pixels, *self.layer_sizes)[layer])

    def build_model(self, dataset: Dataset, key: jax.Array) -> VAE:
        pixels = dataset.train.shape[1]
        likelihood = (
            BernoulliLikelihood() if self.likelihood == "bernoulli" else GaussianLikelihood(pixels)
        )
        if self.network == "resnet":
            return resnet_vae(dataset.image_shape, self.layer_sizes[0], likelihood, key=key)
        return mlp_vae(pixels, self.layer_sizes, self.hidden, likelihood, key=key)


def paper_settings(
    dataset: str, likelihood: str, layers: int, network: str = "mlp"
) -> dict[str, Any]:
    """The paper's settings for a task: MLP VAEs with one layer, linear ones with more; residual
    networks have no setting for hidden units.

    >>> paper_settings("fashion_mnist", "bernoulli", 1)["learning_rate"]
    0.0003
    """
    settings: dict[str, Any] = {
        "steps": 1_000_000,
        "batch_size": 100,
        "cv_learning_rate": 1e-3,
        "layer_sizes": (200,) * layers,
        "seeds": (1, 2, 3, 4, 5),
    }
    if network == "mlp":
        settings["hidden"] = (200, 200) if layers == 1 else ()
    if likelihood == "gaussian" or layers > 1:
        settings["learning_rate"] = 1e-4
    else:
        settings["learning_rate"] = 3e-4 if dataset == "fashion_mnist" else 1e-3
    return settings


def to_json(config: Config) -> dict[str, Any]:
    return dataclasses.asdict(config)


def from_json(fields: Mapping[str, Any]) -> Config:
    """The configuration that `to_json` wrote."""
    known = {field.name for field in dataclasses.fields(Config)}
    unknown = set(fields) - known
    if unknown:
        raise ConfigError(
            f"The stored configuration has settings this version does not know: {sorted(unknown)}."
        )
    settings: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()
    }
    return Config(**settings)


def differences(stored: Config, given: Config) -> dict[str, tuple[Any, Any]]:
    """Each setting that is not the same, as (stored, given)."""
    return {
        field.name: (getattr(stored, field.name), getattr(given, field.name))
        for field in dataclasses.fields(Config)
        if getattr(stored, field.name) != getattr(given, field.name)
    }
