"""REBAR: REINFORCE with f at a continuous relaxation of the state as control variate."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..arrays import as_index
from .base import Estimator
from .optimizers import slow_adam
from .relaxations import (
    adapt_by_element,
    at_relaxed_points,
    initial_log_temperature,
    relaxed_estimate,
)


class Rebar(Estimator):
    r"""$g = \frac1K \sum_k (f(x_k) - c(\tilde z_k)) \, s(x_k) + \nabla_\eta c(z_k) - \nabla_\eta
    c(\tilde z_k)$ with $c(z) = \text{scale} \cdot f(\sigma(z / \text{temperature}))$.

    Bits are $x = 1[z > 0]$ with $z = \text{logits} + $ logistic noise; $\tilde z$ is drawn anew
    given $x$, and its dependence on the logits is differentiated too. Categories are the argmax of
    $z = \log q + $ Gumbel noise, with softmax in place of $\sigma$. The scale and the logarithm of
    the temperature are learned, from a scale of 1 and a temperature of 0.1.

    $f$ must accept relaxed states, and be continuous and differentiable there (twice, for the
    gradient of scale and temperature; a random $f$ for a fixed key). Otherwise the estimate is
    biased. A table lookup is not continuous, nor is sampling further discrete variables. For such
    an $f$ pass a continuous `relaxation` to `value_and_grad`, which replaces $f$ in $c$. Any
    function will do, and the closer it is to $f$, the lower the variance. Each sample takes three
    evaluations: $f$ at $x$, and $f$ or its relaxation at $z$ and $\tilde z$. It needs bits or
    one-hot categories. `num_samples` is $K$.

    Reference: Tucker, Mnih, Maddison, Lawson, Sohl-Dickstein, "REBAR: Low-variance, unbiased
    gradient estimates for discrete latent variable models", NeurIPS 2017.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> estimator = Rebar()
    >>> cv = estimator.init(jax.random.key(0))
    >>> f = lambda x: -jnp.sum((x - 0.45) ** 2, axis=-1)
    >>> value, grads = estimator.value_and_grad(
    ...     f, sg.Bernoulli(jnp.zeros(5)), cv, key=jax.random.key(1))
    >>> grads.parameters.shape, grads.cv.log_temperature.shape
    ((5,), ())
    """

    class CV(eqx.Module):
        """The learned parameters of the control variate."""

        log_temperature: Float[Array, ""]
        scale: Float[Array, ""]

    num_samples: int = eqx.field(static=True, converter=as_index, default=1)
    needs: ClassVar = "relaxable"
    needs_gradient: ClassVar = True
    relaxes: ClassVar = True

    def num_evaluations(self, dist):
        return 3 * self.num_samples

    def init(self, key, dist=None):
        return self.CV(initial_log_temperature(), jnp.ones(()))

    def cv_optimizer(self, learning_rate):
        return slow_adam(learning_rate)

    def gradient(self, cv, dist, at):
        return relaxed_estimate(at_relaxed_points("Rebar", cv, dist, at), dist, at, at.fx)

    def adapt(self, cv, dist, at):
        return adapt_by_element(self, cv, dist, at)
