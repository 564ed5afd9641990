"""Local DisARM: antithetic pairs of bits in a multi-sample bound."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..arrays import as_index
from ..estimators.couplings import antithetic_pairs
from ..fast import sum_of_samples
from .base import BoundEstimator, log_mean_exp, log_sum_of_others, relative


class LocalDisARM(BoundEstimator):
    r"""$g = \sum_k \frac12 \left( \hat L(x) - \hat L(x_{-k}, \tilde x_k) \right) (x_k - \tilde x_k)
    \, \sigma(|\text{logits}|)$.

    Each of the $K$ samples $x_k$ of the bound has an antithetic partner $\tilde x_k$, drawn as in
    `DisARM`, which takes its place in the second term. So $\log w$ is evaluated $2 K$ times. The
    bound is that of $x$. It needs independent bits. `num_samples` is $K$.

    With `symmetric=True`, $x$ and $\tilde x$ also change roles, and bound and gradient are means of
    both: no more evaluations, and less variance. This is an addition to the paper.

    Reference: Dong, Mnih, Tucker, "DisARM: An Antithetic Gradient Estimator for Binary Latent
    Variables", NeurIPS 2020, on multi-sample bounds.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> log_w = lambda x: jnp.sum(x, axis=-1) - sg.Bernoulli(jnp.zeros(3)).log_prob(x)
    >>> bound = lambda logits: sg.multi_sample_bound(
    ...     log_w, sg.Bernoulli(logits), LocalDisARM(num_samples=5), key=jax.random.key(0))
    >>> jax.grad(bound)(jnp.zeros(3)).shape
    (3,)
    """

    num_samples: int = eqx.field(static=True, converter=as_index, default=5)
    symmetric: bool = eqx.field(static=True, default=False)
    """Whether the samples and their partners also change roles."""
    needs: ClassVar = "is_binary"

    @property
    def num_points(self):
        return 2 * self.num_samples

    def draw(self, key, dist):
        def one(part, key):
            bits = antithetic_pairs(key, self.num_points, part.log_odds)
            return part.state(bits.astype(jnp.int32))

        return dist.sample_by_part(one, key)

    def bound(self, log_w):
        first, second = jnp.split(log_w, 2)
        if not self.symmetric:
            return log_mean_exp(first)
        return (log_mean_exp(first) + log_mean_exp(second)) / 2

    def gradient(self, dist, x, log_w):
        first, second = jnp.split(relative(log_w), 2)
        change = _change(first, second)
        if self.symmetric:
            change = (change - _change(second, first)) / 2

        def one(part, x, _):
            x, x_tilde = jnp.split(part.index(x).astype(change.dtype), 2)
            g = sum_of_samples(change[..., None] * (x - x_tilde))
            return part.by_log_odds(g * jax.nn.sigmoid(jnp.abs(part.log_odds)) / 2)

        return dist.by_part(one, x)


def _change(log_w, partner):
    """The bound minus the bound with the weight of each sample replaced by its partner's."""
    replaced = jnp.logaddexp(log_sum_of_others(log_w), partner)
    return jax.nn.logsumexp(log_w, axis=0) - replaced
