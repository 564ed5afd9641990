r"""Random numbers that are right in their tails.

A uniform number of `jax.random` is a multiple of $2^{-23}$ in float32. If it is compared with a
probability below that, the event happens far too often, or never. The numbers here have all their
digits however near to 0 they are, so that events of probability $10^{-35}$ have it.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .arrays import compute_dtype

# A word with fewer than this many steps of its last digit gets another word. In float32 one number
# in 2^23 does, so the loop is seldom entered. An event of a larger probability is wrong by less
# than 1/512 of its probability.
COARSE = 256


class Uniform(NamedTuple):
    """Numbers t that are uniform on (0, 1), precise near both ends."""

    distance: Float[Array, "..."]
    """Twice the distance of t from the nearer end."""
    upper: Bool[Array, "..."]
    """Whether the nearer end is 1."""

    def below(self, log_odds: Float[Array, "..."]) -> Bool[Array, "..."]:
        r"""Whether $t < \sigma(\text{log odds})$."""
        # With t = 1 − distance / 2 this is distance > 2 σ(−log odds).
        towards = jnp.where(self.upper, -log_odds, log_odds)
        return (self.distance < 2 * jax.nn.sigmoid(towards)) != self.upper

    def mirrored(self) -> "Uniform":
        """1 − t."""
        return Uniform(self.distance, ~self.upper)


@partial(jax.jit, static_argnums=(1, 2))
def uniform(key: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Uniform:
    """Independent uniform numbers."""
    info = jnp.finfo(dtype)
    size = info.bits - 1  # random bits of a word that make the number; the last one is the side
    word_key, more_key = jax.random.split(key)
    words = lambda key: jax.random.bits(key, shape, jnp.dtype(f"uint{info.bits}"))
    # Converted by way of signed integers, which processors are faster at.
    number = lambda word: (word >> 1).astype(jnp.dtype(f"int{info.bits}")).astype(dtype)
    first = words(word_key)
    most = -info.minexp // size  # words until numbers are too small for the dtype

    def coarse(count, t):
        return t < COARSE * jnp.exp2(-size * count.astype(dtype))

    def refine(state):
        count, t = state
        digits = number(words(jax.random.fold_in(more_key, count)))
        digits = digits * jnp.exp2(-size * (count + 1).astype(dtype))
        return count + 1, jnp.where(coarse(count, t), t + digits, t)

    def unfinished(state):
        return (state[0] < most) & jnp.any(coarse(*state))

    start = jnp.asarray(1, jnp.int32), number(first) * 2.0**-size
    _, distance = jax.lax.while_loop(unfinished, refine, start)
    # Neither 0 nor 1, so that logarithms are finite.
    return Uniform(jnp.clip(distance, info.tiny, 1 - info.eps / 2), first % 2 == 1)


def logistic(key: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Float[Array, "..."]:
    r"""$\log(t / (1 - t))$ for uniform $t$."""
    t = uniform(key, shape, dtype)
    size = jnp.log(2 - t.distance) - jnp.log(t.distance)
    return jnp.where(t.upper, size, -size)


def exponential(key: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Float[Array, "..."]:
    r"""$-\log(1 - t)$ for uniform $t$, with all digits near 0. It is at most 17 in float32."""
    return -jnp.log1p(-uniform(key, shape, dtype).distance)


def gumbel(key: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Float[Array, "..."]:
    r"""$-\log e$ for exponential $e$. It is at least −3 in float32, and at most 87."""
    return -jnp.log(exponential(key, shape, dtype))


def categorical(
    key: PRNGKeyArray, logits: Float[Array, "... m"], shape: tuple[int, ...] = ()
) -> Int[Array, "..."]:
    """Independent draws of indices along the last axis, of shape `[*shape, ...]`, as the largest of
    logit plus Gumbel noise."""
    logits = logits.astype(compute_dtype(logits))
    return jnp.argmax(logits + gumbel(key, (*shape, *logits.shape), logits.dtype), axis=-1)
