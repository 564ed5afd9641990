"""The local expectation gradient: the exact sum over each coordinate's own values."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..arrays import as_index
from ..fast import mean_of_samples
from .base import Estimator


class LocalExpectation(Estimator):
    r"""$g_i = \frac1K \sum_k \sum_v q(x_i = v) \, f(x_k \text{ with } x_i = v) \, s_i(v)$.

    Component $i$ sums over all values of coordinate $i$; only the other coordinates are sampled.
    $f$ is evaluated at every neighbour of each sample, $K (1 + d (m - 1))$ times in all. So this is
    for a cheap $f$, or a reference for how low the variance can be. It needs independent
    coordinates. `num_samples` is $K$.

    Reference: Titsias and Lázaro-Gredilla, "Local Expectation Gradients for Black Box Variational
    Inference", NeurIPS 2015.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> q = sg.Bernoulli(jnp.zeros(3))
    >>> value, grads = LocalExpectation().value_and_grad(
    ...     lambda x: jnp.sum(x, axis=-1), q, key=jax.random.key(0))
    >>> grads.parameters
    Array([0.25, 0.25, 0.25], dtype=float32)
    >>> LocalExpectation().num_evaluations(q)
    4
    """

    num_samples: int = eqx.field(static=True, converter=as_index, default=1)
    needs: ClassVar = "is_product"

    def num_evaluations(self, dist):
        return self.num_samples * (1 + dist.num_neighbours)

    def gradient(self, cv, dist, at):
        if at.f is None:
            raise ValueError(
                "LocalExpectation evaluates f at neighbours, but f was not given: pass f=... to "
                "`estimate`, or use `value_and_grad` or `expectation`."
            )
        # Subtracting the constant f(x_k) changes nothing, because Σ_v q(v) s_i(v) = 0.
        neighbours = dist.neighbours(at.x)
        conditional, there = neighbours.conditional(), neighbours.evaluate(at.f)
        # Where q is 0, f may be infinite, for example if it contains log q.
        change = jnp.where(conditional == 0, 0, there - at.fx[..., None, None])
        return jax.tree.map(mean_of_samples, neighbours.local_expectation(change, conditional))
