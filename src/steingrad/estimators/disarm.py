"""DisARM: antithetic pairs of bits."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..arrays import as_index, compute_dtype, weighted_mean
from ..distributions import Bernoulli
from .base import Estimator, check_distribution, check_pairs
from .parts import differentiates_parts, samples_parts


class DisARM(Estimator):
    r"""$g = \frac12 \, (f(x) - f(\tilde x)) \, (x - \tilde x) \, \sigma(|\text{logits}|)$, averaged
    over $K/2$ antithetic pairs.

    A pair shares one uniform number for each bit, $x = 1[u > 1 - \theta]$ and $\tilde x = 1[u <
    \theta]$: each is an exact sample, and they differ as often as two samples can. The first half
    of the $K$ samples holds every $x$, the second every $\tilde x$. For `Bernoulli`. `num_samples`
    is $K$.

    Reference: Dong, Mnih, Tucker, "DisARM: An Antithetic Gradient Estimator for Binary Latent
    Variables", NeurIPS 2020; Yin, Ho, Yan, Qian, Zhou 2020 (U2G).

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> DisARM(num_samples=2).sample(jax.random.key(0), sg.Bernoulli(jnp.zeros(4)))
    Array([[1., 1., 0., 0.],
           [0., 0., 1., 1.]], dtype=float32)
    >>> value, grads = DisARM(num_samples=4).value_and_grad(
    ...     lambda x: jnp.sum(x, axis=-1), sg.Bernoulli(jnp.zeros(2)), key=jax.random.key(0))
    >>> grads.parameters.shape
    (2,)
    """

    num_samples: int = eqx.field(static=True, converter=as_index, default=2)
    """The number of samples, K."""
    distributions: ClassVar = (Bernoulli,)
    by_parts: ClassVar = True

    def __check_init__(self):
        check_pairs("DisARM", self.num_samples, instead="ARMS")

    @samples_parts
    def sample(self, key, dist):
        check_distribution(self, dist)
        logits = dist.parameters.astype(compute_dtype(dist.parameters))
        theta = jax.nn.sigmoid(logits)
        u = jax.random.uniform(key, (self.num_samples // 2, *logits.shape), logits.dtype)
        # u > 1 − θ, written with 1 − u, which is exact where 1 − θ is rounded.
        return jnp.concatenate([1 - u < theta, u < theta]).astype(dist.dtype)

    @differentiates_parts
    def gradient(self, cv, dist, at):
        logits = dist.parameters.astype(compute_dtype(dist.parameters))
        x, x_tilde = jnp.split(at.x.astype(logits.dtype), 2)
        fx, fx_tilde = jnp.split(at.fx, 2)
        return weighted_mean(fx - fx_tilde, x - x_tilde) * jax.nn.sigmoid(jnp.abs(logits)) / 2
