"""Double CV: REINFORCE leave-one-out with linear control variates."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..arrays import as_index
from ..fast import leave_one_out, mean_of_others, mean_of_samples, sum_of_events
from .base import Estimator, mean_of_scores


class DoubleCV(Estimator):
    r"""$g = \frac1K \sum_k \left(\tilde f_k - \frac1{K-1} \sum_{j \ne k} \tilde f_j\right) s(x_k)
    - \alpha \, \frac1K \sum_k \nabla_\eta (\nabla f(x_k)^\top \mu)$ with $\tilde f_k = f(x_k) +
    \alpha \, \bar\nabla_k^\top (x_k - \mu)$, $\bar\nabla_k = \frac1{K-1} \sum_{j \ne k} \nabla
    f(x_j)$ and $\mu = E[x]$, which is $\theta$ for bits.

    The linear control variate appears twice: it is added to each sample's own value, and to the
    values in the other samples' baselines. The last term is its known mean, for bits $\theta (1 -
    \theta)$ times the mean of $\nabla f$. $\alpha$ is learned and starts at 0, which is plain RLOO;
    good values are negative. $f$ is evaluated $K$ times. It needs a distribution whose mean is
    known (in the paper, bits). `num_samples` is $K$.

    Reference: Titsias and Shi, "Double Control Variates for Gradient Estimation in Discrete Latent
    Variable Models", AISTATS 2022.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> estimator = DoubleCV(num_samples=2)
    >>> cv = estimator.init(jax.random.key(0))
    >>> f = lambda x: -jnp.sum((x - 0.45) ** 2, axis=-1)
    >>> value, grads = estimator.value_and_grad(
    ...     f, sg.Bernoulli(jnp.zeros(5)), cv, key=jax.random.key(1))
    >>> grads.parameters.shape, grads.cv.alpha.shape
    ((5,), ())
    """

    class CV(eqx.Module):
        """The learned coefficient α."""

        alpha: Float[Array, ""]

    num_samples: int = eqx.field(static=True, converter=as_index, default=2)
    needs: ClassVar = "has_mean"
    needs_gradient: ClassVar = True
    fewest: ClassVar = (2, "because each control variate is made of the other samples")

    def init(self, key, dist=None):
        return self.CV(jnp.zeros(()))

    def gradient(self, cv, dist, at):
        assert at.dfx is not None
        centred = at.x - dist.mean
        pseudo = at.fx + cv.alpha * sum_of_events(mean_of_others(at.dfx) * centred, at.event_ndim)
        signal = mean_of_scores(dist, leave_one_out(pseudo), at.x)
        known = dist.pull_mean(mean_of_samples(at.dfx))
        return jax.tree.map(lambda g, k: g - cv.alpha * k, signal, known)
