"""Independent bits."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..arrays import scatter, take
from ..draws import logistic, uniform
from ..fast import sum_of_events
from .base import FromLogits, as_logits
from .independent import Independent
from .relaxable import Relaxable


class Bernoulli(FromLogits, Relaxable, Independent):
    r"""Independent bits: $q(x) = \prod_i \theta_i^{x_i} (1-\theta_i)^{1-x_i}$, $\theta =
    \sigma(\text{logits})$.

    `logits` has shape `[*batch, d]`, and so does a sample, whose entries are 0 or 1 in the type of
    the logits. The score is $s(x) = x - \theta$. Flipping bit $i$ changes the log-probability by
    $(1 - 2 x_i) \cdot \text{logit}_i$ and the score by $1 - 2 x_i$. Bits with logits of $\pm\infty$
    never change: their gradient is 0, and the other bits are not affected by them.

    >>> import jax, jax.numpy as jnp
    >>> q = Bernoulli(jnp.array([0.0, 2.0, -2.0]))
    >>> q.sample(jax.random.key(0))
    Array([0., 1., 1.], dtype=float32)
    >>> q.score(jnp.array([1.0, 1.0, 0.0]))
    Array([ 0.5  ,  0.119, -0.119], dtype=float32)
    """

    logits: Float[Array, "*batch d"]

    def __init__(self, logits: Any):
        self.logits = as_logits("Bernoulli", logits, ("d",))

    @property
    def batch_shape(self):
        return self.logits.shape[:-1]

    @property
    def event_shape(self):
        return self.logits.shape[-1:]

    @property
    def num_coordinates(self):
        return self.logits.shape[-1]

    @property
    def num_values(self):
        return 2

    @property
    def mean(self) -> Float[Array, "*batch d"]:
        """θ."""
        return self.soften(1.0).astype(self.dtype)

    def pull_mean(self, v):
        return self.slope(v)[1] * v

    def slope(self, gradient):
        logits = self._logits
        return gradient, jax.nn.sigmoid(logits) * jax.nn.sigmoid(-logits)

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()):
        logits = self._logits
        drawn = uniform(key, (*shape, *logits.shape), logits.dtype).below(logits)
        return drawn.astype(self.dtype)

    def log_prob(self, x):
        logits = self._logits
        x, certain = x.astype(logits.dtype), jnp.isinf(logits)
        # A bit that is certain must add 0, not ∞ − ∞.
        finite = jnp.where(certain, 0, logits)
        terms = jnp.where(certain, 0, log_prob_of_bit(x, finite))
        impossible = certain & ((x > 0.5) != (logits > 0))
        return sum_of_events(jnp.where(impossible, -jnp.inf, terms))

    def score(self, x):
        logits = self._logits
        return score_of_bit(x.astype(logits.dtype), logits)

    def index(self, x):
        return x.astype(jnp.int32)

    def state(self, index):
        return index.astype(self.dtype)

    def log_ratio(self, x, values, coordinates=None):
        logits = self._logits
        step = self._step(x, values, coordinates).astype(logits.dtype)
        return (logits if coordinates is None else take(logits, coordinates))[..., None] * step

    def linear_change(self, gradient, x, values, coordinates=None):
        step = self._step(x, values, coordinates).astype(gradient.dtype)
        gradient = gradient if coordinates is None else take(gradient, coordinates)
        return gradient[..., None] * step

    def score_change(self, coefficients, x, values, coordinates=None):
        step = self._step(x, values, coordinates).astype(coefficients.dtype)
        change = jnp.sum(coefficients * step, axis=-1)
        if coordinates is None:
            return change
        return scatter(change, coordinates, self.num_coordinates)

    def _step(
        self,
        x: Float[Array, "... d"],
        values: Int[Array, "... c n"],
        coordinates: Int[Array, "... c"] | None,
    ) -> Float[Array, "... c n"]:
        """yᵢ − xᵢ."""
        x = x if coordinates is None else take(x, coordinates)
        return values.astype(x.dtype) - x[..., None]

    @property
    def value_logits(self):
        logits = self._logits
        return jnp.stack([jnp.zeros_like(logits), logits], axis=-1)

    def between(self, p):
        return p[..., 1]

    def by_value(self, gradient):
        return jnp.stack([jnp.zeros_like(gradient), gradient], axis=-1)

    def by_parameters(self, gradient):
        return gradient[..., 1]

    @property
    def log_odds(self):
        return self._logits

    def by_log_odds(self, gradient):
        return gradient

    # For bits, a corner of the cube has one number for each coordinate instead of two.

    def corner(self, x):
        return x.astype(self._logits.dtype)

    def soften(self, temperature):
        return jax.nn.sigmoid(self._logits / temperature)

    def through(self, p, gradient):
        return p * (1 - p) * gradient

    def noise(self, key, shape):
        logits = self._logits
        return logistic(key, (*shape, *logits.shape), logits.dtype)

    def location(self):
        logits = self._logits
        return jnp.where(jnp.isinf(logits), 100 * jnp.sign(logits), logits)

    def latent_given(self, x, noise):
        # x = 1: log(v / ((1 − v)(1 − θ)) + 1), a logistic variable given that it is positive.
        sign = 2 * x.astype(noise.dtype) - 1
        return sign * jax.nn.softplus(noise + jax.nn.softplus(sign * self.location()))

    def relax(self, z, temperature):
        return jax.nn.sigmoid(z / temperature)


@jax.custom_jvp
def log_prob_of_bit(x: Float[Array, "..."], logit: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""$x \log \theta + (1 - x) \log(1 - \theta) = x \cdot \text{logit} - \log(1 +
    e^{\text{logit}})$, also between the states: linear in $x$.

    The large terms are subtracted first, so that no digits cancel if the bit is nearly certain.
    """
    return x * logit - jnp.maximum(logit, 0) - jnp.log1p(jnp.exp(-jnp.abs(logit)))


@log_prob_of_bit.defjvp
def _(primals, tangents):
    # The formula above has no second derivative where the logit is 0.
    x, logit = primals
    return log_prob_of_bit(x, logit), score_of_bit(x, logit) * tangents[1] + logit * tangents[0]


def score_of_bit(x: Float[Array, "..."], logit: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""$x - \theta$, without a loss of digits if $\theta$ is nearly 1."""
    return x * jax.nn.sigmoid(-logit) - (1 - x) * jax.nn.sigmoid(logit)
