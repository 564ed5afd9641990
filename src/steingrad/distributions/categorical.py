"""Independent categories, as one-hot vectors."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..arrays import is_log_zero, log_softmax, take
from ..draws import gumbel
from ..fast import sum_of_events
from .base import as_logits
from .independent import LogitOfEachValue
from .relaxable import Relaxable


class Categorical(LogitOfEachValue, Relaxable):
    r"""Independent categories: $q(x) = \prod_i \operatorname{softmax}(\text{logits}_i)^\top x_i$.

    `logits` has shape `[*batch, d, m]`; a sample has the same shape, one one-hot vector of length
    $m$ for each of the $d$ coordinates. The score is $s(x) = x - \operatorname{softmax}(
    \text{logits})$.

    >>> import jax, jax.numpy as jnp
    >>> q = Categorical(jnp.log(jnp.array([[0.2, 0.3, 0.5], [1.0, 1.0, 98.0]])))
    >>> q.sample(jax.random.key(0))
    Array([[0., 0., 1.],
           [0., 0., 1.]], dtype=float32)
    >>> jnp.exp(q.log_prob(jnp.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])))
    Array(0.196, dtype=float32)
    """

    logits: Float[Array, "*batch d m"]

    def __init__(self, logits: Any):
        self.logits = as_logits("Categorical", logits, ("d", "m"))

    @property
    def event_shape(self):
        return self.logits.shape[-2:]

    def slope(self, gradient):
        # This is right up to a constant for each coordinate, which makes no difference.
        return gradient, self.soften(1.0)

    def log_prob(self, x):
        logits = self._logits
        x, log_probs = x.astype(logits.dtype), log_softmax(logits)
        # A value of probability 0 that is not in x must add 0, not 0·(−∞).
        impossible = is_log_zero(log_probs)
        terms = x * jnp.where(impossible, 0, log_probs)
        return sum_of_events(jnp.where(impossible & (x > 0.5), -jnp.inf, terms), 2)

    def index(self, x):
        return jnp.argmax(x, axis=-1).astype(jnp.int32)

    def state(self, index):
        return jax.nn.one_hot(index, self.num_values, dtype=self.dtype)

    def linear_change(self, gradient, x, values, coordinates=None):
        gradient = take(gradient, coordinates, axis=-2)
        here = take(self.index(x), coordinates)[..., None]
        return take(gradient, values) - take(gradient, here)

    def between(self, p):
        return p

    def by_value(self, gradient):
        return gradient

    def corner(self, x):
        # x may also be a point between the states, as in Gumbel-softmax.
        return x.astype(self._logits.dtype)

    def noise(self, key, shape):
        logits = self._logits
        return gumbel(key, (*shape, *logits.shape), logits.dtype)

    def location(self):
        logits = self._logits
        least = jnp.max(logits, axis=-1, keepdims=True) - 100
        return log_softmax(jnp.where(is_log_zero(logits), least, logits))

    def latent_given(self, x, noise):
        # The largest entry is standard Gumbel, and the others are truncated below it.
        top = jnp.sum(x.astype(noise.dtype) * noise, axis=-1, keepdims=True)
        below = -jnp.logaddexp(-self.location() - noise, -top)
        return jnp.where(x > 0, top, below)

    def relax(self, z, temperature):
        return jax.nn.softmax(z / temperature)
