"""OVIS: the baseline of least variance for a bound of many samples."""

import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..arrays import as_index, check_whole
from ..fast import mean_of_samples
from .base import BoundEstimator, log_mean_exp, log_sum_of_others, relative


class OVIS(BoundEstimator):
    r"""$g = \sum_k (\hat L - v_k - c_k) \, s(x_k)$ with $v_k = w_k / \sum_j w_j$. The term $-v_k \,
    s(x_k)$ comes from $-\log q(x_k)$ in $\log w_k$, so `multi_sample_bound` adds it with all other
    direct dependence on $\eta$.

    For many samples, the baseline of least variance is the mean of $\hat L - v_k$ over $x_k$, given
    the others. With $S \ge 1$ `auxiliary_samples` $z_s$ it is $c_k = \frac1S \sum_s \left[ \hat L -
    v_k \right]_{x_k = z_s}$, from $K + S$ evaluations. With none it is the asymptotic form

    $$c_k = \log \frac{1}{K-1} \sum_{j \ne k} w_j - \gamma v_k + (1 - \gamma) \log(1 - 1/K).$$

    $\gamma = 0$ is for bounds in which one weight dominates, and $\gamma = 1$ for bounds in which
    many weights count. **With $\gamma > 0$ the estimate is biased**, because $v_k$ depends on
    $x_k$. With `weighs_by_q=False`, $\log w$ does not contain $-\log q(x)$, or contains it as a
    constant, and $v_k$ is left out. It takes any distribution. `num_samples` is $K$.

    Reference: Liévin, Dittadi, Christensen, Winther, "Optimal Variance Control of the Score
    Function Gradient Estimator for Importance Weighted Bounds", NeurIPS 2020, equations 12 and 17.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> def bound(logits):
    ...     q = sg.Bernoulli(logits)
    ...     log_w = lambda x: jnp.sum(x, axis=-1) - q.log_prob(x)
    ...     return sg.multi_sample_bound(log_w, q, OVIS(num_samples=5), key=jax.random.key(0))
    >>> jax.grad(bound)(jnp.zeros(3)).shape
    (3,)
    >>> OVIS(auxiliary_samples=0, gamma=1.0).biased
    True
    """

    num_samples: int = eqx.field(static=True, converter=as_index, default=5)
    auxiliary_samples: int = eqx.field(static=True, converter=as_index, default=1)
    """The number S of further samples, for the baseline only. 0 is the asymptotic form."""
    gamma: int | float = eqx.field(static=True, default=0.0)
    """The number γ of the asymptotic form, from 0 to 1. Above 0 the estimate is biased."""
    weighs_by_q: bool = eqx.field(static=True, default=True)
    r"""Whether log w contains −log q(x), with the parameters that are differentiated."""

    fewest: ClassVar = (1, "the samples of the bound")

    def __check_init__(self):
        check_whole("OVIS", "number of auxiliary_samples", self.auxiliary_samples, 0)
        if self.auxiliary_samples == 0 and self.num_samples == 1:
            raise ValueError(
                "OVIS without auxiliary_samples needs a num_samples of 2 or more, because the "
                "other samples make each sample's baseline, but was given 1."
            )
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"OVIS needs a gamma from 0 to 1, but was given {self.gamma}.")
        if self.gamma and (self.auxiliary_samples or not self.weighs_by_q):
            raise ValueError(
                "OVIS takes a gamma above 0 only with auxiliary_samples=0 and weighs_by_q=True, "
                f"but was given {self.gamma} with auxiliary_samples={self.auxiliary_samples} and "
                f"weighs_by_q={self.weighs_by_q}: leave gamma out."
            )

    @property
    def biased(self):
        return self.gamma > 0

    @property
    def num_points(self):
        return self.num_samples + self.auxiliary_samples

    def gradient(self, dist, x, log_w):
        count = self.num_samples
        log_w = relative(log_w)
        auxiliary, log_w = log_w[count:], log_w[:count]
        others = log_sum_of_others(log_w)
        # The score's coefficient, to which −v_k is added as direct dependence.
        signal = log_mean_exp(log_w) - self._baseline(others, auxiliary)
        if self.gamma:
            signal += self.gamma * jax.nn.softmax(log_w, axis=0)
        return dist.weighted_score(signal, x[:count])

    def _baseline(self, others, auxiliary):
        """c_k, but without −γ v_k."""
        count = self.num_samples
        if not self.auxiliary_samples:
            constant = (1 - self.gamma) * math.log(1 - 1 / count) - math.log(count - 1)
            return others + constant
        auxiliary = auxiliary[:, None]
        total = jnp.logaddexp(others, auxiliary)
        share = jnp.exp(auxiliary - total) if self.weighs_by_q else 0.0
        return mean_of_samples(total - math.log(count) - share)
