"""ARMS: any number of mutually antithetic samples of bits."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..arrays import as_index, compute_dtype, mean_of_others, weighted_mean
from ..distributions import Bernoulli
from .base import Estimator, check_distribution, check_num_samples
from .parts import differentiates_parts, samples_parts


class ARMS(Estimator):
    r"""$g = \frac{\theta (1 - \theta)}{\theta - P(x_1 = x_2 = 1)} \cdot \frac1K \sum_k
    \left(f(x_k) - \frac1{K-1} \sum_{j \ne k} f(x_j)\right) s(x_k)$: RLOO on antithetic samples,
    and a factor that makes it unbiased again.

    The samples share a Dirichlet vector for each bit, $D = e / \sum_k e_k$ with exponential $e_k$;
    $v_k = (1 - D_k)^{K-1}$ is uniform, and the rarer value of the bit, of probability $p =
    \min(\theta, 1 - \theta)$, is taken where $v_k < p$. Each sample is exact, and any two are
    negatively correlated. With $K = 2$ this is `DisARM`. For `Bernoulli`. `num_samples` is $K$.

    Reference: Dimitriev and Zhou, "ARMS: Antithetic-REINFORCE-Multi-Sample Gradient for Binary
    Variables", ICML 2021.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> value, grads = ARMS(num_samples=3).value_and_grad(
    ...     lambda x: jnp.sum(x, axis=-1), sg.Bernoulli(jnp.zeros(2)), key=jax.random.key(0))
    >>> grads.parameters.shape
    (2,)
    """

    num_samples: int = eqx.field(static=True, converter=as_index, default=3)
    """The number of samples, K."""
    distributions: ClassVar = (Bernoulli,)
    by_parts: ClassVar = True

    def __check_init__(self):
        check_num_samples("ARMS", self.num_samples, 2, "each sample's baseline being the others")

    @samples_parts
    def sample(self, key, dist):
        check_distribution(self, dist)
        logits = dist.parameters.astype(compute_dtype(dist.parameters))
        others = self.num_samples - 1
        e = jax.random.exponential(key, (self.num_samples, *logits.shape), logits.dtype)
        # 1 − D as a share of the total, so that it is precise where it is small.
        v = (others * mean_of_others(e) / jnp.sum(e, axis=0)) ** others
        rare = v < jax.nn.sigmoid(-jnp.abs(logits))
        return (rare == (logits < 0)).astype(dist.dtype)

    @differentiates_parts
    def gradient(self, cv, dist, at):
        logits = dist.parameters.astype(compute_dtype(dist.parameters))
        grad = weighted_mean(at.fx - mean_of_others(at.fx), dist.score(at.x))
        return grad * debias(logits, self.num_samples)


def debias(logits, num_samples):
    r"""$\theta (1 - \theta) / (\theta - P(x_1 = x_2 = 1))$.

    Both are symmetric in $\theta$ and $1 - \theta$. With $p$ the smaller of the two, $P$(both have
    the rarer value) $= \max(2 p^{1/(K-1)} - 1, 0)^{K-1}$, so that this is $(1 - p) / (1 - r)$ with
    $r = \max(2 - p^{-1/(K-1)}, 0)^{K-1} < \frac12$: nothing cancels, however small $p$ is.
    """
    others = num_samples - 1
    minus_log_p = jax.nn.softplus(jnp.abs(logits))
    root = jnp.minimum(jnp.expm1(minus_log_p / others), 1)  # p^(−1/(K−1)) − 1, at most 1
    return jax.nn.sigmoid(jnp.abs(logits)) / -jnp.expm1(others * jnp.log1p(-root))
