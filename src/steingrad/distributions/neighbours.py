"""The neighbours of a state: the states that differ from it in one coordinate."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..arrays import expand, scatter, take


class Slope(NamedTuple):
    """A first-order model of f, from one of two sources."""

    gradient: Any
    """The gradient of f at the samples, of shape `[..., *event]`; `None` if there is an effect."""
    effect: Any
    """The mean effect that each value of each coordinate had in the past, of shape `[d, m]`; `None`
    if there is a gradient."""


class Neighbours(eqx.Module):
    r"""Neighbours of the states `x` of `dist`, in an array `[..., c, n]` of slots: coordinate
    `coordinates[..., c]` (`None`: all of them, in order) takes the value with the index
    `values[..., c, n]`, and the others stay.

    The flat number of slot $(c, n)$ is $c \cdot N + n$, where $N$ is the length of the last axis.
    """

    dist: Any
    x: Float[Array, "..."]
    values: Int[Array, "... c n"]
    coordinates: Int[Array, "... c"] | None

    def log_ratio(self) -> Float[Array, "... c n"]:
        r"""$\log q(y_n) - \log q(x)$."""
        return self.dist.log_ratio(self.x, self.values, self.coordinates)

    def conditional(self) -> Float[Array, "... c n"]:
        r"""$q(y_i \mid x_{-i})$, if the slots have all other values of their coordinates."""
        log_ratio = self.dist.log_ratio(self.x, self.values, self.coordinates)
        if log_ratio.shape[-1] == 1:
            return jax.nn.sigmoid(log_ratio)
        total = jax.nn.softplus(jax.nn.logsumexp(log_ratio, axis=-1, keepdims=True))
        return jnp.exp(log_ratio - total)

    def evaluate(
        self, h: Callable[[Float[Array, "..."]], Float[Array, "..."]]
    ) -> Float[Array, "... c n"]:
        r"""$h(y_n)$ for any function `h`, called at every neighbour."""
        return self.dist.at_neighbours(h, self.x, self.values, self.coordinates)

    def linear_change(self, gradient: Float[Array, "..."]) -> Float[Array, "... c n"]:
        r"""$\nabla^\top (y_n - x)$."""
        return self.dist.linear_change(gradient, self.x, self.values, self.coordinates)

    def score_change(self, coefficients: Float[Array, "... c n"]) -> Any:
        r"""$\sum_n c_n \, (s(y_n) - s(x))$, shaped like the score."""
        return self.dist.score_change(coefficients, self.x, self.values, self.coordinates)

    def weighted_score_change(self, coefficients: Float[Array, "... c n"]) -> Any:
        r"""$\sum_k \sum_n c_{kn} \, (s(y_{kn}) - s(x_k))$ over all samples, shaped like the
        parameters."""
        return self.dist.weighted_score_change(coefficients, self.x, self.values, self.coordinates)

    def times_score(self, numbers: Float[Array, "... c n"], score: Any) -> Any:
        """The score, with each coordinate's component multiplied by the sum of its numbers."""
        sums = jnp.sum(numbers, axis=-1)
        if self.coordinates is not None:
            sums = scatter(sums, self.coordinates, self.dist.num_coordinates)
        return jax.tree.map(lambda s: expand(sums, s.ndim) * s, score)

    def local_expectation(
        self, change: Float[Array, "... c n"], conditional: Float[Array, "... c n"]
    ) -> Any:
        r"""$\sum_v q(x_i = v) \, (f(x \text{ with } x_i = v) - f(x)) \, s_i(v)$ for each coordinate
        $i$, from the changes of $f$: the local expectation gradient of each sample."""
        terms = conditional * change
        at_x = self.times_score(terms, self.dist.score(self.x))
        return jax.tree.map(jnp.add, at_x, self.score_change(terms))

    # The methods below are for `Distribution.flips`, where only a few neighbours, given as flat
    # numbers of slots, are visited. Their slots have all coordinates.

    @property
    def here(self) -> Int[Array, "... c n"]:
        """The index of the coordinate's value in `x`."""
        return jnp.broadcast_to(self.dist.index(self.x)[..., None], self.values.shape)

    @property
    def there(self) -> Int[Array, "... c n"]:
        """The index of the coordinate's new value."""
        return self.values

    def squared_step(self) -> Float[Array, "... c n"]:
        """$|y - x|^2$, divided by its mean over all pairs of values."""
        return self.dist.squared_step(self.x, self.values)

    def first_order(self, slope: Slope) -> Float[Array, "... c n"]:
        """The first-order change of f, before a random partner is drawn."""
        if slope.effect is None:
            return self.linear_change(slope.gradient)
        of = lambda value: take(slope.effect[:, None], value[..., None])[..., 0]
        return of(self.there) - of(self.here)

    def local_gradient(
        self, change: Float[Array, "... c n"], conditional: Float[Array, "... c n"]
    ) -> Any:
        """The gradient of E[f] for each sample, shaped like the score, from the changes of f."""
        return self.local_expectation(change, conditional)

    def spread(self, numbers: Float[Array, "d"]) -> Float[Array, "c n"]:
        """The number of each coordinate, at the slots of the coordinate. The last axis may have
        length 1, which stands for all slots of a coordinate."""
        return numbers[:, None]

    def coordinate_of(self, slots: Int[Array, "flips ..."]) -> Int[Array, "flips ..."]:
        """The coordinates that the slots change."""
        return slots // self.values.shape[-1]

    def moved(
        self, slots: Int[Array, "flips ..."], partners: Int[Array, "flips ..."] | None
    ) -> Float[Array, "flips ..."]:
        """The states after the changes of these slots."""
        coordinates, steps = jnp.divmod(slots[..., None], self.values.shape[-1])
        here = jnp.arange(self.dist.num_coordinates, dtype=slots.dtype) == coordinates
        # Slot n of a coordinate has an index that is larger by n + 1, cyclically.
        index = self.dist.index(self.x) + jnp.where(here, steps + 1, 0)
        return self.dist.state(index % self.dist.num_values)

    @property
    def has_partners(self) -> bool:
        """Whether another coordinate, drawn at random, changes together with the slot's own."""
        return False

    def draw_partners(
        self, slots: Int[Array, "flips ..."], key: PRNGKeyArray
    ) -> Int[Array, "flips ..."] | None:
        """The partners of these slots; `None` if there are none."""
        return None

    def by_chance(
        self, slots: Int[Array, "flips ..."], partners: Int[Array, "flips ..."], slope: Slope
    ) -> tuple[Float[Array, "flips ..."], Float[Array, "flips ..."]]:
        """The first-order change with these partners, minus `first_order`, and minus its mean over
        all partners."""
        raise NotImplementedError
