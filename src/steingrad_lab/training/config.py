"""Everything that defines a run: checked when built, written to `config.json`."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp

from steingrad.distributions import Bernoulli, Categorical
from steingrad.estimators import Estimator

from ..data import NAMES, Dataset, is_own
from ..estimators import DESCRIPTIONS
from ..models import VAE, BernoulliLikelihood, GaussianLikelihood, mlp_vae, resnet_vae
from ..settings import (
    SETTINGS,
    build_estimator,
    check_codes,
    learns,
    owners,
    settings_of,
    type_of,
)

NUMBERS = 2**31
"""Seeds and steps are below this number, because JAX takes 32-bit integers."""
POWERS = {
    **dict.fromkeys(("steps", "batch_size", "adapt_every", "bound_samples"), 31),
    **dict.fromkeys(("flips", "jacobian_draws", "samples"), 16),
    **dict.fromkeys(("surrogate_hidden", "relax_hidden", "layer_sizes", "hidden"), 16),
}
"""Settings that are sizes, or lists of sizes, are below this power of 2. More would not fit in
memory, or would not be 32-bit integers."""
MOST_LAYERS = 100
MOST_SEEDS = 1000


class ConfigError(Exception):
    """Settings that do not go together. (A ValueError would be wrapped by tyro.)"""


@dataclasses.dataclass(frozen=True)
class _Problem:
    """What `Config` begins with, before the settings of the estimators."""

    dataset: str = "digits"
    """The images to train on."""
    likelihood: Literal["bernoulli", "gaussian", "grey"] = "bernoulli"
    """Binary pixels (see --binarize), real-valued pixels (paper: both), or the Bernoulli
    cross-entropy with grey values between 0 and 1 (ReinMax's experiments)."""
    estimator: str = "rodeo"
    """The estimator of the encoder's gradient."""
    samples: int = 2
    """K, the number of evaluations of the objective for each image (paper: 2 and 3). Most
    estimators make one evaluation for each sample; REBAR and RELAX make 3, Bronco 1 + flips, and
    there the default is one sample."""


# The settings of the estimators, None where they have the default.
_Settings: Any = dataclasses.make_dataclass(
    "_Settings", [(name, Any, None) for name in SETTINGS], bases=(_Problem,), frozen=True
)


@dataclasses.dataclass(frozen=True)
class Config(_Settings):
    """The settings of a run. Defaults are the paper's where it has one value for all tasks.

    Settings of one estimator (or operator, surrogate, network) are refused with another. Settings
    of an estimator are None where they have their default, also if the default was given: equal
    configurations are equal.

    >>> Config(estimator="rodeo", operator="gibbs") == Config(estimator="rodeo")
    True
    >>> Config(estimator="rloo", operator="mpf")
    Traceback (most recent call last):
    steingrad_lab.training.config.ConfigError: operator goes with estimator rodeo, ...
    """

    model: Literal["binary", "categorical"] = "binary"
    """Codes of the VAE: bits, or categories as one-hot vectors."""
    categories: int = 8
    """Model categorical: the number of values of each code."""
    binarize: Literal["dynamic", "fixed"] = "dynamic"
    """Likelihood bernoulli: draw the pixels anew at each visit (paper), or once for all runs."""
    train_on_valid: bool = False
    """Also train on the validation images (paper: no)."""
    kl: Literal["sampled", "analytic"] = "sampled"
    """The KL divergence in the ELBO: a part of the objective that the estimator handles (paper), or
    computed exactly with its exact gradient (one layer only)."""
    prior: Literal["uniform", "learned"] = "uniform"
    """The prior of the codes (paper: uniform)."""
    network: Literal["mlp", "resnet"] = "mlp"
    """Encoders and decoders: perceptrons, or residual convolutional networks (one layer only)."""
    layer_sizes: tuple[int, ...] = (200,)
    """Bits or other codes of each stochastic layer, beginning with the layer next to the image
    (paper: 200)."""
    common_random_numbers: bool = False
    """Several layers: use the same random numbers above the first layer for all K samples (paper:
    no)."""
    average_decoder: bool = False
    """Several layers: average the decoder's gradient over the K samples of the first layer, instead
    of taking one ancestral sample (paper: no)."""
    hidden: tuple[int, ...] = (200, 200)
    """Network mlp: hidden units of each encoder and decoder (paper: 200 200 with one stochastic
    layer, none with several). Decoders of model categorical have them in reverse order."""
    activation: Literal["leaky_relu", "relu"] = "leaky_relu"
    """Network mlp: the activation function; leaky_relu has slope 0.3 (paper: leaky_relu)."""
    initialization: Literal["glorot", "pytorch"] = "glorot"
    """Network mlp: how weights begin: Glorot uniform with biases of zero (paper), or as PyTorch's
    linear layers do."""
    steps: int = 10_000
    """Training steps (paper: 1000000)."""
    batch_size: int = 100
    """Images in each step (paper: 100)."""
    optimizer: Literal["adam", "radam"] = "adam"
    """The optimiser of the model (paper: adam)."""
    learning_rate: float = 1e-3
    """The optimiser's step size for the model (paper: 1e-3 for binarised MNIST and Omniglot, 3e-4
    for binarised Fashion-MNIST, 1e-4 elsewhere; --preset paper chooses)."""
    cv_learning_rate: float = 1e-3
    """Adam's step size for the control variates (paper: 1e-3)."""
    adapt_every: int = 1
    """Update the control variates at every n-th step (paper: 1)."""
    seeds: tuple[int, ...] = (1,)
    """One run for each seed, all of them side by side (paper: 5 seeds)."""
    bound_samples: int = 100
    """Samples of the importance-weighted bound at the end (paper: 100)."""

    def __post_init__(self):
        settings = vars(self)
        check_types(settings)
        _check_values(settings)
        try:
            estimator = _estimator(settings)
            check_codes(estimator, None if self.model == "binary" else self.categories)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        for name, owner in _idle(settings, estimator).items():
            if settings[name] != DEFAULTS[name]:
                raise ConfigError(
                    f"{name} goes with {owner}, and would do nothing here: leave it out."
                )
        for name, default in _defaults(settings).items():
            if settings[name] == default:
                object.__setattr__(self, name, None)

    def build_estimators(self, pixels: int) -> tuple[Estimator, ...]:
        """One estimator for each stochastic layer. Its context is the layer below, or the image."""
        widths = (math.prod(codes.event_shape) for codes in self.codes_of_layers()[:-1])
        return tuple(_estimator(vars(self), size) for size in (pixels, *widths))

    def codes_of_layers(self) -> list[Bernoulli | Categorical]:
        """The distribution of the codes of each stochastic layer, with logits of zero."""
        if self.model == "binary":
            return [Bernoulli(jnp.zeros(size)) for size in self.layer_sizes]
        return [Categorical(jnp.zeros((size, self.categories))) for size in self.layer_sizes]

    @property
    def fixed_pixels(self) -> bool:
        """Whether each image is binarised once."""
        return self.likelihood == "bernoulli" and self.binarize == "fixed"

    def build_model(self, dataset: Dataset, key: jax.Array) -> VAE:
        pixels = dataset.train.shape[1]
        if self.likelihood == "gaussian":
            likelihood = GaussianLikelihood(pixels)
        else:
            likelihood = BernoulliLikelihood(self.likelihood == "grey" or self.fixed_pixels)
        categories = None if self.model == "binary" else self.categories
        if self.network == "resnet":
            size = self.layer_sizes[0]
            model = resnet_vae(dataset.image_shape, size, likelihood, categories, key=key)
        else:
            kind = (categories, self.activation, self.initialization)
            model = mlp_vae(pixels, self.layer_sizes, self.hidden, likelihood, *kind, key=key)
        width = self.layer_sizes[-1] * (categories or 1)
        return dataclasses.replace(
            model,
            analytic_kl=self.kl == "analytic",
            prior=jnp.zeros(width) if self.prior == "learned" else None,
        )


DEFAULTS = {field.name: field.default for field in dataclasses.fields(Config)}
"""Every setting, and what it is if it is not given."""
TYPES: dict[str, Any] = {name: get_type_hints(Config)[name] for name in DEFAULTS}
"""The type of every setting, if it is given."""
TYPES |= {name: type_of(places) for name, places in SETTINGS.items()}
TYPES |= {"dataset": Literal[NAMES], "estimator": Literal[tuple(DESCRIPTIONS)]}


def _estimator(settings: Mapping[str, Any], context: int = 1) -> Estimator:
    given = {name: settings[name] for name in SETTINGS if settings[name] is not None}
    return build_estimator(settings["estimator"], settings["samples"], given, context)


def _defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the settings of the estimator are if they are not given."""
    plain = {**settings, **dict.fromkeys(SETTINGS)}
    parts = {name: settings[name] for name, at in SETTINGS.items() if at[0].field.choices}
    found, chosen = settings_of(_estimator(plain)), settings_of(_estimator({**plain, **parts}))
    return {**chosen, **{name: found[name] for name in parts if name in found}}


def _idle(settings: Mapping[str, Any], estimator: Estimator) -> dict[str, str]:
    """The settings that would do nothing, and what each of them goes with."""
    there = settings_of(estimator)
    idle = {name: goes_with(name) for name in SETTINGS if name not in there}
    if len(settings["layer_sizes"]) == 1:
        idle |= dict.fromkeys(("common_random_numbers", "average_decoder"), "several layers")
    else:
        idle["kl"] = "one stochastic layer"
    if settings["network"] != "mlp":
        idle |= dict.fromkeys(("hidden", "activation", "initialization"), "network mlp")
    if settings["model"] != "categorical":
        idle["categories"] = "model categorical"
    if settings["likelihood"] != "bernoulli":
        idle["binarize"] = "likelihood bernoulli"
    if not learns(estimator):
        idle |= dict.fromkeys(("cv_learning_rate", "adapt_every"), "an estimator that learns")
    return idle


def goes_with(name: str) -> str:
    """What a setting of an estimator, an operator or a surrogate goes with.

    >>> goes_with("scan"), goes_with("coordinates")
    ('operator gibbs', 'estimator rodeo')
    """
    every = owners(SETTINGS[name]).items()
    return ", or with ".join(f"{owner} {either(choices)}" for owner, choices in every)


def either(choices: list[str]) -> str:
    """The choices as a part of a sentence.

    >>> either(["mpf"]), either(["mpf", "barker", "difference"])
    ('mpf', 'mpf, barker or difference')
    """
    *most, last = choices
    return f"{', '.join(most)} or {last}" if most else last


def used(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that do something beside each other, with the defaults of the library.

    >>> used(vars(Config()))["operator"], "operator" in used(vars(Config(estimator="rloo")))
    ('gibbs', False)
    """
    estimator = _estimator(settings)
    values, idle = {**settings, **settings_of(estimator)}, _idle(settings, estimator)
    return {name: values[name] for name in DEFAULTS if name not in idle}


def with_effect(settings: Mapping[str, Any], some: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some settings that do something beside all the others.

    >>> with_effect({"network": "resnet"}, {"hidden": (5,), "steps": 10})
    {'steps': 10}
    """
    settings = {**DEFAULTS, **settings}
    try:
        there = used(settings)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return {name: value for name, value in some.items() if name in there}


def _is(kind: Any, value: Any) -> bool:
    """Whether a value is of a type. A whole number is a number, but a truth value is not."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is(get_args(kind)[0], item) for item in value)
    if get_args(kind):
        return any(_is(option, value) for option in get_args(kind))
    kinds = (int, float) if kind is float else kind
    return isinstance(value, kinds) and (kind is bool or not isinstance(value, bool))


def _called(kind: Any) -> str:
    """What a type is called in a message.

    >>> _called(float | Literal["learned"]), _called(tuple[int, ...])
    ('a number or one of learned', 'a list of whole numbers')
    """
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    names: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number"}
    names[tuple[int, ...]] = "a list of whole numbers"
    return names.get(kind) or " or ".join(map(_called, get_args(kind)))


def check_types(settings: Mapping[str, Any]) -> None:
    """Raise for a setting that is not of its type, as a file or a script may have it."""
    for name, value in settings.items():
        absent = name in SETTINGS and value is None
        own = name == "dataset" and isinstance(value, str) and is_own(value)
        if not (absent or own or _is(TYPES[name], value)):
            raise ConfigError(f"{name} must be {_called(TYPES[name])}, not {value!r}.")


def _check_values(settings: Mapping[str, Any]) -> None:
    for name in ("samples", "steps", "batch_size", "adapt_every", "bound_samples"):
        if settings[name] < 1:
            raise ConfigError(f"{name} must be 1 or more, not {settings[name]}.")
    for name, power in POWERS.items():
        given = settings[name]
        most = max(given, default=0) if isinstance(given, tuple) else given or 0
        if most >= 2**power:
            raise ConfigError(f"{name} must be below 2^{power}, not {most}.")
    for name, most in (
        ("layer_sizes", MOST_LAYERS),
        ("hidden", MOST_LAYERS),
        ("seeds", MOST_SEEDS),
    ):
        if len(settings[name]) > most:
            raise ConfigError(
                f"{name} must be at most {most} numbers, but {len(settings[name])} were given."
            )
    for name in ("learning_rate", "cv_learning_rate"):
        if not 0 < settings[name] < math.inf:
            raise ConfigError(f"{name} must be above 0, and finite, not {settings[name]}.")
    if settings["categories"] < 2:
        raise ConfigError(f"categories must be 2 or more, not {settings['categories']}.")
    sizes, hidden, seeds = (settings[name] for name in ("layer_sizes", "hidden", "seeds"))
    if not sizes or min(sizes) < 1 or min(hidden, default=1) < 1:
        raise ConfigError(
            f"Layers need one unit or more: layer_sizes is {sizes}, hidden is {hidden}."
        )
    if settings["network"] == "resnet" and len(sizes) > 1:
        raise ConfigError(
            f"network resnet has one stochastic layer, but layer_sizes is {sizes}: give one size."
        )
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds must be one or more different numbers, not {seeds}.")
    if not all(0 <= seed < NUMBERS for seed in seeds):
        raise ConfigError(f"seeds must be between 0 and 2^31 - 1, not {seeds}.")
    coordinates = settings["coordinates"]
    if coordinates is not None and coordinates > min(sizes):
        raise ConfigError(f"coordinates {coordinates} is more than the codes of a layer: {sizes}.")


def to_json(config: Config) -> dict[str, Any]:
    """Every setting that does something, with the defaults that the library has today."""
    return {**DEFAULTS, **used(vars(config))}


def from_json(fields: Mapping[str, Any]) -> Config:
    """The configuration that `to_json` wrote."""
    unknown = set(fields) - set(DEFAULTS)
    if unknown:
        raise ConfigError(
            f"The stored configuration has settings this version does not know: {sorted(unknown)}."
        )
    return Config(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})


def differences(stored: Config, given: Config) -> dict[str, tuple[Any, Any]]:
    """Each setting that is not the same, as (stored, given)."""
    ours, theirs = to_json(stored), to_json(given)
    return {name: (ours[name], theirs[name]) for name in DEFAULTS if ours[name] != theirs[name]}
