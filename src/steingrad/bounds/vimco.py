"""VIMCO: each sample's baseline is the bound without its weight."""

import math
from typing import ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp

from ..arrays import as_index
from .base import (
    BoundEstimator,
    geometric_mean_of_others,
    log_mean_exp,
    log_sum_of_others,
    relative,
)


class VIMCO(BoundEstimator):
    r"""$g = \sum_k (\hat L - \hat L_{-k}) \, s(x_k)$ with $\hat L = \log \frac1K \sum_j w_j$ and
    $\hat L_{-k} = \log \frac1K \left( \hat w_k + \sum_{j \ne k} w_j \right)$.

    The weight $\hat w_k$ stands for $w_k$, and depends on the other samples only: it is their
    geometric mean, $\exp \frac1{K-1} \sum_{j \ne k} \log w_j$, or their arithmetic mean,
    $\frac1{K-1} \sum_{j \ne k} w_j$. So $\hat L_{-k}$ is a baseline. It takes any distribution.
    `num_samples` is $K$.

    Reference: Mnih and Rezende, "Variational Inference for Monte Carlo Objectives", ICML 2016.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> log_w = lambda x: jnp.sum(x, axis=-1) - sg.Bernoulli(jnp.zeros(3)).log_prob(x)
    >>> bound = lambda logits: sg.multi_sample_bound(
    ...     log_w, sg.Bernoulli(logits), VIMCO(num_samples=5), key=jax.random.key(0))
    >>> jax.grad(bound)(jnp.zeros(3)).shape
    (3,)
    """

    num_samples: int = eqx.field(static=True, converter=as_index, default=5)
    mean: Literal["geometric", "arithmetic"] = eqx.field(static=True, default="geometric")
    """The mean of the other weights that replaces each weight."""
    fewest: ClassVar = (2, "because the other samples make each sample's baseline")

    def __check_init__(self):
        if self.mean not in ("geometric", "arithmetic"):
            raise ValueError(
                f"VIMCO needs mean='geometric' or 'arithmetic', but was given {self.mean!r}."
            )

    def gradient(self, dist, x, log_w):
        log_w = relative(log_w)
        others = log_sum_of_others(log_w)
        if self.mean == "geometric":
            replaced = geometric_mean_of_others(log_w)
        else:
            replaced = others - math.log(self.num_samples - 1)
        baseline = jnp.logaddexp(others, replaced) - math.log(self.num_samples)
        return dist.weighted_score(log_mean_exp(log_w) - baseline, x)
