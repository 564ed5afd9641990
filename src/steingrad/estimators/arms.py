"""ARMS: any number of mutually antithetic samples of bits."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..arrays import as_index
from ..fast import leave_one_out, mean_of_samples
from .base import Estimator
from .couplings import debias, mutually_antithetic


class ARMS(Estimator):
    r"""$g = \frac{\theta (1 - \theta)}{\theta - P(x_1 = x_2 = 1)} \cdot \frac1K \sum_k \left(f(x_k)
    - \frac1{K-1} \sum_{j \ne k} f(x_j)\right) s(x_k)$: RLOO on antithetic samples, with a factor
    that makes it unbiased.

    The samples share a Dirichlet vector for each bit, $D = e / \sum_k e_k$ with exponential $e_k$.
    Each $v_k = (1 - D_k)^{K-1}$ is uniform, and the bit takes its rarer value, of probability $p =
    \min(\theta, 1 - \theta)$, if $v_k < p$. Each sample is exact, and any two are negatively
    correlated. With $K = 2$ this is `DisARM`. It needs independent bits (coordinates of two
    values). `num_samples` is $K$.

    Reference: Dimitriev and Zhou, "ARMS: Antithetic-REINFORCE-Multi-Sample Gradient for Binary
    Variables", ICML 2021.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> value, grads = ARMS(num_samples=3).value_and_grad(
    ...     lambda x: jnp.sum(x, axis=-1), sg.Bernoulli(jnp.zeros(2)), key=jax.random.key(0))
    >>> grads.parameters.shape
    (2,)
    """

    num_samples: int = eqx.field(static=True, converter=as_index, default=3)
    needs: ClassVar = "is_binary"
    fewest: ClassVar = (2, "because the other samples are each sample's baseline")

    def draw(self, key, dist):
        def one(part, key):
            rare = mutually_antithetic(key, self.num_samples, -jnp.abs(part.log_odds))
            return part.state((rare == (part.log_odds < 0)).astype(jnp.int32))

        return dist.sample_by_part(one, key)

    def gradient(self, cv, dist, at):
        signal = leave_one_out(at.fx)[..., None]

        def one(part, x, _):
            log_odds = part.log_odds
            g = mean_of_samples(
                signal * (part.index(x).astype(signal.dtype) - jax.nn.sigmoid(log_odds))
            )
            return part.by_log_odds(g * debias(log_odds, self.num_samples))

        return dist.by_part(one, at.x)
