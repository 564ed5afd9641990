"""The base class of distributions that are given by a function of one state."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from ..arrays import is_concrete
from ..derivatives import device_axes
from .base import Distribution


class FromFunction(Distribution):
    """A distribution whose probabilities are a function of parameters (any pytree), conditions and
    one state. This class maps the function over samples and batch."""

    large_scores: ClassVar = True
    _parameters: eqx.AbstractVar[Any]
    conditions: eqx.AbstractVar[Any]
    _batch_shape: eqx.AbstractVar[tuple[int, ...]]
    _factors: eqx.AbstractVar[Any]
    """How much each element counts in sums over the batch; `None`: 1. See `counted`."""

    @abc.abstractmethod
    def _log_prob(self, parameters: Any, condition: Any, x: Array) -> Array:
        """log q of one state."""

    @abc.abstractmethod
    def _log_ratio(
        self, parameters: Any, condition: Any, x: Array, values: Array, coordinates: Array
    ) -> Array:
        """log q(y) − log q(x) at the neighbours of one state."""

    @property
    def parameters(self):
        return eqx.filter(self._parameters, eqx.is_inexact_array)

    @property
    def batch_shape(self):
        return self._batch_shape

    @property
    def dtype(self):
        return jnp.result_type(*jax.tree.leaves(self.parameters))

    def constants(self):
        """The conditions, and the tracers from outside `_log_prob` that it closes over."""
        others = eqx.tree_at(lambda q: q._parameters, self, None)
        others = tuple(jax.tree.leaves(eqx.filter(others, eqx.is_inexact_array)))
        if device_axes((self._parameters, self.conditions)):
            # Inside `jax.shard_map` a separate trace would have to know the devices.
            return others
        dynamic, static = eqx.partition(self._parameters, eqx.is_array)
        batch_ndim = len(self.batch_shape)
        without = lambda ndim: lambda a: jax.ShapeDtypeStruct(a.shape[ndim:], a.dtype)
        one = (
            jax.tree.map(without(0 if self.shares_parameters else batch_ndim), dynamic),
            jax.tree.map(without(batch_ndim), self.conditions),
            jax.ShapeDtypeStruct(self.event_shape, self.dtype),
        )
        call = lambda dynamic, *others: self._log_prob(eqx.combine(dynamic, static), *others)
        constants = jax.make_jaxpr(call)(*one).consts
        used = (c for c in constants if eqx.is_inexact_array(c) and not is_concrete(c))
        return (*others, *used)

    def with_parameters(self, parameters):
        everything = eqx.combine(parameters, self._parameters)
        return eqx.tree_at(
            lambda q: q._parameters, self, everything, is_leaf=lambda leaf: leaf is None
        )

    def counted(self, factors):
        if not self.shares_parameters:
            return self
        is_none = lambda leaf: leaf is None
        return eqx.tree_at(lambda q: q._factors, self, factors, is_leaf=is_none)

    def weighted_score(self, weights, x):
        return super().weighted_score(self._times_factors(weights, 0), x)

    def weighted_score_change(self, coefficients, x, values, coordinates=None):
        coefficients = self._times_factors(coefficients, 2)
        return super().weighted_score_change(coefficients, x, values, coordinates)

    def _times_factors(self, weights: Array, ndim: int) -> Array:
        """Weights with `ndim` axes after those of the batch, times the factors of the elements. A
        factor of 0 gives 0, also if a weight is not finite."""
        if self._factors is None:
            return weights
        factors = self._factors.reshape(*self._factors.shape, *[1] * ndim).astype(weights.dtype)
        return jnp.where(factors == 0, 0, factors * weights)

    def score(self, x):
        return self._for_each(eqx.filter_grad(self._log_prob), x)

    def log_ratio(self, x, values, coordinates=None):
        return self._for_each(self._log_ratio, x, values, self._all_if_none(x, coordinates))

    def score_change(self, coefficients, x, values, coordinates=None):
        @eqx.filter_grad
        def one(parameters, condition, x, coefficients, values, coordinates):
            ratio = self._log_ratio(parameters, condition, x, values, coordinates)
            return jnp.sum(coefficients.astype(ratio.dtype) * ratio)

        return self._for_each(one, x, coefficients, values, self._all_if_none(x, coordinates))

    def _all_if_none(self, x, coordinates):
        if coordinates is not None:
            return coordinates
        lead = x.shape[: x.ndim - self.event_ndim]
        everywhere = jnp.arange(self.num_coordinates, dtype=jnp.int32)
        return jnp.broadcast_to(everywhere, (*lead, self.num_coordinates))

    def _for_each_key(self, fn: Callable, key: PRNGKeyArray, shape: tuple[int, ...]):
        """Call `fn(parameters, condition, key)` for every sample, with a key of its own."""
        lead = (*shape, *self._batch_shape)
        keys = jax.random.split(key, lead)
        # A raw `uint32` key has an axis of its own.
        return self._for_each(fn, keys, event_ndim=keys.ndim - len(lead))

    def _for_each(self, fn: Callable, x: Array, *others: Array, event_ndim: int | None = None):
        """Call `fn(parameters, condition, x, *others)` for every state (or anything else with
        `event_ndim` axes of its own). Each element of the batch has its own condition, and its own
        parameters unless they are shared."""
        dynamic, static = eqx.partition(self._parameters, eqx.is_array)

        def mapped(dynamic, condition, x, *others):
            return fn(eqx.combine(dynamic, static), condition, x, *others)

        states = [0] * (1 + len(others))
        own = None if self.shares_parameters else 0
        for _ in self._batch_shape:
            mapped = jax.vmap(mapped, in_axes=(own, 0, *states))
        event_ndim = self.event_ndim if event_ndim is None else event_ndim
        for _ in range(x.ndim - event_ndim - len(self._batch_shape)):
            mapped = jax.vmap(mapped, in_axes=(None, None, *states))
        return mapped(dynamic, self.conditions, x, *others)


def check_parameters(name: str, parameters: Any) -> None:
    """Raise unless the parameters have an array to differentiate with respect to."""
    if not any(map(eqx.is_inexact_array, jax.tree.leaves(parameters))):
        raise ValueError(
            f"{name} needs at least one floating-point array among its parameters, but was given "
            f"{parameters!r}."
        )


def batch_of(name: str, conditions: Any, batch_shape: Sequence[int] | None) -> tuple[int, ...]:
    """Returns `batch_shape` if given, else the first axis of the conditions. Raises unless all
    conditions begin with these axes."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(conditions)]
    if conditions is not None and not shapes:
        raise ValueError(
            f"{name} needs arrays as conditions, but was given {conditions!r}. Leave them out if "
            "there are none."
        )
    first = shapes[0][:1] if shapes else ()
    batch = first if batch_shape is None else tuple(batch_shape)
    for shape in shapes:
        if shape[: len(batch)] != batch or (batch_shape is None and not shape):
            raise ValueError(
                f"{name}'s conditions must begin with the axes of the batch, batch_shape="
                f"{batch}, but have shapes {shapes}."
            )
    return batch
