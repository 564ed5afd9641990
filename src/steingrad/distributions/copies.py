"""Independent copies of a distribution, as one distribution."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .base import Distribution
from .foreign import as_distribution
from .independent import Independent
from .joint import Joint


def copies(dist: Any, count: int) -> Distribution:
    """The distribution of `count` independent states of `dist` as one state.

    `multi_sample_bound` gives such a distribution to the ordinary estimators. Call this function if
    the `init` of an estimator needs a distribution: `estimator.init(key, copies(dist, K))`.

    >>> import jax.numpy as jnp, steingrad as sg
    >>> copies(sg.Bernoulli(jnp.zeros((10, 3))), 5).event_shape
    (15,)
    """
    return side_by_side(as_distribution(dist), count)[0]


def side_by_side(
    dist: Distribution, count: int
) -> tuple[Distribution, Callable[[Any], Float[Array, "samples ..."]]]:
    """Returns `copies(dist, count)`, and the function from what f sees to the states of `dist`, of
    shape `[count, ..., *event]`."""
    if not isinstance(dist, Independent) or type(dist).view is not Distribution.view:
        return Copies([dist] * count), jnp.stack
    # One distribution of count · d coordinates, because many small parts take long to compile.
    batch = len(dist.batch_shape)

    def repeat(parameter):
        lead, own = parameter.shape[:batch], parameter.shape[batch:]
        repeated = jnp.broadcast_to(jnp.expand_dims(parameter, batch), (*lead, count, *own))
        return repeated.reshape(*lead, count * own[0], *own[1:])

    def states(x):
        lead = x.shape[: x.ndim - dist.event_ndim]
        return jnp.moveaxis(x.reshape(*lead, count, *dist.event_shape), len(lead), 0)

    return dist.with_parameters(jax.tree.map(repeat, dist.parameters)), states


class Copies(Joint):
    """A `Joint` of equal parts. f sees the parts as arrays."""

    def __init__(self, parts: list[Distribution]):
        super().__init__(parts)

    def view(self, x):
        return tuple(self.each(x))
