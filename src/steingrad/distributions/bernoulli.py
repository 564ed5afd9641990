"""Independent bits."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..arrays import scatter, sum_of_events, take
from .base import FromLogits, as_logits


class Bernoulli(FromLogits):
    r"""Independent bits: $q(x) = \prod_i \theta_i^{x_i} (1-\theta_i)^{1-x_i}$, $\theta =
    \sigma(\text{logits})$.

    `logits` has shape `[*batch, d]`, and so does a sample, whose entries are 0 or 1 in the type of
    the logits. The score is $s(x) = x - \theta$; a flipped bit changes the log-probability by
    $(1 - 2 x_i) \cdot \text{logit}_i$ and the score by $1 - 2 x_i$. Logits of $\pm\infty$ are
    bits that never change: their gradient is 0, and nothing else is touched by them.

    >>> import jax, jax.numpy as jnp
    >>> q = Bernoulli(jnp.array([0.0, 2.0, -2.0]))
    >>> q.sample(jax.random.key(0))
    Array([0., 0., 0.], dtype=float32)
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
        return jax.nn.sigmoid(self._logits).astype(self.dtype)

    def slope(self, gradient):
        logits = self._logits
        return gradient, jax.nn.sigmoid(logits) * jax.nn.sigmoid(-logits)

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()):
        logits = self._logits
        uniform = jax.random.uniform(key, (*shape, *logits.shape), logits.dtype)
        return (uniform < jax.nn.sigmoid(logits)).astype(self.dtype)

    def log_prob(self, x):
        # Linear in x, the natural extension to the interior of the cube: ∂/∂x is the logit.
        logits = self._logits
        x, certain = x.astype(logits.dtype), jnp.isinf(logits)
        # A bit that is certain adds 0, not ∞ − ∞.
        finite = jnp.where(certain, 0, logits)
        terms = jnp.where(certain, 0, x * finite - jax.nn.softplus(finite))
        impossible = certain & ((x > 0.5) != (logits > 0))
        return sum_of_events(jnp.where(impossible, -jnp.inf, terms))

    def score(self, x):
        logits = self._logits
        return x.astype(logits.dtype) - jax.nn.sigmoid(logits)

    def index(self, x):
        return x.astype(jnp.int32)

    def state(self, index):
        return index.astype(self.dtype)

    def log_ratio(self, x, values, coordinates=None):
        logits = self._logits
        return take(logits, coordinates)[..., None] * self._step(x, values, coordinates)

    def linear_change(self, gradient, x, values, coordinates=None):
        step = self._step(x, values, coordinates).astype(gradient.dtype)
        return take(gradient, coordinates)[..., None] * step

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
        dtype = self._logits.dtype
        return values.astype(dtype) - take(x, coordinates)[..., None].astype(dtype)
