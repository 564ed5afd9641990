"""REINFORCE leave-one-out."""

from typing import ClassVar

import equinox as eqx

from ..arrays import as_index
from ..fast import leave_one_out
from .base import Estimator, mean_of_scores


class RLOO(Estimator):
    r"""$g = \frac1K \sum_k \left(f(x_k) - \frac1{K-1} \sum_{j \ne k} f(x_j)\right) s(x_k)$: the
    mean over the other samples is the baseline. It takes any distribution. `num_samples` is $K$.

    Reference: Kool, van Hoof, Welling, "Buy 4 REINFORCE samples, get a baseline for free!", 2019;
    Salimans and Knowles 2014.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> value, grads = RLOO(num_samples=3).value_and_grad(
    ...     lambda x: jnp.sum(x, axis=-1), sg.Bernoulli(jnp.zeros(2)), key=jax.random.key(0))
    >>> grads.parameters.shape
    (2,)
    """

    num_samples: int = eqx.field(static=True, converter=as_index, default=2)
    cancels_constant: ClassVar = True
    fewest: ClassVar = (2, "because the other samples are each sample's baseline")

    def gradient(self, cv, dist, at):
        return mean_of_scores(dist, leave_one_out(at.fx), at.x)
