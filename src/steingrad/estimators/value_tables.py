"""Predictions of the effects of flips by the values that a coordinate leaves and takes."""

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..distributions.neighbours import Neighbours
from ..fast import TINY

# About how many flips of a value, and of a pair of values, are remembered.
VALUE_MEMORY, PAIR_MEMORY = 60.0, 30.0
# The memory of a number is never shorter than this many steps. The numbers of a value, of its pairs
# and of its coordinate each take what the others left in the step before. If all of them took most
# of it at once, they would take too much together, and diverge.
FEWEST_STEPS = 10
# A number is shrunk towards 0 as if this many further flips had had a residual of 0.
SHRINK = 3.0
# More pairs than this have no numbers of their own: they would take too much memory, and too long
# to learn.
MOST_PAIRS = 2**18
# The power of the squared errors of a value in π, beside those of its coordinate.
POWER = 0.5


class ValueTables(eqx.Module):
    r"""What is left of the change of f, $\beta_{iu} + \beta_{iv} + \gamma_{i\{u,v\}}$ for
    coordinate $i$ that leaves the value $u$ and takes the value $v$.

    For an f that is quadratic in the one-hot vector $e$ of a coordinate, the change is the slope
    plus $\frac12 (e_v - e_u)^\top H (e_v - e_u)$. This curvature is the same in both directions,
    and differs from pair to pair. $\beta$ is the mean of past residuals of the regression for each
    coordinate, and $\gamma$ the mean of what $\beta$ leaves. Both are shrunk towards 0.
    """

    values: Float[Array, "d m 2"]
    """For each value, the sums of weighted residuals and of weights."""
    pairs: Float[Array, "d p 2"] | None
    """For each unordered pair of values, the same; `None` if there are too many pairs."""
    errors: Float[Array, "d m 2"]
    """For each value that is taken, the sums of weighted squared errors and of weights."""

    @classmethod
    def zero(cls, d: int, m: int) -> "ValueTables | None":
        """Empty tables; `None` for two values, whose only pair has the coordinate's own number."""
        if m == 2:
            return None
        count = m * (m - 1) // 2
        pairs = jnp.zeros((d, count, 2)) if d * count <= MOST_PAIRS else None
        return cls(jnp.zeros((d, m, 2)), pairs, jnp.zeros((d, m, 2)))

    def change(self, flips: Neighbours, one_flip: Float[Array, ""]) -> Float[Array, "... d n"]:
        """The predicted residuals at all neighbours. `one_flip` is the mean weight of a flip."""
        of_value = shrunken(self.values, one_flip)
        here, there, coordinates = flips.here, flips.there, coordinates_of(flips)
        if self.pairs is None:
            return of_value[coordinates, here] + of_value[coordinates, there]
        # One table of all pairs, so that each neighbour is looked up only once.
        m = of_value.shape[-1]
        u, v = jnp.arange(m)[:, None], jnp.arange(m)
        of_pair = shrunken(self.pairs, one_flip)[:, pair_number(u, v)]
        table = of_value[:, :, None] + of_value[:, None, :] + of_pair
        return table[coordinates, here, there]

    def importance(self, flips: Neighbours, one_flip: Float[Array, ""]) -> Float[Array, "... d n"]:
        """How often to try each neighbour, relative to the others of the same coordinate."""
        error, size = self.errors[..., 0], self.errors[..., 1]
        total = lambda array: jnp.sum(array, axis=-1, keepdims=True)
        usual = total(error) / (total(size) + TINY)
        few = SHRINK * one_flip + TINY
        relative = (error / jnp.where(usual > 0, usual, 1) + few) / (size + few)
        relative = jnp.where(usual > 0, relative, 1) ** POWER
        return relative[coordinates_of(flips), flips.there]

    def learn(
        self,
        coordinates: Int[Array, "flips ..."],
        here: Int[Array, "flips ..."],
        there: Int[Array, "flips ..."],
        missed: Float[Array, "flips ..."],
        error: Float[Array, "flips ..."],
        weight: Float[Array, "flips ..."],
        one_flip: Float[Array, ""],
    ) -> "ValueTables":
        """The tables with flips added. `missed` is what the whole guess left of their changes."""
        d, m = self.values.shape[:2]
        add = lambda table, *where, of: table.at[where].add(
            jnp.stack([weight * of, weight], axis=-1)
        )
        of_value = shrunken(self.values, one_flip)
        leaves, takes = of_value[coordinates, here], of_value[coordinates, there]
        pairs, without_pair = self.pairs, missed
        if pairs is not None:
            pair = pair_number(here, there)
            without_pair = missed + shrunken(pairs, one_flip)[coordinates, pair]
            pairs = pairs * kept(missed.size, PAIR_MEMORY * d * pairs.shape[1])
            pairs = add(pairs, coordinates, pair, of=without_pair)
        # Each value's share is what the other value's number leaves of the residual.
        values = self.values * kept(2 * missed.size, VALUE_MEMORY * d * m)
        values = add(values, coordinates, there, of=without_pair + takes)
        values = add(values, coordinates, here, of=without_pair + leaves)
        errors = self.errors * kept(missed.size, VALUE_MEMORY * d * m)
        errors = add(errors, coordinates, there, of=error)
        return ValueTables(values, pairs, errors)


def pair_number(u: Int[Array, "..."], v: Int[Array, "..."]) -> Int[Array, "..."]:
    """The number of the unordered pair {u, v}; 0 if u = v."""
    low, high = jnp.minimum(u, v), jnp.maximum(u, v)
    return jnp.where(low < high, high * (high - 1) // 2 + low, 0)


def shrunken(sums: Float[Array, "d n 2"], one_flip: Float[Array, ""]) -> Float[Array, "d n"]:
    """Means of residuals, shrunk towards 0."""
    return sums[..., 0] / (sums[..., 1] + SHRINK * one_flip + TINY)


def kept(flips: int, memory: float) -> float:
    """The factor of the past for the `flips` of a step, if about `memory` flips are remembered, and
    at least those of `FEWEST_STEPS` steps."""
    return 1 / (1 + min(flips / memory, 1 / FEWEST_STEPS))


def coordinates_of(flips: Neighbours) -> Int[Array, "c n"]:
    """The coordinate that each slot changes."""
    c, n = flips.values.shape[-2:]
    return flips.coordinate_of(jnp.arange(math.prod((c, n)), dtype=jnp.int32)).reshape(c, n)
