"""The base class of the estimators for multi-sample bounds, and what they share."""

import abc
import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..arrays import expand
from ..distributions import Distribution
from ..estimators.checks import check_num_samples


class BoundEstimator(eqx.Module):
    r"""An estimator of $\nabla_\eta E[\hat L]$ with $\hat L = \log \frac1K \sum_k w_k$ and $x_1
    \dots x_K \sim q_\eta$. It is immutable. Its fields are settings.

    A subclass defines `num_samples` and `gradient`, and `num_points` or `draw` if it evaluates
    $\log w$ at more points than the $K$ samples.
    """

    num_samples: eqx.AbstractVar[int]
    """The number of samples in the bound, K."""
    fewest: ClassVar[tuple[int, str]] = (1, "the samples of the bound")
    """The least `num_samples`, and the reason."""
    biased: ClassVar[Any] = False
    """Whether the mean of the estimate differs from the gradient by design."""
    needs: ClassVar[Any] = None
    """The property that a distribution must have, such as `"is_binary"`."""
    instead: ClassVar[str] = "VIMCO and OVIS take any distribution."
    needs_gradient: ClassVar[bool] = False
    relaxes: ClassVar[bool] = False
    cancels_constant: ClassVar[bool] = False

    def __check_init__(self):
        check_num_samples(type(self).__name__, self.num_samples, *self.fewest)

    def __repr__(self) -> str:
        return eqx.tree_pformat(self) + (" (biased)" if self.biased else "")

    @property
    def num_points(self) -> int:
        r"""How many times $\log w$ is evaluated for one estimate."""
        return self.num_samples

    def draw(self, key: PRNGKeyArray, dist: Distribution) -> Float[Array, "points ..."]:
        r"""The points at which to evaluate $\log w$, of shape `[num_points, *batch, *event]`. The
        first $K$ are the samples of the bound."""
        return dist.sample(key, (self.num_points,))

    def bound(self, log_w: Float[Array, "points ..."]) -> Float[Array, "..."]:
        r"""$\hat L$, of shape `[*batch]`, from $\log w$ at the points."""
        return log_mean_exp(log_w[: self.num_samples])

    @abc.abstractmethod
    def gradient(
        self, dist: Distribution, x: Float[Array, "points ..."], log_w: Float[Array, "points ..."]
    ) -> Any:
        r"""The estimate of the part of $\nabla_\eta E[\hat L]$ that comes from sampling, for each
        element of the batch, shaped like the parameters. The part that comes from a dependence of
        $\log w$ on $\eta$ is added by `multi_sample_bound`."""


def log_mean_exp(log_w: Float[Array, "samples ..."]) -> Float[Array, "..."]:
    r"""$\log \frac1K \sum_k w_k$."""
    return jax.nn.logsumexp(log_w, axis=0) - math.log(len(log_w))


def log_sum_of_others(log_w: Float[Array, "samples ..."]) -> Float[Array, "samples ..."]:
    r"""$\log \sum_{j \ne k} w_j$ for each $k$. It is not a difference of sums, in which digits
    would cancel if one weight is much larger than the others."""
    return jax.nn.logsumexp(jnp.where(_own(log_w), -jnp.inf, log_w), axis=1)


def geometric_mean_of_others(log_w: Float[Array, "samples ..."]) -> Float[Array, "samples ..."]:
    r"""$\frac1{K-1} \sum_{j \ne k} \log w_j$ for each $k$, also if some weights are 0."""
    return jnp.sum(jnp.where(_own(log_w), 0, log_w), axis=1) / (len(log_w) - 1)


def _own(log_w):
    """Whether j is k, of shape `[K, K, 1, ...]`."""
    return expand(jnp.asarray(np.eye(len(log_w), dtype=bool)), log_w.ndim + 1)


def relative(log_w: Float[Array, "points ..."]) -> Float[Array, "points ..."]:
    """The log-weights minus the largest. A constant in all of them cancels in each signal, and
    would cost digits there."""
    return log_w - jax.lax.stop_gradient(jnp.max(log_w, axis=0))
