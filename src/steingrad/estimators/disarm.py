"""DisARM: antithetic pairs of bits."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..arrays import as_index
from ..fast import mean_of_samples
from .base import Estimator
from .checks import check_pairs
from .couplings import antithetic_pairs


class DisARM(Estimator):
    r"""$g = \frac12 \, (f(x) - f(\tilde x)) \, (x - \tilde x) \, \sigma(|\text{logits}|)$, averaged
    over $K/2$ antithetic pairs.

    A pair shares one uniform number for each bit, $x = 1[u > 1 - \theta]$ and $\tilde x = 1[u <
    \theta]$: each is an exact sample, and the two differ as often as two samples can. The first
    half of the $K$ samples holds every $x$, the second every $\tilde x$. It needs independent bits
    (coordinates of two values). `num_samples` is $K$.

    Reference: Dong, Mnih, Tucker, "DisARM: An Antithetic Gradient Estimator for Binary Latent
    Variables", NeurIPS 2020; Yin, Ho, Yan, Qian, Zhou 2020 (U2G).

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> DisARM(num_samples=2).sample(jax.random.key(0), sg.Bernoulli(jnp.zeros(4)))
    Array([[1., 0., 0., 0.],
           [0., 1., 1., 1.]], dtype=float32)
    >>> value, grads = DisARM(num_samples=4).value_and_grad(
    ...     lambda x: jnp.sum(x, axis=-1), sg.Bernoulli(jnp.zeros(2)), key=jax.random.key(0))
    >>> grads.parameters.shape
    (2,)
    """

    num_samples: int = eqx.field(static=True, converter=as_index, default=2)
    needs: ClassVar = "is_binary"

    def __check_init__(self):
        check_pairs("DisARM", self.num_samples, instead="ARMS")

    def draw(self, key, dist):
        def one(part, key):
            bits = antithetic_pairs(key, self.num_samples, part.log_odds)
            return part.state(bits.astype(jnp.int32))

        return dist.sample_by_part(one, key)

    def gradient(self, cv, dist, at):
        fx, fx_tilde = jnp.split(at.fx, 2)

        def one(part, x, _):
            x, x_tilde = jnp.split(part.index(x).astype(fx.dtype), 2)
            g = mean_of_samples((fx - fx_tilde)[..., None] * (x - x_tilde))
            return part.by_log_odds(g * jax.nn.sigmoid(jnp.abs(part.log_odds)) / 2)

        return dist.by_part(one, at.x)
