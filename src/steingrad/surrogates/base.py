"""What a surrogate gives: cheap stand-ins for f at the neighbours of each sample."""

import abc
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


def others(num_samples: int) -> Array:
    """For r = 1 … K−1 and each k the index of another sample, (k + r) mod K: `[K-1, K]`."""
    k = jnp.arange(num_samples)
    return (k + jnp.arange(1, num_samples)[:, None]) % num_samples


def mean_of_others(values: Float[Array, "samples ..."]) -> Float[Array, "samples ..."]:
    r"""$\frac1{K-1} \sum_{j \ne k} v_j$ for each $k$, at a cost linear in $K$."""
    if len(values) == 2:
        return values[::-1]
    return (jnp.sum(values, axis=0) - values) / (len(values) - 1)
