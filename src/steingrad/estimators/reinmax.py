"""ReinMax: straight-through with a trapezoid in place of a tangent. Biased."""

from typing import ClassVar

import equinox as eqx
import jax

from ..arrays import as_index, mean_of_samples
from ..distributions import Bernoulli, Categorical, Ordinal
from .base import Estimator, check_num_samples
from .parts import differentiates_parts
from .straight_through import by_value, probabilities, through


class ReinMax(Estimator):
    r"""$g = \frac1K \sum_k \left[ 2 J(\pi_k) - \tfrac12 J(\pi) \right] \nabla f(x_k)$ with $J(p) =
    \operatorname{diag} p - p p^\top$, $\pi = \operatorname{softmax}(\eta)$ and $\pi_k = \frac12
    (\operatorname{softmax}(\eta / \tau) + x_k)$. **Biased.**

    With temperature $\tau = 1$, the default, its mean has $\frac12 (\nabla f(x) + \nabla f(y))^\top
    (y - x)$, Heun's second-order rule, where the exact gradient has $f(y) - f(x)$, $x$ and $y$
    differing in one coordinate. So it is exact in expectation where $f$ is quadratic in each
    coordinate, given the others; whether these are bits, categories or real values makes no
    difference, nor how many categories there are. A bit is two categories. For `Bernoulli`,
    `Categorical` and `Ordinal`. `num_samples` is $K$.

    Reference: Liu, Dong, Liu, Yu, Gao, "Bridging Discrete and Backpropagation: Straight-Through
    and Beyond", NeurIPS 2023, algorithm 2.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> value, grads = ReinMax(num_samples=2).value_and_grad(
    ...     lambda x: jnp.sum(x**2, axis=-1), sg.Bernoulli(jnp.zeros(3)), key=jax.random.key(0))
    >>> grads.parameters.shape
    (3,)
    """

    num_samples: int = eqx.field(static=True, converter=as_index, default=1)
    """The number of samples, K."""
    temperature: int | float = eqx.field(static=True, default=1.0)
    """The temperature τ of the softmax that is averaged with each sample."""
    biased: ClassVar[bool] = True
    distributions: ClassVar = (Bernoulli, Categorical, Ordinal)
    by_parts: ClassVar = True

    def __check_init__(self):
        check_num_samples("ReinMax", self.num_samples, 1, "the points at which f is known")
        check_temperature("ReinMax", self.temperature)

    @property
    def needs_gradient(self):
        return True

    @differentiates_parts
    def gradient(self, cv, dist, at):
        dfx, p = by_value(dist, at.dfx), probabilities(dist)
        x = at.x.astype(p.dtype)
        if isinstance(dist, Ordinal):
            x = jax.nn.one_hot(dist.index(at.x), dist.num_values, dtype=p.dtype)
        halfway = (probabilities(dist, self.temperature) + x) / 2
        second = 2 * mean_of_samples(through(dist, halfway, dfx))
        return second - through(dist, p, mean_of_samples(dfx)) / 2


def check_temperature(name: str, temperature: int | float) -> None:
    if not temperature > 0:
        raise ValueError(f"{name} needs a temperature above 0, but was given {temperature}.")
