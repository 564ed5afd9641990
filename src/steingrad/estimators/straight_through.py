"""Straight-through: the gradient of f at a sample, passed on to the probabilities. Biased."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..arrays import as_index, compute_dtype, mean_of_samples
from ..distributions import Bernoulli, Categorical, Ordinal
from ..distributions.base import Distribution
from .base import Estimator, check_num_samples
from .parts import differentiates_parts


class StraightThrough(Estimator):
    r"""$g = \frac1K \sum_k J(\pi) \, \nabla f(x_k)$: as if the sample were its mean $\pi$, whose
    derivative is $J(\pi) = \operatorname{diag} \pi - \pi \pi^\top$, or $\theta (1 - \theta)$ for a
    bit. **Biased.**

    It takes $f(y) - f(x)$ for $\nabla f(x)^\top (y - x)$, so it is exact in expectation where $f$
    is affine in each coordinate, given the others (products of bits too), and nowhere else in
    general. For `Bernoulli`, `Categorical` and `Ordinal`. `num_samples` is $K$.

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
    """The number of samples, K."""
    biased: ClassVar[bool] = True
    distributions: ClassVar = (Bernoulli, Categorical, Ordinal)
    by_parts: ClassVar = True

    def __check_init__(self):
        check_num_samples("StraightThrough", self.num_samples, 1, "the points at which f is known")

    @property
    def needs_gradient(self):
        return True

    @differentiates_parts
    def gradient(self, cv, dist, at):
        # The Jacobian is the same for every sample.
        return through(dist, probabilities(dist), mean_of_samples(by_value(dist, at.dfx)))


def probabilities(dist: Distribution, temperature: int | float = 1.0) -> Float[Array, "..."]:
    r"""$\sigma(\eta / \tau)$ of bits, $\operatorname{softmax}(\eta / \tau)$ of categories."""
    logits = dist.parameters.astype(compute_dtype(dist.parameters)) / temperature
    return jax.nn.sigmoid(logits) if isinstance(dist, Bernoulli) else jax.nn.softmax(logits)


def by_value(dist: Distribution, dfx: Float[Array, "..."] | None) -> Float[Array, "..."]:
    r"""$\nabla f$ with respect to what $\pi$ is the mean of: bits, or one-hot vectors."""
    assert dfx is not None  # checked by the base class
    if isinstance(dist, Ordinal):
        return dfx[..., None] * jnp.asarray(dist.values, dfx.dtype)
    return dfx


def through(
    dist: Distribution, p: Float[Array, "..."], gradient: Float[Array, "..."]
) -> Float[Array, "..."]:
    r"""$J(p) \nabla = p \odot (\nabla - p^\top \nabla)$; for a bit, where the other category has no
    gradient, $p (1 - p) \nabla$."""
    gradient = gradient.astype(p.dtype)
    if isinstance(dist, Bernoulli):
        return p * (1 - p) * gradient
    return p * (gradient - jnp.sum(p * gradient, axis=-1, keepdims=True))
