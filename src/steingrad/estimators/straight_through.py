"""Straight-through: the gradient of f at a sample, applied to the mean of the sample. Biased."""

from typing import ClassVar

import equinox as eqx

from ..arrays import as_index
from ..fast import mean_of_samples
from .base import Estimator


class StraightThrough(Estimator):
    r"""$g = \nabla_\eta \left( \frac1K \sum_k \nabla f(x_k)^\top \mu_\eta \right)$: the sample is
    differentiated like its mean $\mu = E[x]$. **Biased.**

    The derivative of the mean is $\theta (1 - \theta)$ for a bit and $J(\pi) = \operatorname{diag}
    \pi - \pi \pi^\top$ for a category with the probabilities $\pi$. The estimate has $\nabla
    f(x)^\top (y - x)$ in place of $f(y) - f(x)$. So with independent coordinates its mean is exact
    if $f$ is affine in each coordinate, given the others (as a product of bits is), and in general
    not otherwise. It needs a distribution whose mean is known. `num_samples` is $K$.

    Reference: Bengio, Léonard, Courville, "Estimating or Propagating Gradients Through Stochastic
    Neurons for Conditional Computation", 2013; Hinton 2012.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> q, f = sg.Bernoulli(jnp.zeros(2)), lambda x: jnp.sum(3.0 * x, axis=-1)
    >>> value, grads = StraightThrough().value_and_grad(f, q, key=jax.random.key(0))
    >>> grads.parameters, sg.exact_gradient(f, q)
    (Array([0.75, 0.75], dtype=float32), Array([0.75, 0.75], dtype=float32))
    >>> StraightThrough()
    StraightThrough() (biased)
    """

    num_samples: int = eqx.field(static=True, converter=as_index, default=1)
    biased: ClassVar[bool] = True
    needs: ClassVar = "has_mean"
    needs_gradient: ClassVar = True

    def gradient(self, cv, dist, at):
        assert at.dfx is not None
        return dist.pull_mean(mean_of_samples(at.dfx))
