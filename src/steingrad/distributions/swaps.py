"""Changes of a subset of fixed size: one bit, together with a random partner."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..arrays import take
from .neighbours import Neighbours, Slope

# This number stands for log 0. It is far from all other numbers, and a difference is not NaN.
LOG_ZERO = -1e30


class Swaps(Neighbours):
    r"""Changes of one bit of a `Subset` and of a random partner, which keep the number of ones.

    $\partial_i E[f] = \mu_i (1 - \mu_i) (E[f \mid x_i = 1] - E[f \mid x_i = 0])$. If $x_i = 1$, let
    $i$ leave and let a partner $j$, drawn with `chances`, enter: the new state has the distribution
    of $x$ given $x_i = 0$. The same holds with 0 and 1 exchanged. So $\mu_i (1 - \mu_i)$ times the
    change of $f$, with a minus sign if $x_i = 1$, has the mean $\partial_i E[f]$.
    """

    mean: Any

    def __init__(self, dist: Any, x: Float[Array, "... d"], mean: Float[Array, "*batch d"]):
        self.dist, self.x, self.mean, self.coordinates = dist, x, mean, None
        self.values = (x < 0.5).astype(jnp.int32)[..., None]

    def conditional(self):
        return jnp.where(self.x > 0.5, 1 - self.mean, self.mean)[..., None]

    @property
    def here(self):
        return 1 - self.values

    def squared_step(self):
        return jnp.ones(self.values.shape, self.x.dtype)

    def first_order(self, slope):
        # An average over partners, as if the partner did not depend on the bit.
        gradient, member = self._gradient(slope), self.x > 0.5
        entering, leaving = jnp.where(member, 0, self.mean), jnp.where(member, 1 - self.mean, 0)
        mean_of = lambda w: jnp.sum(w * gradient, -1) / (jnp.sum(w, -1) + 1e-30)
        enters, leaves = (mean_of(w)[..., None] for w in (entering, leaving))
        return jnp.where(member, enters - gradient, gradient - leaves)[..., None]

    def local_gradient(self, change, conditional):
        sign = jnp.where(self.x > 0.5, -1, 1).astype(change.dtype)
        return (self.mean * (1 - self.mean)).astype(change.dtype) * sign * change[..., 0]

    def moved(self, slots, partners):
        elements = jnp.arange(self.mean.shape[-1], dtype=jnp.int32)
        assert partners is not None
        moved = (elements == slots[..., None]) ^ (elements == partners[..., None])
        return jnp.where(moved, 1 - self.x, self.x)

    @property
    def has_partners(self):
        return True

    def draw_partners(self, slots, key):
        # From one uniform number for each slot. In float32 the probability of a partner is wrong by
        # up to 10⁻⁷, which changes the mean of an estimate by that part of the change of f.
        probability = self.chances(slots)
        below = jnp.cumsum(probability, axis=-1)
        uniform = jax.random.uniform(key, slots.shape, below.dtype)[..., None]
        # Rounding errors must not choose a partner of probability 0.
        chosen = (below > uniform * below[..., -1:]) & (probability > 0)
        partner = jnp.argmax(chosen, axis=-1).astype(jnp.int32)
        # A bit that cannot change is its own partner, and stays.
        return jnp.where(below[..., -1] > 0, partner, slots)

    def by_chance(self, slots, partners, slope):
        gradient = self._gradient(slope)
        # In a Joint, partners of other parts may be out of range; their results are not used.
        partners = jnp.clip(partners, 0, self.mean.shape[-1] - 1)
        at = lambda array, element: take(array[None], element[..., None])[..., 0]
        sign = jnp.where(at(self.x, slots) > 0.5, 1, -1).astype(gradient.dtype)
        partner = at(gradient, partners)
        change = sign * (partner - at(gradient, slots))
        expected = jnp.sum(self.chances(slots) * gradient, axis=-1)
        guessed = at(self.first_order(slope)[..., 0], slots)
        return change - guessed, sign * (partner - expected)

    def _gradient(self, slope: Slope) -> Float[Array, "... d"]:
        if slope.effect is not None:
            difference = slope.effect[:, 1] - slope.effect[:, 0]
            return jnp.broadcast_to(difference.astype(self.mean.dtype), self.x.shape)
        # Elements that are never members get 0, because the gradient may be infinite there.
        return jnp.where(self.mean > 0, slope.gradient.astype(self.mean.dtype), 0)

    def chances(self, slots: Int[Array, "flips ..."]) -> Float[Array, "flips ... d"]:
        r"""The probability that each element is the partner of bit $i$.

        Among the elements other than $i$, draw a subset $A$ of $k - 1$ and a subset $B$ of $k$
        elements, from the last element to the first, with the same uniform numbers. An element is
        more likely to be a member if more members are missing. So $B$ has the same members as $A$
        and one more, the partner. One of the two subsets is known from $x$, and these are the
        probabilities given that subset.
        """
        d = self.mean.shape[-1]
        elements = jnp.arange(d, dtype=jnp.int32)
        bit = elements == slots[..., None]
        others = self.dist.with_parameters(jnp.where(bit, LOG_ZERO, self.dist.logits))
        include = jnp.moveaxis(others.inclusion, 0, -2)  # [..., d, missing]
        known = (~bit & (self.x > 0.5)).astype(jnp.int32)
        missing = jnp.cumsum(known, axis=-1)
        smaller = jnp.sum(jnp.where(bit, self.x, 0), -1, keepdims=True) > 0.5  # A is known
        of_a = jnp.where(smaller, missing, missing - 1)
        at = lambda r: take(include, jnp.clip(r, 0, self.dist.k)[..., None])[..., 0]
        p_a, p_b = at(of_a), at(of_a + 1)
        joins = (p_b - p_a) / jnp.maximum(1 - p_a, 1e-30)
        parts = 1 - p_a / jnp.maximum(p_b, 1e-30)
        hazard = jnp.where(smaller, jnp.where(known > 0, 0, joins), jnp.where(known > 0, parts, 0))
        hazard = jnp.clip(jnp.where(bit, 0, hazard), 0, 1)
        after = jnp.cumprod(1 - hazard[..., ::-1], axis=-1)[..., ::-1]
        survives = jnp.concatenate([after[..., 1:], jnp.ones_like(after[..., :1])], axis=-1)
        partners = hazard * survives
        total = jnp.sum(partners, axis=-1, keepdims=True)
        return partners / jnp.where(total > 0, total, 1)
