"""Gumbel-softmax, soft and straight-through: differentiable approximate samples. Biased."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..arrays import as_index, check_whole
from ..fast import mean_of_samples
from .base import Estimator
from .checks import check_key, check_temperature


class GumbelSoftmax(Estimator):
    r"""$g = \frac1K \sum_k \frac1\tau J(y_k) \, \nabla f(y_k)$ with $y = \operatorname{softmax}(z /
    \tau)$, $z = \eta + $ Gumbel noise and $J(y) = \operatorname{diag} y - y y^\top$. **Biased.**

    The samples are relaxed: $f$ is evaluated at points $y$ inside the cube or simplex, where it
    must be defined, and the value is the mean over these points. A lower temperature $\tau$ gives
    less bias and more variance. With bits the noise is logistic and $y = \sigma(z / \tau)$.

    `straight_through=True` evaluates $f$ at true samples $x = \operatorname{argmax} z$ and keeps
    the derivative of $y$: $g = \frac1K \sum_k \frac1\tau E[J(y) \mid x_k] \, \nabla f(x_k)$. The
    Jacobian is averaged over `jacobian_draws` draws of $z$ given $x_k$: one draw is the usual
    straight-through Gumbel-softmax, and more draws are its Rao-Blackwellisation GR-MC. It has the
    same mean and less variance, without further evaluations of $f$. Both forms need bits or one-hot
    categories. `num_samples` is $K$.

    Reference: Jang, Gu, Poole, "Categorical Reparameterization with Gumbel-Softmax", ICLR 2017;
    Maddison, Mnih, Teh, ICLR 2017; Paulus, Maddison, Krause, "Rao-Blackwellizing the
    Straight-Through Gumbel-Softmax Gradient Estimator", ICLR 2021.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> f, q = lambda x: jnp.sum(x, axis=-1) ** 2, sg.Bernoulli(jnp.zeros(3))
    >>> soft, hard = GumbelSoftmax(), GumbelSoftmax(straight_through=True, jacobian_draws=10)
    >>> hard.sample(jax.random.key(1), q)
    Array([[1., 1., 1.]], dtype=float32)
    >>> hard.value_and_grad(f, q, key=jax.random.key(0))[1].parameters.shape
    (3,)
    """

    num_samples: int = eqx.field(static=True, converter=as_index, default=1)
    temperature: int | float = eqx.field(static=True, default=0.5)
    """The temperature τ. A lower temperature has less bias and more variance."""
    straight_through: bool = eqx.field(static=True, default=False)
    """Evaluate f at true samples, and keep the derivative of the relaxed samples."""
    jacobian_draws: int = eqx.field(static=True, converter=as_index, default=1)
    """The number of draws over which the Jacobian is averaged. More than 1 needs
    straight_through."""
    biased: ClassVar[bool] = True
    needs: ClassVar = "relaxable"
    needs_gradient: ClassVar = True

    def __check_init__(self):
        check_temperature("GumbelSoftmax", self.temperature)
        check_whole("GumbelSoftmax", "number of jacobian_draws", self.jacobian_draws, 1)
        if self.jacobian_draws > 1 and not self.straight_through:
            raise ValueError(
                "GumbelSoftmax averages the Jacobian over jacobian_draws for true samples only: "
                f"more than 1 needs straight_through=True, but was given {self.jacobian_draws}."
            )

    @property
    def samples_are_states(self):
        return self.straight_through

    def draw(self, key, dist: Any):
        if self.straight_through:
            return super().draw(key, dist)
        z = dist.location() + dist.noise(key, (self.num_samples,))
        return dist.relax(z, self.temperature).astype(dist.dtype)

    def gradient(self, cv, dist: Any, at):
        if not self.straight_through:
            # dy/dη is J(y) / τ, which depends on the noise through y alone.
            return self._through(dist, at.x, at.dfx)
        check_key("GumbelSoftmax(straight_through=True)", at.key)

        def one(key):
            z = dist.latent_given(at.x, dist.noise(key, at.x.shape[:1]))
            return self._through(dist, dist.relax(z, self.temperature), at.dfx)

        assert at.key is not None
        draws = jax.vmap(one)(jax.random.split(at.key, self.jacobian_draws))
        return jax.tree.map(lambda g: jnp.mean(g, axis=0), draws)

    def _through(self, dist, y, dfx):
        through = lambda part, y, dfx, _: mean_of_samples(part.through(y, dfx)) / self.temperature
        return dist.by_part(through, y, dfx)
