"""The settings of the estimators, read from the library.

The settings of an estimator are the fields of its class, and the fields of its operator and its
surrogate. A field of the library gives a setting its name, its type, its default and its
documentation, so a new field there is a new setting here.
"""

import dataclasses
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import equinox as eqx
import jax
import jax.numpy as jnp

from steingrad import Bernoulli, Categorical, operators, surrogates
from steingrad.estimators import Estimator
from steingrad.estimators.checks import check_distribution

from .estimators import DESCRIPTIONS

KINDS: dict[str, type[eqx.Module]] = {
    "gibbs": operators.Gibbs,
    "mpf": operators.MPF,
    "barker": operators.Barker,
    "birth_death": operators.BirthDeath,
    "difference": operators.Difference,
    "mlp": surrogates.MLPSurrogate,
    "pooled": surrogates.PooledSurrogate,
    "linear": surrogates.LinearSurrogate,
    "exact": surrogates.ExactSurrogate,
}
"""The operators and the surrogates that can be chosen."""

NAMES = {
    "num_coordinates": "coordinates",
    "Relax.hidden": "relax_hidden",
    "Lariat.context_size": "context",
    "Lariat.surrogate": "stein",
}
"""The fields of the library that have another name here."""
SWITCHES = {
    "context": "Learn a baseline and a slope from what the encoder sees.",
    "stein": "Also use the two terms of RODEO.",
}
"""Settings that are on or off here, because `build_estimator` decides about the value."""
DEFAULTS = {"flips": "samples - 1"}
"""Defaults that are not those of the library, as the help of the command line writes them."""
DECIDED = {
    "num_samples",  # follows from `samples`, which counts evaluations
    "neighbourhood",  # makes no difference for bits
    "Relax.context_size",
    "Lariat.memory",
    "Lariat.hidden",
    "Lariat.operator",
}
"""The fields of the library that are no settings here: the laboratory decides about them."""


class Field(NamedTuple):
    """A field of a class of the library that is a setting here."""

    kind: type[eqx.Module]
    name: str
    """The name in the library."""
    default: Any
    choices: dict[str, type[eqx.Module]]
    """The classes to choose from, if the field is an operator or a surrogate."""
    type: Any
    """The type of the setting here."""


@functools.cache
def fields_of(kind: type[eqx.Module]) -> dict[str, Field]:
    """The fields of a class of the library that are settings here, by their names here.

    >>> fields_of(operators.Gibbs)["scan"].type, fields_of(operators.Gibbs)["coordinates"].name
    (typing.Literal['random', 'own'], 'num_coordinates')
    """
    hints, found = get_type_hints(kind), {}
    prefix = "surrogate_" if issubclass(kind, surrogates.Surrogate) else ""
    for field in dataclasses.fields(kind):
        full, hint, choices = f"{kind.__name__}.{field.name}", hints[field.name], {}
        if {field.name, full} & DECIDED:
            continue
        name = NAMES.get(full) or NAMES.get(field.name) or prefix + field.name
        if inspect.isclass(hint) and issubclass(hint, eqx.Module):
            choices = {choice: part for choice, part in KINDS.items() if issubclass(part, hint)}
            hint = Literal[tuple(choices)]
        type_here = bool if name in SWITCHES else _without_none(hint)
        found[name] = Field(kind, field.name, field.default, choices, type_here)
    return found


def _without_none(hint: Any) -> Any:
    """The type of a setting: beside other words, `None` is the word none; elsewhere it is left out.

    >>> _without_none(int | None), _without_none(int | float | Literal["learned"] | None)
    (<class 'int'>, typing.Union[typing.Literal['none', 'learned'], float])
    """
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = [kind for kind in options if kind is not NoneType and get_origin(kind) is not Literal]
    kinds = [kind for kind in kinds if not (kind is int and float in kinds)]
    if chosen := words(hint):
        kinds.insert(0, Literal[("none", *chosen) if NoneType in options else chosen])
    return Union[tuple(kinds)]  # noqa: UP007 (there may be one kind only)


def words(hint: Any) -> tuple[str, ...]:
    """The words in a type.

    >>> words(Literal["random", "own"]), words(float | Literal["learned"]), words(int)
    (('random', 'own'), ('learned',), ())
    """
    if get_origin(hint) is Literal:
        return get_args(hint)
    return tuple(word for option in get_args(hint) for word in words(option))


def spelled(field: Field, value: Any) -> Any:
    """The value of a field of the library, as the setting is written here."""
    if field.choices:
        return next(name for name, kind in KINDS.items() if kind is type(value))
    if value is None and "none" in words(field.type):
        return "none"
    return bool(value) if field.type is bool else value


def evaluations_of_sample(name: str, given: Mapping[str, Any], evaluations: int = 2) -> int:
    """How many times an estimator evaluates f for each sample. If the flips of Bronco are not
    given, it has one sample and makes all other evaluations at flips.

    >>> evaluations_of_sample("relax", {}), evaluations_of_sample("bronco", {"flips": 3})
    (3, 4)
    """
    if name == "bronco":
        return max(1, 1 + given.get("flips", max(1, evaluations - 1)))
    return DESCRIPTIONS[name].evaluations


def build_estimator(
    name: str, evaluations: int, given: Mapping[str, Any], context: int = 1
) -> Estimator:
    """An estimator from the evaluations of f for each image, the settings that were given, and the
    size of what the encoder sees. Other settings keep the default of the library.

    >>> build_estimator("bronco", 4, {"flips": 1}).num_samples
    2
    """
    decided, each = {}, evaluations_of_sample(name, given, evaluations)
    if name == "bronco":
        given = {"flips": each - 1, **given}
    if name == "relax":
        decided = {"context_size": context}
    if name == "lariat":
        decided = {
            "context_size": context if given.get("context") else 0,
            "surrogate": surrogates.MLPSurrogate() if given.get("stein") else None,
            "memory": False,  # because f is another function for each image
        }
    if evaluations % each:
        raise ValueError(
            f"{name} evaluates the objective {each} times for each sample, so samples (the number "
            f"of evaluations) must be a multiple of {each}, not {evaluations}."
        )
    return _build(DESCRIPTIONS[name].kind, given, num_samples=evaluations // each, **decided)


def _build(kind: type, given: Mapping[str, Any], **arguments: Any) -> Any:
    """An instance of a class of the library. Settings that the class does not have are ignored."""
    for name, field in fields_of(kind).items():
        if field.choices:
            chosen = field.choices.get(given.get(name, ""), type(field.default))
            arguments[field.name] = _build(chosen, given)
        elif name in given and field.name not in arguments:
            arguments[field.name] = None if given[name] == "none" else given[name]
    return kind(**arguments)


def settings_of(module: eqx.Module) -> dict[str, Any]:
    """Every setting of an estimator, an operator or a surrogate, with its value.

    >>> settings_of(operators.MPF(num_coordinates=3))
    {'coordinates': 3, 'damping': 0.0}
    """
    found: dict[str, Any] = {}
    for name, field in fields_of(type(module)).items():
        value = getattr(module, field.name)
        if len(field.choices) != 1:
            found[name] = spelled(field, value)
        if field.choices:
            found |= settings_of(value)
    return found


@functools.cache
def learns(estimator: Estimator) -> bool:
    """Whether an estimator has control variates to adapt."""
    init = lambda: estimator.init(jax.random.key(0), Bernoulli(jnp.zeros(1)))
    return jax.eval_shape(init) is not None


@functools.cache
def check_codes(estimator: Estimator, categories: int | None) -> None:
    """Raise a ValueError unless an estimator takes such codes; `None` stands for bits.

    >>> check_codes(build_estimator("disarm", 2, {}), 8)
    Traceback (most recent call last):
    ValueError: DisARM needs independent bits, but was given Categorical, which lacks that...
    """
    codes = lambda: (
        Categorical(jnp.zeros((1, categories))) if categories else Bernoulli(jnp.zeros(1))
    )
    jax.eval_shape(lambda: check_distribution(estimator, codes()))


class Place(NamedTuple):
    """A field that a setting sets, and the choice with which this field is there."""

    owner: str
    choice: str
    field: Field


def _places(kind: type[eqx.Module], owner: str, choice: str) -> Iterator[tuple[str, Place]]:
    """The settings of a class of the library and of the parts that can be chosen for it."""
    for name, field in fields_of(kind).items():
        only = len(field.choices) == 1  # then nothing is chosen
        if not only:
            yield name, Place(owner, choice, field)
        for each, part in field.choices.items():
            yield from _places(part, owner, choice) if only else _places(part, name, each)


def _settings() -> dict[str, list[Place]]:
    """The settings in the order of `config.json` and of the names of runs."""
    found: dict[str, list[Place]] = {}
    for estimator, about in DESCRIPTIONS.items():
        own: dict[str, list[Place]] = {}
        for name, place in _places(about.kind, "estimator", estimator):
            own[name] = [*own.pop(name, []), place]  # settings that operators share come last
        for name, places in own.items():
            found.setdefault(name, []).extend(places)
    return found


SETTINGS = _settings()
"""Every setting of an estimator, an operator or a surrogate, and where it is found."""


def type_of(places: Sequence[Place]) -> Any:
    """The type of a setting that is found in these places."""
    return Union[tuple(place.field.type for place in places)]  # noqa: UP007


def owners(places: Sequence[Place]) -> dict[str, list[str]]:
    """What has to be chosen for a setting to do anything: one of these choices.

    >>> owners(SETTINGS["scan"]), owners(SETTINGS["coordinates"])
    ({'operator': ['gibbs']}, {'estimator': ['rodeo']})
    """
    found: dict[str, list[str]] = {}
    for place in places:
        found.setdefault(place.owner, []).append(place.choice)
    for part in [owner for owner in found if owner in SETTINGS]:
        if len(found[part]) == len(SETTINGS[part][0].field.choices):
            del found[part]
            found |= owners(SETTINGS[part])
    return found
