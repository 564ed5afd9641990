"""Coupled samples of bits: each sample is exact by itself, and two samples are seldom equal."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..arrays import expand
from ..draws import exponential, uniform
from ..fast import sum_of_samples


def antithetic_pairs(
    key: PRNGKeyArray, num_samples: int, log_odds: Float[Array, "..."]
) -> Bool[Array, "samples ..."]:
    r"""$K/2$ pairs of bits with one uniform number for each pair, $b = 1[u > 1 - p]$ and $\tilde b
    = 1[u < p]$, from the logits of $p$. The first half holds every $b$, the second every $\tilde
    b$."""
    u = uniform(key, (num_samples // 2, *log_odds.shape), log_odds.dtype)
    # u > 1 − p is written as 1 − u < p.
    return jnp.concatenate([u.mirrored().below(log_odds), u.below(log_odds)])


def mutually_antithetic(
    key: PRNGKeyArray, num_samples: int, log_odds: Float[Array, "..."]
) -> Bool[Array, "samples ..."]:
    r"""$K$ bits of probability $p \le \frac12$ that share a Dirichlet vector $D = e / \sum_k e_k$
    with exponential $e_k$: $v_k = (1 - D_k)^{K-1}$ is uniform, and $b_k = 1[v_k < p]$, from the
    logits of $p$."""
    e = exponential(key, (num_samples, *log_odds.shape), log_odds.dtype)
    total = sum_of_samples(e)
    # 1 − D is computed as a share of the total. It is small only for the largest e, where the sum
    # of the others must not be a difference.
    index = jnp.argmax(e, axis=0)
    largest = expand(jnp.arange(num_samples, dtype=index.dtype), e.ndim) == index
    others = jnp.where(largest, sum_of_samples(jnp.where(largest, 0, e)), total - e)
    return others / total < jnp.exp(jax.nn.log_sigmoid(log_odds) / (num_samples - 1))


def both_rare(log_odds: Float[Array, "..."], num_samples: int) -> Float[Array, "..."]:
    r"""$P(b_1 = b_2 = 1) = \max(2 p^{1/(K-1)} - 1, 0)^{K-1}$ of `mutually_antithetic` bits."""
    root = jnp.exp(jax.nn.log_sigmoid(log_odds) / (num_samples - 1))
    return jnp.maximum(2 * root - 1, 0) ** (num_samples - 1)


def debias(log_odds: Float[Array, "..."], num_samples: int) -> Float[Array, "..."]:
    r"""$\theta (1 - \theta) / (\theta - P(b_1 = b_2 = 1))$ of `mutually_antithetic` bits.

    Numerator and denominator are symmetric in $\theta$ and $1 - \theta$. With $p$ the smaller of
    the two, the ratio is $(1 - p) / (1 - r)$ with $r = \max(2 - p^{-1/(K-1)}, 0)^{K-1} < \frac12$:
    no digits cancel, however small $p$ is.
    """
    others = num_samples - 1
    minus_log_p = jax.nn.softplus(jnp.abs(log_odds))
    root = jnp.minimum(jnp.expm1(minus_log_p / others), 1)  # p^(−1/(K−1)) − 1, at most 1
    return jax.nn.sigmoid(jnp.abs(log_odds)) / -jnp.expm1(others * jnp.log1p(-root))
