"""ReinMax: straight-through with the trapezoidal rule in place of a tangent. Biased."""

from typing import ClassVar

import equinox as eqx
import jax

from ..arrays import as_index
from ..fast import mean_of_samples
from .base import Estimator
from .checks import check_temperature


class ReinMax(Estimator):
    r"""$g = \frac1K \sum_k \left[ 2 J(\pi_k) - \tfrac12 J(\pi) \right] \nabla f(x_k)$ with $J(p) =
    \operatorname{diag} p - p p^\top$, $\pi = \operatorname{softmax}(\eta)$ and $\pi_k = \frac12
    (\operatorname{softmax}(\eta / \tau) + x_k)$. **Biased.**

    The exact gradient is made of differences $f(y) - f(x)$, where $x$ and $y$ differ in one
    coordinate. With the default temperature $\tau = 1$, the mean of $g$ has $\frac12 (\nabla f(x) +
    \nabla f(y))^\top (y - x)$, Heun's second-order rule, in their place. So the mean of $g$ is
    exact if $f$ is quadratic in each coordinate, given the others. This holds for bits (as two
    categories), categories and real values. It needs independent coordinates. `num_samples` is $K$.

    Reference: Liu, Dong, Liu, Yu, Gao, "Bridging Discrete and Backpropagation: Straight-Through
    and Beyond", NeurIPS 2023, algorithm 2.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> value, grads = ReinMax(num_samples=2).value_and_grad(
    ...     lambda x: jnp.sum(x**2, axis=-1), sg.Bernoulli(jnp.zeros(3)), key=jax.random.key(0))
    >>> grads.parameters.shape
    (3,)
    """

    num_samples: int = eqx.field(static=True, converter=as_index, default=1)
    temperature: int | float = eqx.field(static=True, default=1.0)
    """The temperature τ of the softmax that is averaged with each sample."""
    biased: ClassVar[bool] = True
    needs: ClassVar = "is_product"
    needs_gradient: ClassVar = True

    def __check_init__(self):
        check_temperature("ReinMax", self.temperature)

    def gradient(self, cv, dist, at):
        def one(part, x, dfx, _):
            halfway = (part.soften(self.temperature) + part.corner(x)) / 2
            second = jax.tree.map(mean_of_samples, part.through(halfway, dfx))
            first = part.pull_mean(mean_of_samples(dfx))
            return jax.tree.map(lambda s, f: 2 * s - f / 2, second, first)

        return dist.by_part(one, at.x, at.dfx)
