"""What a surrogate gives: cheap stand-ins for f at the neighbours of each sample."""

import abc
import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..operators.base import Neighbours


class Values(NamedTuple):
    """A surrogate at the neighbours of each sample, and at the sample itself."""

    neighbours: Float[Array, "samples ... c n"]
    self: Float[Array, "samples ..."]


class Surrogate(eqx.Module):
    r"""Two functions of a state, $h_k$ (local) and $h^*_k$ (global), that stand in for $f$.

    They may depend on every sample but $x_k$: that is what keeps the estimate unbiased.
    """

    @property
    def needs_gradient(self) -> bool:
        r"""Whether $\nabla f$ at the samples is needed."""
        return True

    @property
    def needs_objective(self) -> bool:
        """Whether f itself must be evaluated at the neighbours."""
        return False

    def init(self, key: PRNGKeyArray) -> Any:
        """What is learned; `None` if nothing is."""
        return None

    @abc.abstractmethod
    def evaluate(
        self,
        params: Any,
        row: Neighbours,
        x: Float[Array, "samples ..."],
        fx: Float[Array, "samples ..."],
        dfx: Any,
        f: Callable[[Array], Array] | None = None,
    ) -> tuple[Values, Values]:
        r"""$h_k$ and $h^*_k$ at $x_k$ and at its neighbours, for every sample $k$."""


def event_axes(x: Array, fx: Array) -> tuple[int, ...]:
    return tuple(range(fx.ndim - x.ndim, 0))


def others(values: Float[Array, "samples ..."]) -> Float[Array, "others samples ..."]:
    """For each k the values of the other samples, v_(k+1), v_(k+2), ... (mod K), along a new axis.

    >>> others(jnp.array([10.0, 11.0, 12.0]))
    Array([[11., 12., 10.],
           [12., 10., 11.]], dtype=float32)
    """
    if len(values) == 2:
        return values[::-1][None]
    # K copies end to end, cut into rows of K + 1: each begins one further than the row before.
    count = len(values)
    copies = jnp.tile(values, (count, *[1] * (values.ndim - 1)))[1:]
    return copies.reshape(count - 1, count + 1, *values.shape[1:])[:, :count]


def mean_of_others(values: Float[Array, "samples ..."]) -> Float[Array, "samples ..."]:
    r"""$\frac1{K-1} \sum_{j \ne k} v_j$ for each $k$, at a cost linear in $K$."""
    if len(values) == 2:
        return values[::-1]
    return (sum_of_samples(values) - values) / (len(values) - 1)


def mean_of_samples(values: Float[Array, "samples ..."]) -> Float[Array, "..."]:
    r"""$\frac1K \sum_k v_k$."""
    return sum_of_samples(values) / len(values)


def sum_of_samples(values: Float[Array, "samples ..."]) -> Float[Array, "..."]:
    """A sum along a first axis that is short: term by term, because on a CPU reductions along such
    an axis are compiled into something that takes ten times as long."""
    few = len(values) <= 16
    return functools.reduce(operator.add, values) if few else jnp.sum(values, axis=0)
