"""RODEO: REINFORCE leave-one-out with control variates from discrete Stein operators."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..arrays import expand, mean_of_others, mean_of_samples, weighted_mean
from ..operators import Gibbs, Operator
from ..surrogates import MLPSurrogate, Surrogate
from .base import Estimator, check_num_samples


class Rodeo(Estimator):
    r"""$g = \frac1K \sum_k \left[ \left(f(x_k) - \frac1{K-1} \sum_{j \ne k} \big(f(x_j) +
    \alpha (A h_j)(x_j)\big)\right) s(x_k) + \beta \, (A (h^*_k s))(x_k) \right]$.

    $A$ is a discrete Stein operator (default: Gibbs) and the surrogates $h_k$, $h^*_k$ (default: a
    small network) see every sample but $x_k$; $\alpha$ and $\beta$ are learned and start at 0, as
    plain RLOO. $f$ is evaluated $K$ times, never at a neighbour.

    `loo`, `local` and `global_` switch off $f(x_j)$ in the baseline, the local control variate
    $\alpha (A h_j)(x_j)$, and the global one $\beta (A(h^*_k s))(x_k)$.

    Reference: Shi, Zhou, Hwang, Titsias, Mackey, "Gradient Estimation with Discrete Stein
    Operators", NeurIPS 2022, equation 13.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> estimator = Rodeo(num_samples=2, operator=sg.Barker())
    >>> cv = estimator.init(jax.random.key(0))
    >>> f = lambda x: -jnp.sum((x - 0.45) ** 2, axis=-1)
    >>> value, grads = estimator.value_and_grad(
    ...     f, sg.Bernoulli(jnp.zeros(5)), cv, key=jax.random.key(1))
    >>> grads.parameters.shape, grads.cv.alpha.shape
    ((5,), ())
    """

    class CV(eqx.Module):
        """What is learned while it runs."""

        surrogate: Any
        alpha: Float[Array, ""]
        beta: Float[Array, ""]

    num_samples: int = eqx.field(static=True, default=2)
    operator: Operator = Gibbs()
    surrogate: Surrogate = MLPSurrogate()
    loo: bool = eqx.field(static=True, default=True)
    local: bool = eqx.field(static=True, default=True)
    global_: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        check_num_samples(
            "Rodeo", self.num_samples, 2, "each sample's control variates being made of the others"
        )

    @property
    def needs_gradient(self):
        return (self.local or self.global_) and self.surrogate.needs_gradient

    def num_evaluations(self, dist):
        if not self.surrogate.needs_objective:
            return self.num_samples
        index = jnp.zeros((*dist.batch_shape, dist.num_coordinates), jnp.int32)
        row = jax.eval_shape(
            lambda key: self.operator.neighbours(dist, dist.state(index), key=key),
            jax.random.key(0),
        )
        return self.num_samples * (1 + math.prod(row.values.shape[-2:]))

    def init(self, key, dist=None):
        return self.CV(self.surrogate.init(key), jnp.zeros(()), jnp.zeros(()))

    def gradient(self, cv, dist, at):
        x, fx = at.x, at.fx
        score = dist.score(x)
        baseline = mean_of_others(fx) if self.loo else jnp.zeros_like(fx)
        if not (self.local or self.global_):
            return weighted_mean(fx - baseline, score)

        row = self.operator.neighbours(dist, x, key=at.key)
        h, h_star = self.surrogate.evaluate(cv.surrogate, row, at)
        if self.local:
            alpha = cv.alpha.astype(fx.dtype)
            baseline = baseline + mean_of_others(alpha * row.apply(*h))
        if not self.global_:
            return weighted_mean(fx - baseline, score)
        beta = cv.beta.astype(fx.dtype)
        signal, stein_score = fx - baseline, row.apply_to_score(*h_star, score, x)
        terms = lambda s, a: mean_of_samples(expand(signal, s.ndim) * s + beta * a)
        return jax.tree.map(terms, score, stein_score)
