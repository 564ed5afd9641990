"""Categories as sequences of bits, so that what couples bits couples categories."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..arrays import take
from ..distributions.base import Distribution


class Sticks(NamedTuple):
    r"""A category is the first bit that is 1: $x = c$ has $b_1 = \dots = b_{c-1} = 0$, $b_c = 1$,
    where $b_c$ is 1 with probability $\phi_c = p_c / \sum_{c' \ge c} p_{c'}$.

    The categories are taken from the least probable to the most, so that $\phi_c \le \frac12$ for
    all but the last, which is 1, and $\phi_c \le \frac13$ for all but the last two.
    """

    order: Int[Array, "... m"]  # which category each stick stands for
    rank: Int[Array, "... m"]  # which stick stands for each category: the inverse
    log_probs: Float[Array, "... m"]  # of the sticks' categories
    log_tail: Float[Array, "... m"]  # log Σ_{c' ≥ c} p_c'

    @property
    def phi(self) -> Float[Array, "... m"]:
        return jnp.exp(self.log_probs - self.log_tail)

    @property
    def logits(self) -> Float[Array, "... n"]:
        """log(φ / (1 − φ)), of all but the last."""
        return self.log_probs[..., :-1] - self.log_tail[..., 1:]


def break_sticks(dist: Any) -> Sticks:
    logits = dist.value_logits
    order = jnp.argsort(logits, axis=-1)
    log_probs = take(jax.nn.log_softmax(logits), order)
    log_tail = jax.lax.cumlogsumexp(log_probs, axis=log_probs.ndim - 1, reverse=True)
    return Sticks(order, jnp.argsort(order, axis=-1), log_probs, log_tail)


def first_of(sticks: Sticks, bits: Bool[Array, "... n"]) -> Int[Array, "..."]:
    """The category of the first bit that is 1, the last category if there is none."""
    last = jnp.ones_like(bits[..., :1])
    first = jnp.argmax(jnp.concatenate([bits, last], axis=-1), axis=-1)
    return take(sticks.order, first[..., None])[..., 0]


def stick_of(dist: Distribution, sticks: Sticks, x: Float[Array, "..."]) -> Int[Array, "... d"]:
    """The stick at which each coordinate of a state broke."""
    return take(sticks.rank, dist.index(x)[..., None])[..., 0]


def pair_weight(
    sticks: Sticks, differ: Float[Array, "... n"], both: Float[Array, "... n"]
) -> Float[Array, "... m"]:
    r"""$r = p_a p_b / P(a, b)$, the importance weight of a pair of categories whose bits are
    coupled stick by stick: it depends on the first of the two sticks alone.

    Up to stick $a$ both have zeros, there they differ, and from there on one of them is free, so
    $P(a, b) = \prod_{c < a} P_c(0, 0) \cdot P_a(1, 0) \cdot p_b / \sum_{c > a} p_c$ for the earlier
    stick $a$, and $r_a = \frac{\phi_a (1 - \phi_a)}{P_a(1, 0)} \prod_{c<a} \frac{(1 - \phi_c)^2}
    {P_c(0, 0)}$. `differ` is the first factor, `both` is $P_c(1, 1)$, so that $P_c(0, 0) = 1 - 2
    \phi_c + P_c(1, 1)$. Where $a$ is the last but one, no factor is left that could be a division
    by 0: in ascending order $P_c(0, 0) \ge \frac13$ before.
    """
    phi = sticks.phi[..., :-2]
    both = both[..., :-1]
    # (1 − φ)² / P(0, 0), written as one and the rest.
    factors = 1 + (phi**2 - both) / (1 - 2 * phi + both)
    one = jnp.ones_like(sticks.phi[..., :1])
    before = jnp.cumprod(jnp.concatenate([one, factors], axis=-1), axis=-1)
    # Two samples of the last category have no stick at which they differ, and no weight.
    return jnp.concatenate([before * differ, 0 * one], axis=-1)
