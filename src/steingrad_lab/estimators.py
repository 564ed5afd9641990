"""The estimators that can be trained with: one description each.

The command line, the training step, the estimate of costs and the report read them, so adding an
estimator to all of these is adding a description. A setting of its own (`operator`, `baseline`) is
a field of `training.config.Config`, which names its owner there.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from steingrad import estimators, operators, surrogates
from steingrad.estimators import Estimator

OPERATORS = {
    "gibbs": operators.Gibbs,
    "mpf": operators.MPF,
    "barker": operators.Barker,
    "birth_death": operators.BirthDeath,
    "difference": operators.Difference,
}
SURROGATES = {
    "mlp": surrogates.MLPSurrogate,
    "pooled": surrogates.PooledSurrogate,
    "linear": surrogates.LinearSurrogate,
    "exact": surrogates.ExactSurrogate,
}
# The settings of an operator and of a surrogate, and what they are called there.
OPERATOR_FIELDS = {"scan": "scan", "damping": "damping", "coordinates": "num_coordinates"}
SURROGATE_FIELDS = {"surrogate_hidden": "hidden", "surrogate_layers": "layers"}


@dataclasses.dataclass(frozen=True)
class Description:
    """All that experiments know about an estimator."""

    label: str
    """As tables and figures write it."""
    build: Callable[[int, Mapping[str, Any], int], Estimator]
    """From the evaluations of f for each image, the settings that were given, and the size of the
    context (what the encoder sees). Where no setting is given, the library's default stays."""
    style: int
    """How its curve looks: a number in `report.styles.STYLES`, the same in every figure."""
    learns: Callable[[Any], bool] = lambda estimator: False
    """Whether such an estimator has control variates to adapt."""
    watch: tuple[str, ...] = ()
    """The learned numbers worth a column in `metrics.jsonl`, as its control variates name them."""
    cost: float = 1.0
    """The time of a step, relative to RLOO's with as many evaluations,"""
    pair_ms: float = 0.0
    """and what each pair of samples adds in each layer, in milliseconds on two cores."""
    biased: bool = False
    """Whether its mean is not the gradient: reports keep it apart, and never call it the best."""


def _plain(kind: type[Estimator]) -> Callable[[int, Mapping[str, Any], int], Estimator]:
    """An estimator without settings."""
    return lambda samples, given, context: kind(samples)  # pyright: ignore[reportCallIssue]


def _rodeo(samples: int, given: Mapping[str, Any], context: int) -> Estimator:
    own = _own(given, "loo", "local", "global_", "coefficients")
    return estimators.Rodeo(samples, operator=_operator(given), surrogate=_surrogate(given), **own)


def _bronco(evaluations: int, given: Mapping[str, Any], context: int) -> Estimator:
    """One sample with as many flips as the evaluations allow, unless the flips are given."""
    flips = given.get("flips", evaluations - 1)
    if flips < 1 or evaluations % (1 + flips):
        raise ValueError(
            "bronco evaluates the objective at each sample and at its flips, so samples (the "
            f"evaluations) must be a multiple of 1 + flips, not {evaluations} with flips {flips}."
        )
    return estimators.Bronco(evaluations // (1 + flips), flips, **_own(given, "uniform"))


def _lariat(samples: int, given: Mapping[str, Any], context: int) -> Estimator:
    size = context if given.get("context") else 0
    surrogate = surrogates.MLPSurrogate() if given.get("stein") else None
    own = _own(given, "values", "gradients", "weighted")
    # What an image does to f is not remembered from other images.
    return estimators.Lariat(samples, memory=False, context_size=size, surrogate=surrogate, **own)


def _own(given: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}


def _modified_relax(samples: int, given: Mapping[str, Any], context: int) -> Estimator:
    surrogate = _module(surrogates.MLPSurrogate, given, SURROGATE_FIELDS)
    return estimators.ModifiedRelax(samples, surrogate)


def _reinforce(samples: int, given: Mapping[str, Any], context: int) -> Estimator:
    baseline = given.get("baseline", "none")
    return estimators.Reinforce(samples, None if baseline == "none" else baseline)


def _rebar(evaluations: int, given: Mapping[str, Any], context: int) -> Estimator:
    return estimators.Rebar(_thirds("rebar", evaluations))


def _relax(evaluations: int, given: Mapping[str, Any], context: int) -> Estimator:
    return estimators.Relax(_thirds("relax", evaluations), context_size=context)


def _thirds(name: str, evaluations: int) -> int:
    if evaluations % 3:
        raise ValueError(
            f"{name} evaluates the objective 3 times a sample, so samples (the evaluations) must "
            f"be a multiple of 3, not {evaluations}."
        )
    return evaluations // 3


def _operator(given: Mapping[str, Any]) -> operators.Operator:
    kind = OPERATORS[given["operator"]] if "operator" in given else _default("operator")
    return _module(kind, given, OPERATOR_FIELDS)


def _surrogate(given: Mapping[str, Any]) -> surrogates.Surrogate:
    kind = SURROGATES[given["surrogate"]] if "surrogate" in given else _default("surrogate")
    return _module(kind, given, SURROGATE_FIELDS)


def _default(part: str) -> type:
    """The kind of operator or surrogate that the library chooses."""
    return type(next(f for f in dataclasses.fields(estimators.Rodeo) if f.name == part).default)


def _module(kind: type, given: Mapping[str, Any], names: Mapping[str, str]) -> Any:
    """Whatever of the settings this kind has; that it has no others is checked elsewhere."""
    there = {field.name for field in dataclasses.fields(kind)}
    return kind(**{own: given[n] for n, own in names.items() if n in given and own in there})


def _always(estimator: Estimator) -> bool:
    return True


DESCRIPTIONS = {
    "reinforce": Description(
        "REINFORCE",
        _reinforce,
        style=10,
        learns=lambda estimator: isinstance(estimator.baseline, str),
        watch=("baseline",),
    ),
    "rloo": Description("RLOO", _plain(estimators.RLOO), style=4),
    "rodeo": Description(
        "RODEO", _rodeo, style=0, learns=_always, watch=("alpha", "beta"), pair_ms=0.8
    ),
    "bronco": Description("Bronco", _bronco, style=6, learns=_always, cost=1.1),
    "lariat": Description("Lariat", _lariat, style=7, learns=_always, cost=1.15),
    "double_cv": Description(
        "Double CV",
        _plain(estimators.DoubleCV),
        style=1,
        learns=_always,
        watch=("alpha",),
        cost=1.1,
    ),
    "disarm": Description("DisARM", _plain(estimators.DisARM), style=2),
    "arms": Description("ARMS", _plain(estimators.ARMS), style=3),
    "rebar": Description(
        "REBAR",
        _rebar,
        style=11,
        learns=_always,
        watch=("log_temperature", "scale"),
        cost=1.2,
    ),
    "relax": Description(
        "RELAX",
        _relax,
        style=5,
        learns=_always,
        watch=("log_temperature", "scale"),
        cost=1.3,
    ),
    "modified_relax": Description(
        "Modified RELAX",
        _modified_relax,
        style=8,
        learns=_always,
        watch=("log_temperature", "scale"),
        cost=1.3,
    ),
    "straight_through": Description(
        "Straight-through", _plain(estimators.StraightThrough), style=12, biased=True
    ),
    "gumbel_softmax": Description(
        "Gumbel-softmax", _plain(estimators.GumbelSoftmax), style=13, biased=True
    ),
    "reinmax": Description("ReinMax", _plain(estimators.ReinMax), style=14, biased=True),
    "local_expectation": Description(
        "Local expectation", _plain(estimators.LocalExpectation), style=9, cost=40.0
    ),
}
