"""REINFORCE, with or without a baseline."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from ..arrays import as_index
from ..fast import mean
from .base import Estimator, mean_of_scores

DECAY = 0.99
LIMIT = 100.0  # one step moves a moving average by at most its usual distance from f


class Reinforce(Estimator):
    r"""$g = \frac1K \sum_k (f(x_k) - b) \, s(x_k)$.

    The baseline $b$ is 0 (`baseline=None`), a constant (`baseline=3.5`), a scalar learned to
    minimise the variance (`"learned"`), or a moving average of $f$ (`"moving_average"`). For a
    moving average `Gradients.cv` is $b - \bar f$, so that plain gradient descent with step size $1
    - \text{decay}$ updates the average. The first step only measures the size of $f$, and the
    average begins with the second. `cv_optimizer` uses a decay of 0.99. `num_samples` is $K$.

    Reference: Williams, "Simple statistical gradient-following algorithms for connectionist
    reinforcement learning", Machine Learning 1992.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> f = lambda x: jnp.sum(x, axis=-1)
    >>> estimator = Reinforce(num_samples=4, baseline=1.5)
    >>> value, grads = estimator.value_and_grad(
    ...     f, sg.Bernoulli(jnp.zeros(3)), key=jax.random.key(0))
    >>> grads.parameters.shape
    (3,)
    """

    class CV(eqx.Module):
        """The baseline b."""

        baseline: Float[Array, ""]
        distance: Float[Array, ""] | None = None
        """The moving average of |f − b|, if b is a moving average too."""

    num_samples: int = eqx.field(static=True, converter=as_index, default=1)
    baseline: int | float | Literal["moving_average", "learned"] | None = eqx.field(
        static=True, default=None
    )
    """The baseline b: none, a constant, a moving average of f, or a number that is learned to
    minimise the variance."""

    def __check_init__(self):
        if isinstance(self.baseline, str) and self.baseline not in ("moving_average", "learned"):
            raise ValueError(
                "Reinforce needs baseline=None, a number, 'moving_average' or 'learned', but was "
                f"given {self.baseline!r}."
            )

    @property
    def cv_is_quadratic(self):
        return self.baseline != "moving_average"

    def init(self, key, dist=None):
        if not isinstance(self.baseline, str):
            return None
        average = self.baseline == "moving_average"
        return self.CV(jnp.zeros(()), jnp.zeros(()) if average else None)

    def cv_optimizer(self, learning_rate):
        average = self.baseline == "moving_average"
        return optax.sgd(1 - DECAY) if average else super().cv_optimizer(learning_rate)

    def gradient(self, cv, dist, at):
        if isinstance(self.baseline, str):
            baseline = cv.baseline
        else:
            baseline = 0.0 if self.baseline is None else self.baseline
        return mean_of_scores(dist, at.fx - baseline, at.x)

    def adapt(self, cv, dist, at):
        if self.baseline != "moving_average":
            return super().adapt(cv, dist, at)
        distance, is_first = mean(jnp.abs(at.only_sound(at.fx - cv.baseline))), cv.distance <= 0
        # A step that is far from the past, because f had an accident, counts as one at `LIMIT`.
        limit = jnp.where(is_first, 0, LIMIT * cv.distance)
        far = jnp.where(distance > limit, limit / jnp.where(distance > 0, distance, 1), 1)
        # At the first step `far` is 0, and the average does not move. If this step is an accident,
        # only its distance is remembered, and the next step forgets it.
        off = far * mean(at.only_sound(cv.baseline - at.fx))
        usual = at.sound_share * cv.distance - far * distance
        step = self.CV(off, jnp.where(is_first, -distance / (1 - DECAY), usual))
        # Gradient descent of step size 1 − DECAY then leaves nothing.
        forget = lambda old, new: jnp.where(at.has_outgrown(old), old / (1 - DECAY), new)
        return self.gradient(cv, dist, at), jax.tree.map(forget, cv, step)
