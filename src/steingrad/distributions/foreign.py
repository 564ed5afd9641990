"""Distributions of other libraries, converted at the door. None of these libraries is imported."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .base import Distribution
from .bernoulli import Bernoulli
from .categorical import Categorical

LIBRARIES = ("distrax", "tensorflow_probability.substrates.jax", "numpyro", "distreqx")
"""The packages whose distributions are converted."""
BITS = ("Bernoulli", "BernoulliLogits", "BernoulliProbs")
INDICES = ("Categorical", "CategoricalLogits", "CategoricalProbs")
ONE_HOT = ("OneHotCategorical",)
ALLOWED = (
    "Bernoulli, Categorical and OneHotCategorical, and Independent of one of these, of distrax, "
    "tensorflow_probability.substrates.jax, numpyro and distreqx"
)


def as_distribution(dist: Any) -> Distribution:
    r"""The distribution of this library that equals a distribution of another one.

    `dist` is a `Bernoulli`, `Categorical` or `OneHotCategorical`, or an `Independent` of one of
    these, of distrax, TensorFlow Probability (its JAX substrate), numpyro or distreqx. A
    distribution of this library is returned unchanged.

    `expectation`, `value_and_grad`, `sample`, `exact_expectation`, `exact_gradient`,
    `multi_sample_bound`, `Joint`, `compare` and the `init` of estimators call this function
    themselves, so they take such a distribution as it is. Call it yourself for a loop of your own
    (`Estimator.sample` and `Estimator.estimate`), whose states are those of `Bernoulli` and
    `Categorical`.

    **f sees the states of the other library**, of its `batch_shape` and `event_shape`: bits 0 and 1
    for Bernoulli, an index for Categorical, a one-hot vector for OneHotCategorical. Bits and
    one-hot vectors are in the floating-point type of the parameters, so that f can have a gradient.
    An index is an `int32`, by which nothing can be differentiated: estimators that use the gradient
    of f refuse such a distribution. Gradients belong to what the distribution was made with, logits
    or probabilities. A probability of 0 has the gradient 0, like a logit of $-\infty$.

    >>> import jax.numpy as jnp, steingrad as sg
    >>> q = sg.Bernoulli(jnp.zeros(3))
    >>> sg.as_distribution(q) is q
    True
    """
    if isinstance(dist, Distribution):
        return dist
    library = _library(dist)
    if library is None:
        what = "an array" if eqx.is_array_like(dist) else f"a {type(dist).__name__}"
        raise TypeError(
            f"dist must be a distribution such as Bernoulli(logits), not {what}. Of other "
            f"libraries, {ALLOWED} can be used."
        )
    base, is_independent = dist, False
    while type(base).__name__ == "Independent" and _library(base) is not None:
        base = base.base_dist if library == "numpyro" else base.distribution
        is_independent = True
    kind = type(base).__name__
    if _library(base) is None or kind not in (*BITS, *INDICES, *ONE_HOT):
        inside = " of a " + kind if is_independent else ""
        raise TypeError(
            f"dist must be a discrete distribution with known parameters, but was given "
            f"{library}'s {type(dist).__name__}{inside}. Allowed are {ALLOWED}; for anything else "
            "write its log-probability and use FromLogProb."
        )
    given, is_probs = _given(base, library)
    one_axis = kind not in BITS  # the last axis of the parameters has the values
    if library == "distreqx":
        variables = given.shape[: given.ndim - one_axis]
        event = variables if is_independent or not one_axis else ()
        batch = variables[: len(variables) - len(event)]
    else:
        batch, event = (tuple(int(n) for n in s) for s in (dist.batch_shape, dist.event_shape))
        event = event[:-1] if kind in ONE_HOT else event
    given = jnp.broadcast_to(given, (*batch, *event, *given.shape[given.ndim - one_axis :]))
    if not one_axis:
        return ForeignBernoulli(given, is_probs, event)
    return ForeignCategorical(given, is_probs, event, one_hot=kind in ONE_HOT)


def is_foreign(thing: Any) -> bool:
    """Whether an object comes from one of the libraries whose distributions are converted."""
    return _library(thing) is not None


def _library(thing: Any) -> str | None:
    """The package that the class of an object comes from, if it is one of `LIBRARIES`."""
    module = f"{type(thing).__module__}."
    found = [name for name in LIBRARIES if module.startswith(f"{name}.")]
    return found[0] if found else None


def _given(base: Any, library: str) -> tuple[Array, bool]:
    """The parameters that a distribution was made with, and whether they are probabilities."""
    if library == "numpyro":
        is_probs = type(base).__name__.endswith("Probs")
        given = base.probs if is_probs else base.logits
    else:
        is_probs = base._logits is None
        given = base._probs if is_probs else base._logits
    return jnp.asarray(given), is_probs


class ForeignBernoulli(Bernoulli):
    """Bits in the order and shape of another library."""

    given: Float[Array, "..."]
    """The logits or probabilities that the distribution was made with."""
    is_probs: bool = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    """The shape of a state, as f sees it."""

    def __init__(self, given: Array, is_probs: bool, shape: tuple[int, ...]):
        self.given, self.is_probs, self.shape = given, is_probs, shape
        super().__init__(self._to_logits(given))

    def _to_logits(self, given):
        if self.is_probs:
            certain = (given <= 0) | (given >= 1)
            inside = jnp.where(certain, 0.5, given)
            limit = jnp.where(given >= 1, jnp.inf, -jnp.inf).astype(given.dtype)
            given = jnp.where(certain, limit, jnp.log(inside) - jnp.log1p(-inside))
        batch = given.shape[: given.ndim - len(self.shape)]
        return given.reshape(*batch, math.prod(self.shape))

    def view(self, x):
        return x.reshape(*x.shape[:-1], *self.shape)

    def by_given(self, gradient):
        return _pull_back(self._to_logits, self.given, gradient)


class ForeignCategorical(Categorical):
    """Categories in the order and shape of another library, as indices or one-hot vectors."""

    given: Float[Array, "..."]
    """The logits or probabilities that the distribution was made with."""
    is_probs: bool = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    """The shape of the variables of a state, as f sees it."""
    one_hot: bool = eqx.field(static=True)
    """Whether f sees one-hot vectors; otherwise it sees indices."""

    def __init__(self, given: Array, is_probs: bool, shape: tuple[int, ...], one_hot: bool):
        self.given, self.is_probs, self.shape, self.one_hot = given, is_probs, shape, one_hot
        super().__init__(self._to_logits(given))

    @property
    def differentiable(self):
        return self.one_hot

    def _to_logits(self, given):
        if self.is_probs:
            possible = given > 0
            given = jnp.where(possible, jnp.log(jnp.where(possible, given, 1)), -jnp.inf)
        batch = given.shape[: given.ndim - len(self.shape) - 1]
        return given.reshape(*batch, math.prod(self.shape), given.shape[-1])

    def view(self, x):
        state = x if self.one_hot else self.index(x)[..., None]
        last = state.shape[-1:] if self.one_hot else ()
        return state.reshape(*x.shape[:-2], *self.shape, *last)

    def by_given(self, gradient):
        return _pull_back(self._to_logits, self.given, gradient)


def _pull_back(to_logits: Any, given: Array, gradient: Array) -> Array:
    _, pull_back = jax.vjp(to_logits, given.astype(gradient.dtype))
    return pull_back(gradient)[0]
