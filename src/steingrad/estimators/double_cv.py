"""Double CV: REINFORCE leave-one-out with linear control variates."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..arrays import as_index, compute_dtype, mean_of_others, mean_of_samples, sum_of_events
from ..distributions import Bernoulli
from .base import Estimator, check_num_samples
from .parts import apart, arranged, leaves, merged


class DoubleCV(Estimator):
    r"""$g = \frac1K \sum_k \left(\tilde f_k - \frac1{K-1} \sum_{j \ne k} \tilde f_j\right) s(x_k)
    - \alpha \, \theta (1 - \theta) \frac1K \sum_k \nabla f(x_k)$ with $\tilde f_k = f(x_k) +
    \alpha \, \bar\nabla_k^\top (x_k - \theta)$ and $\bar\nabla_k = \frac1{K-1} \sum_{j \ne k}
    \nabla f(x_j)$.

    The linear control variate appears twice, beside each sample's own value and in the baseline of
    the others; the last term is its known mean. $\alpha$ is learned and starts at 0, as plain RLOO;
    a good one is negative. $f$ is evaluated $K$ times. For `Bernoulli`. `num_samples` is $K$.

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
        """What is learned: α."""

        alpha: Float[Array, ""]

    num_samples: int = eqx.field(static=True, converter=as_index, default=2)
    """The number of samples, K."""
    distributions: ClassVar = (Bernoulli,)
    by_parts: ClassVar = True

    def __check_init__(self):
        check_num_samples("DoubleCV", self.num_samples, 2, "each control variate seeing the others")

    @property
    def needs_gradient(self):
        return True

    def init(self, key, dist=None):
        return self.CV(jnp.zeros(()))

    def gradient(self, cv, dist, at):
        assert at.dfx is not None
        alpha = cv.alpha.astype(at.fx.dtype)
        # The bits of all parts of a Joint together.
        logits = merged(dist, [part.parameters for part in leaves(dist)])
        logits = logits.astype(compute_dtype(logits))
        variance = jax.nn.sigmoid(logits) * jax.nn.sigmoid(-logits)
        score = Bernoulli(logits).score(at.x)  # x − θ
        pseudo = at.fx + alpha * sum_of_events(mean_of_others(at.dfx) * score)
        signal = pseudo - mean_of_others(pseudo)
        g = mean_of_samples(signal[..., None] * score - alpha * variance * at.dfx)
        return arranged(dist, apart(dist, g))
