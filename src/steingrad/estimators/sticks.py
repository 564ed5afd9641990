"""Categories as sequences of bits, so that a coupling of bits becomes one of categories."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..arrays import log_softmax, take
from ..distributions.base import Distribution
from .couplings import antithetic_pairs


class Sticks(NamedTuple):
    r"""A category as the position of the first bit that is 1: $x = c$ has $b_1 = \dots = b_{c-1} =
    0$, $b_c = 1$, where $b_c$ is 1 with probability $\phi_c = p_c / \sum_{c' \ge c} p_{c'}$.

    The categories are sorted from the least probable to the most. So the last $\phi_c$ is 1, all
    the others are at most $\frac12$, and all but the last two are at most $\frac13$.
    """

    order: Int[Array, "... m"]  # which category each stick stands for
    rank: Int[Array, "... m"]  # which stick stands for each category: the inverse
    log_probs: Float[Array, "... m"]  # log p of each stick's category
    log_tail: Float[Array, "... m"]  # log Σ_{c' ≥ c} p_c'

    @property
    def phi(self) -> Float[Array, "... m"]:
        return jnp.exp(self.log_probs - self.log_tail)

    @property
    def logits(self) -> Float[Array, "... n"]:
        """log(φ / (1 − φ)) for all sticks but the last."""
        return self.log_probs[..., :-1] - self.log_tail[..., 1:]


def break_sticks(dist: Any) -> Sticks:
    logits = dist.value_logits
    order = jnp.argsort(logits, axis=-1)
    log_probs = take(log_softmax(logits), order)
    log_tail = jax.lax.cumlogsumexp(log_probs, axis=log_probs.ndim - 1, reverse=True)
    return Sticks(order, jnp.argsort(order, axis=-1), log_probs, log_tail)


def first_of(sticks: Sticks, bits: Bool[Array, "... n"]) -> Int[Array, "..."]:
    """The category of the first bit that is 1; the last category if all bits are 0."""
    last = jnp.ones_like(bits[..., :1])
    first = jnp.argmax(jnp.concatenate([bits, last], axis=-1), axis=-1)
    return take(sticks.order, first[..., None])[..., 0]


def antithetic_categories(key: PRNGKeyArray, dist: Any, num_samples: int) -> Float[Array, "..."]:
    """Samples in antithetic pairs: bit by bit as `antithetic_pairs`."""

    def one(part, key):
        sticks = break_sticks(part)
        bits = antithetic_pairs(key, num_samples, sticks.logits)
        return part.state(first_of(sticks, bits))

    return dist.sample_by_part(one, key)


def stick_of(dist: Distribution, sticks: Sticks, x: Float[Array, "..."]) -> Int[Array, "... d"]:
    """The stick that stands for each coordinate's category."""
    return take(sticks.rank, dist.index(x)[..., None])[..., 0]


def pair_weight(
    sticks: Sticks, differ: Float[Array, "... n"], both: Float[Array, "... n"]
) -> Float[Array, "... m"]:
    r"""$r = p_a p_b / P(a, b)$, the importance weight of a pair of categories whose bits are
    coupled stick by stick. The weight depends on the earlier of the two sticks alone.

    Before the earlier stick $a$ both sequences have zeros, at $a$ they differ, and after $a$ only
    the other sequence goes on. So $P(a, b) = \prod_{c < a} P_c(0, 0) \cdot P_a(1, 0) \cdot p_b /
    \sum_{c > a} p_c$, and $r_a = \frac{\phi_a (1 - \phi_a)}{P_a(1, 0)} \prod_{c<a} \frac{(1 -
    \phi_c)^2} {P_c(0, 0)}$. `differ` is the first factor, and `both` is $P_c(1, 1)$, so that
    $P_c(0, 0) = 1 - 2 \phi_c + P_c(1, 1)$. Nothing is divided by 0: in ascending order $P_c(0, 0)
    \ge \frac13$ for all $c$ but the last two, and only these occur in the product.
    """
    phi = sticks.phi[..., :-2]
    both = both[..., :-1]
    # (1 − φ)² / P(0, 0), written as 1 plus the difference from 1.
    factors = 1 + (phi**2 - both) / (1 - 2 * phi + both)
    one = jnp.ones_like(sticks.phi[..., :1])
    before = jnp.cumprod(jnp.concatenate([one, factors], axis=-1), axis=-1)
    # Two samples of the last category differ at no stick, so their weight is 0.
    return jnp.concatenate([before * differ, 0 * one], axis=-1)
