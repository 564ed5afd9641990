"""The modified RELAX of the RODEO paper: RELAX with RODEO's surrogate as its control variate."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..arrays import as_index, others
from ..fast import leave_one_out, mean_of_samples, sum_of_events
from ..surrogates import MLPSurrogate
from .base import Estimator
from .optimizers import slow_adam
from .relaxations import initial_log_temperature, relaxed_estimate


class ModifiedRelax(Estimator):
    r"""RELAX with $c_k(z) = \text{scale} \cdot h_k(\sigma(z / \text{temperature}))$ and with the
    leave-one-out baseline subtracted from $f(x_k)$, where $h_k(y) = \frac1{K-1} \sum_{j \ne k}
    H(f_j, \nabla f_j^\top (y - x_j))$ is RODEO's surrogate.

    There is no other network, and $f$ and its gradient are evaluated at the samples only. The scale
    starts at 0, which is plain RLOO. It needs bits or one-hot categories. `num_samples` is $K$.

    Reference: Shi et al. 2022, section 6; Grathwohl et al. 2018.

    >>> import jax.numpy as jnp, steingrad as sg
    >>> ModifiedRelax(num_samples=2).num_evaluations(sg.Bernoulli(jnp.zeros(5)))
    2
    """

    class CV(eqx.Module):
        """The learned parameters of the control variate."""

        log_temperature: Float[Array, ""]
        scale: Float[Array, ""]
        surrogate: Any

    num_samples: int = eqx.field(static=True, converter=as_index, default=2)
    surrogate: MLPSurrogate = MLPSurrogate()
    """The network H that the control variate is made of."""
    needs: ClassVar = "relaxable"
    needs_gradient: ClassVar = True
    fewest: ClassVar = (2, "because h_k is made of the other samples")

    def __check_init__(self):
        if not isinstance(self.surrogate, MLPSurrogate):
            raise ValueError(
                "ModifiedRelax evaluates the surrogate's network for each pair of samples: pass an "
                f"MLPSurrogate, not {type(self.surrogate).__name__}."
            )

    def init(self, key, dist=None):
        return self.CV(initial_log_temperature(), jnp.zeros(()), self.surrogate.init(key))

    def cv_optimizer(self, learning_rate):
        return slow_adam(learning_rate)

    def gradient(self, cv, dist: Any, at):
        assert at.dfx is not None
        x_j, f_j, df_j = others(at.x), others(at.fx), others(at.dfx)

        @jax.vmap
        def control(z):
            y = dist.relax(z, jnp.exp(cv.log_temperature))
            # H(f_j, t_j(y_k)) for each pair of samples, as in MLPSurrogate.
            t = sum_of_events(df_j * (y - x_j), at.event_ndim)
            h, _ = self.surrogate.network(cv.surrogate, f_j, t)
            return cv.scale * mean_of_samples(h)

        return relaxed_estimate(control, dist, at, leave_one_out(at.fx))
