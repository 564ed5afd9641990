"""Independent categories, as one-hot vectors."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..arrays import scatter, sum_of_events, take
from .base import FromLogits, as_logits


class IndependentLogits(FromLogits):
    """What categorical and ordinal coordinates share: logits of shape `[*batch, d, m]`."""

    logits: eqx.AbstractVar[Float[Array, "*batch d m"]]

    @property
    def batch_shape(self):
        return self.logits.shape[:-2]

    @property
    def num_coordinates(self):
        return self.logits.shape[-2]

    @property
    def num_values(self):
        return self.logits.shape[-1]

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()):
        logits = self._logits
        return self.state(jax.random.categorical(key, logits, shape=(*shape, *logits.shape[:-1])))

    def score(self, x):
        logits = self._logits
        onehot = jax.nn.one_hot(self.index(x), self.num_values, dtype=logits.dtype)
        return onehot - jax.nn.softmax(logits)

    def log_ratio(self, x, values, coordinates=None):
        logits = take(self._logits, coordinates, axis=-2)
        here = take(self.index(x), coordinates)[..., None]
        return take(logits, values) - take(logits, here)

    def score_change(self, coefficients, x, values, coordinates=None):
        # s(y) − s(x) is +1 at the new value and −1 at the old one.
        here = take(self.index(x), coordinates)[..., None]
        total = jnp.sum(coefficients, axis=-1, keepdims=True)
        change = scatter(coefficients, values, self.num_values) - total * jax.nn.one_hot(
            here[..., 0], self.num_values, dtype=coefficients.dtype
        )
        if coordinates is None:
            return change
        by_value = jnp.swapaxes(change, -1, -2)
        return jnp.swapaxes(
            scatter(by_value, coordinates[..., None, :], self.num_coordinates), -1, -2
        )


class Categorical(IndependentLogits):
    r"""Independent categories: $q(x) = \prod_i \operatorname{softmax}(\text{logits}_i)^\top x_i$.

    `logits` has shape `[*batch, d, m]`; a sample has the same shape, one one-hot vector of length
    $m$ for each of the $d$ coordinates. The score is $s(x) = x - \operatorname{softmax}(
    \text{logits})$.

    >>> import jax, jax.numpy as jnp
    >>> q = Categorical(jnp.log(jnp.array([[0.2, 0.3, 0.5], [1.0, 1.0, 98.0]])))
    >>> q.sample(jax.random.key(0))
    Array([[0., 1., 0.],
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

    @property
    def mean(self) -> Float[Array, "*batch d m"]:
        """The probabilities of the values."""
        return jax.nn.softmax(self._logits).astype(self.dtype)

    def slope(self, gradient):
        # Up to a constant for each coordinate, which nothing depends on.
        return gradient, jax.nn.softmax(self._logits)

    def log_prob(self, x):
        logits = self._logits
        x, log_probs = x.astype(logits.dtype), jax.nn.log_softmax(logits)
        # A value of probability 0 that x does not have adds 0, not 0·(−∞).
        impossible = jnp.isneginf(log_probs)
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
