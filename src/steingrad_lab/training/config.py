"""Everything that defines a run: checked when built, written to `config.json`."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin

import jax

from steingrad.estimators import Estimator

from ..data import NAMES, Dataset, is_own
from ..estimators import DESCRIPTIONS, OPERATORS, SURROGATES
from ..models import VAE, BernoulliLikelihood, GaussianLikelihood, mlp_vae, resnet_vae

NUMBERS = 2**31
"""Seeds and steps are below this: JAX takes 32-bit integers."""


class ConfigError(Exception):
    """Settings that do not go together. (Not a ValueError, which tyro would wrap.)"""


class Owner(NamedTuple):
    """What a setting belongs to; elsewhere it would do nothing, and is refused."""

    name: str
    there: Callable[[Mapping[str, Any]], bool]
    """Whether these settings have it."""
    example: tuple[str, str] | None = None
    """A setting and its value, if that is what it takes."""


def chosen(name: str, *values: str) -> Owner:
    """The owner is another setting with one of these values, chosen or by default."""

    def there(settings: Mapping[str, Any]) -> bool:
        return belongs(name, settings) and value_of(name, settings) in values

    listed = " or ".join([", ".join(values[:-1]), values[-1]] if values[1:] else values)
    return Owner(f"{name} {listed}", there, (name, values[0]))


def either(first: Owner, second: Owner) -> Owner:
    there = lambda settings: first.there(settings) or second.there(settings)
    return Owner(f"{first.name}, or with {second.name}", there, first.example)


SEVERAL_LAYERS = Owner("several layers", lambda settings: len(settings["layer_sizes"]) > 1)
ADAPTATION = Owner(
    "an estimator that learns",
    lambda settings: DESCRIPTIONS[settings["estimator"]].learns(build_estimator(settings)),
)


def setting(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    owner: Owner | None = None,
    read: Callable[[Any], Any] | None = None,
) -> Any:
    """A field of `Config`. With `read` it is a setting of the estimator: None stands for the
    library's default, which `read` finds in an estimator that was built."""
    about = {"help": help, "choices": choices, "owner": owner, "read": read}
    return dataclasses.field(default=default, metadata=about)


def _kind(kinds: Mapping[str, type], part: str) -> Callable[[Any], str]:
    """The name of an estimator's operator or surrogate."""
    names = {kind: name for name, kind in kinds.items()}
    return lambda estimator: names[type(getattr(estimator, part))]


RODEO = chosen("estimator", "rodeo")
BRONCO = chosen("estimator", "bronco")
LARIAT = chosen("estimator", "lariat")
NETWORK = either(chosen("surrogate", "mlp", "pooled"), chosen("estimator", "modified_relax"))


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings of a run. Defaults are the paper's where it has one value for all tasks.

    Settings of one estimator (or operator, surrogate, network) are refused with another. Those of
    an estimator are None where they are the library's default, and so where they were given but
    make no difference: equal configurations are equal.

    >>> Config(estimator="rodeo", operator="gibbs") == Config(estimator="rodeo")
    True
    >>> Config(estimator="rloo", operator="mpf")
    Traceback (most recent call last):
    steingrad_lab.training.config.ConfigError: operator goes with estimator rodeo, ...
    """

    dataset: str = setting("digits", "What to train on.", choices=NAMES)
    likelihood: str = setting(
        "bernoulli",
        "Binary pixels drawn anew at each visit, or real-valued ones (paper: both).",
        choices=("bernoulli", "gaussian"),
    )

    estimator: str = setting(
        "rodeo", "How the encoder's gradient is estimated.", choices=tuple(DESCRIPTIONS)
    )
    samples: int = setting(
        2,
        "K, the samples for each image (paper: 2 and 3). Bronco, REBAR and RELAX: evaluations, of "
        "which Bronco makes 1 + flips for each sample and the others 3.",
    )
    operator: str | None = setting(
        None,
        "RODEO: the Stein operator (paper: gibbs; ablation: barker, mpf, difference).",
        choices=tuple(OPERATORS),
        owner=RODEO,
        read=_kind(OPERATORS, "operator"),
    )
    scan: str | None = setting(
        None,
        "Operator gibbs: a random coordinate's update (paper), or each component its own.",
        choices=("random", "own"),
        owner=chosen("operator", "gibbs"),
        read=lambda estimator: estimator.operator.scan,
    )
    damping: float | None = setting(
        None,
        "Operators other than gibbs: added to the denominator of ratios (paper's mpf and "
        "difference: 1e-3, biased).",
        owner=chosen("operator", *(name for name in OPERATORS if name != "gibbs")),
        read=lambda estimator: estimator.operator.damping,
    )
    coordinates: int | None = setting(
        None,
        "RODEO: visit this many coordinates, drawn at random (default and paper: all).",
        owner=RODEO,
        read=lambda estimator: estimator.operator.num_coordinates,
    )
    surrogate: str | None = setting(
        None,
        "RODEO: the stand-in for f at the neighbours (paper: mlp).",
        choices=tuple(SURROGATES),
        owner=RODEO,
        read=_kind(SURROGATES, "surrogate"),
    )
    surrogate_hidden: int | None = setting(
        None,
        "Hidden units of the surrogate (paper: 100).",
        owner=NETWORK,
        read=lambda estimator: estimator.surrogate.hidden,
    )
    surrogate_layers: int | None = setting(
        None,
        "Hidden layers of the surrogate, 1 or 2 (paper: 1; ablation: 2).",
        owner=NETWORK,
        read=lambda estimator: estimator.surrogate.layers,
    )
    loo: bool | None = setting(
        None,
        "RODEO: leave-one-out baseline (off only in the paper's ablation).",
        owner=RODEO,
        read=lambda estimator: estimator.loo,
    )
    local: bool | None = setting(
        None,
        "RODEO: local control variate (off only in the paper's ablation).",
        owner=RODEO,
        read=lambda estimator: estimator.local,
    )
    global_: bool | None = setting(
        None,
        "RODEO: global control variate (off only in the paper's ablation).",
        owner=RODEO,
        read=lambda estimator: estimator.global_,
    )
    coefficients: str | None = setting(
        None,
        "RODEO: α and β by descent (paper), or solved for.",
        choices=("learned", "least_squares"),
        owner=RODEO,
        read=lambda estimator: estimator.coefficients,
    )
    flips: int | None = setting(
        None,
        "Bronco: flips of each sample (default: of one sample, all evaluations but one).",
        owner=BRONCO,
        read=lambda estimator: estimator.flips,
    )
    uniform: float | None = setting(
        None,
        "Bronco: the share of flips that are drawn from all alike.",
        owner=BRONCO,
        read=lambda estimator: estimator.uniform,
    )
    values: bool | None = setting(
        None,
        "Lariat: terms made of values.",
        owner=LARIAT,
        read=lambda estimator: estimator.values,
    )
    gradients: bool | None = setting(
        None,
        "Lariat: terms made of gradients.",
        owner=LARIAT,
        read=lambda estimator: estimator.gradients,
    )
    weighted: bool | None = setting(
        None,
        "Lariat: the gradients' terms also weighted by |x − μ|.",
        owner=LARIAT,
        read=lambda estimator: estimator.weighted,
    )
    context: bool | None = setting(
        None,
        "Lariat: a baseline and a slope learned from what the encoder sees.",
        owner=LARIAT,
        read=lambda estimator: estimator.context_size > 0,
    )
    stein: bool | None = setting(
        None,
        "Lariat: RODEO's terms too.",
        owner=LARIAT,
        read=lambda estimator: estimator.surrogate is not None,
    )
    baseline: str | None = setting(
        None,
        "REINFORCE: its baseline.",
        choices=("none", "moving_average", "learned"),
        owner=chosen("estimator", "reinforce"),
        read=lambda estimator: estimator.baseline or "none",
    )

    network: str = setting(
        "mlp",
        "Encoders and decoders: perceptrons, or residual convolutional networks (one layer only).",
        choices=("mlp", "resnet"),
    )
    layer_sizes: tuple[int, ...] = setting(
        (200,), "Bits of each stochastic layer, from the image up (paper: 200 each)."
    )
    common_random_numbers: bool = setting(
        False,
        "Several layers: the same random numbers above for all K samples (paper: no).",
        owner=SEVERAL_LAYERS,
    )
    average_decoder: bool = setting(
        False,
        "Several layers: the decoder's gradient averages over the K samples of the first layer, in "
        "place of one ancestral sample (paper: no).",
        owner=SEVERAL_LAYERS,
    )
    hidden: tuple[int, ...] = setting(
        (200, 200),
        "Hidden units of each encoder and decoder (paper: 200 200; hierarchical: none).",
        owner=chosen("network", "mlp"),
    )

    steps: int = setting(10_000, "Training steps (paper: 1000000).")
    batch_size: int = setting(100, "Images a step (paper: 100).")
    learning_rate: float = setting(
        1e-3,
        "Adam's step size for the model (paper: 1e-3 binarised MNIST and Omniglot, 3e-4 binarised "
        "Fashion-MNIST, 1e-4 elsewhere; --preset paper chooses).",
    )
    cv_learning_rate: float = setting(
        1e-3, "Adam's step size for the control variates (paper: 1e-3).", owner=ADAPTATION
    )
    adapt_every: int = setting(
        1, "Update the control variates every n-th step (paper: 1).", owner=ADAPTATION
    )
    seeds: tuple[int, ...] = setting((1,), "One run each, side by side (paper: 5 seeds).")
    bound_samples: int = setting(
        100, "Samples of the importance-weighted bound at the end (paper: 100)."
    )

    def __post_init__(self):
        settings = vars(self)
        check_types(settings)
        _check_values(settings)
        try:
            build_estimator(settings)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        _check_owners(settings)
        for name in self._of_estimator():
            plain = {**settings, name: None}
            if settings[name] is not None and value_of(name, plain) == settings[name]:
                object.__setattr__(self, name, None)

    @classmethod
    def _of_estimator(cls) -> list[str]:
        return [f.name for f in dataclasses.fields(cls) if f.metadata["read"]]

    def build_estimators(self, pixels: int) -> tuple[Estimator, ...]:
        """One for each stochastic layer, whose context is what lies below it."""
        below = (pixels, *self.layer_sizes[:-1])
        return tuple(build_estimator(vars(self), size) for size in below)

    def build_model(self, dataset: Dataset, key: jax.Array) -> VAE:
        pixels = dataset.train.shape[1]
        likelihood = (
            BernoulliLikelihood() if self.likelihood == "bernoulli" else GaussianLikelihood(pixels)
        )
        if self.network == "resnet":
            return resnet_vae(dataset.image_shape, self.layer_sizes[0], likelihood, key=key)
        return mlp_vae(pixels, self.layer_sizes, self.hidden, likelihood, key=key)


FIELDS = {field.name: field for field in dataclasses.fields(Config)}
DEFAULTS = {name: field.default for name, field in FIELDS.items()}


def build_estimator(settings: Mapping[str, Any], context: int = 1) -> Estimator:
    given = {
        name: settings[name]
        for name, field in FIELDS.items()
        if field.metadata["read"] and settings[name] is not None
    }
    return DESCRIPTIONS[settings["estimator"]].build(settings["samples"], given, context)


def belongs(name: str, settings: Mapping[str, Any]) -> bool:
    """Whether a setting does anything beside the others."""
    owner = FIELDS[name].metadata["owner"]
    return owner is None or owner.there(settings)


def value_of(name: str, settings: Mapping[str, Any]) -> Any:
    """A setting that belongs there: as given, else the library's default."""
    read = FIELDS[name].metadata["read"]
    if settings[name] is not None or read is None:
        return settings[name]
    return read(build_estimator(settings))


def default_of(name: str) -> Any:
    """A setting's default where it belongs, by `Config` or by the library.

    >>> default_of("steps"), default_of("operator"), default_of("damping")
    (10000, 'gibbs', 0.0)
    """
    settings, current = dict(DEFAULTS), name
    while (owner := FIELDS[current].metadata["owner"]) and owner.example:
        current, value = owner.example
        settings[current] = value
    return value_of(name, settings)


# How a field's type is called, by what stands in it.
KINDS = {
    "tuple": "a list of whole numbers",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a word",
}


def _is(kind: Any, value: Any) -> bool:
    """Whether a value is of the type that a field was given; whole numbers are no truth values."""
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is(get_args(kind)[0], item) for item in value)
    if get_origin(kind) is UnionType:
        return any(_is(one, value) for one in get_args(kind))
    kinds = (int, float) if kind is float else kind
    return isinstance(value, kinds) and (kind is bool or not isinstance(value, bool))


def check_types(settings: Mapping[str, Any]) -> None:
    """Raise for a setting that is not of its field's type, as a file or a script may have it."""
    for name, field in FIELDS.items():
        if not _is(field.type, settings[name]):
            wanted = next(word for kind, word in KINDS.items() if kind in str(field.type))
            raise ConfigError(f"{name} must be {wanted}, not {settings[name]!r}.")


def _check_values(settings: Mapping[str, Any]) -> None:
    for name, field in FIELDS.items():
        choices, value = field.metadata["choices"], settings[name]
        if name == "dataset" and is_own(value):
            continue
        if choices and value not in choices and not (value is None and field.default is None):
            raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {value!r}.")
    for name in ("samples", "steps", "batch_size", "adapt_every", "bound_samples"):
        if settings[name] < 1:
            raise ConfigError(f"{name} must be 1 or more, not {settings[name]}.")
    if settings["steps"] >= NUMBERS:
        raise ConfigError(f"steps must be below 2^31, not {settings['steps']}.")
    for name in ("learning_rate", "cv_learning_rate"):
        if not 0 < settings[name] < math.inf:
            raise ConfigError(f"{name} must be above 0, and finite, not {settings[name]}.")
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
        raise ConfigError(f"coordinates {coordinates} is more than the bits of a layer: {sizes}.")


def _check_owners(settings: Mapping[str, Any]) -> None:
    """Raise for a setting that would do nothing."""
    for name, field in FIELDS.items():
        if settings[name] != field.default and not belongs(name, settings):
            raise ConfigError(
                f"{name} goes with {field.metadata['owner'].name}, and would do nothing here: "
                "leave it out."
            )


def to_json(config: Config) -> dict[str, Any]:
    """Every setting that does something, with the library's defaults of today spelled out."""
    settings = vars(config)
    return {
        name: value_of(name, settings) if belongs(name, settings) else DEFAULTS[name]
        for name in FIELDS
    }


def from_json(fields: Mapping[str, Any]) -> Config:
    """The configuration that `to_json` wrote."""
    unknown = set(fields) - set(FIELDS)
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
    ours, theirs = to_json(stored), to_json(given)
    return {name: (ours[name], theirs[name]) for name in FIELDS if ours[name] != theirs[name]}
