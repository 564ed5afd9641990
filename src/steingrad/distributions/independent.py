"""Distributions of independent coordinates."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..arrays import log_softmax, scatter, softmax_and_rest, take
from ..draws import categorical
from ..fast import sum_of_events
from .base import Distribution, FromLogits


class Independent(Distribution):
    r"""Independent coordinates, each with parameters of its own: $q(x) = \prod_i q_i(x_i)$.

    A subclass defines its states, and the log-probabilities of the values as a function of its
    parameters (`value_logits`). The rest follows. Its parameters are arrays of shapes `[*batch, d,
    ...]`.
    """

    is_product: ClassVar = True
    has_mean: ClassVar = True

    @property
    @abc.abstractmethod
    def value_logits(self) -> Float[Array, "*batch d m"]:
        r"""$\log q_i(x_i = v_a)$, up to a constant for each coordinate."""

    @abc.abstractmethod
    def between(self, p: Float[Array, "... d m"]) -> Float[Array, "..."]:
        """The mean of the states if the values have these probabilities."""

    @abc.abstractmethod
    def by_value(self, gradient: Float[Array, "..."]) -> Float[Array, "... d m"]:
        """The gradient with respect to the probabilities in `between`, given the gradient with
        respect to the state."""

    @property
    def batch_shape(self):
        return self.value_logits.shape[:-2]

    @property
    def num_coordinates(self):
        return self.value_logits.shape[-2]

    @property
    def mean(self) -> Float[Array, "..."]:
        """The mean of the states."""
        return self.between(self.soften(1.0)).astype(self.dtype)

    def pull_mean(self, v):
        return self.through(self.soften(1.0), v)

    def slope(self, gradient):
        # Least squares, because a coordinate may have several parameters.
        jacobian = self.pull_mean(jnp.ones_like(self.mean))
        inner = lambda a, b: jnp.sum((a * b).reshape(*self.mean.shape, -1), axis=-1)
        pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(jacobian), strict=True)
        terms = [(inner(g, j), inner(j, j)) for g, j in pairs]
        return sum(above for above, _ in terms), sum(below for _, below in terms)

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()):
        return self.state(categorical(key, self.value_logits, shape))

    def log_prob(self, x):
        log_probs = log_softmax(self.value_logits)
        return sum_of_events(take(log_probs, self.index(x)[..., None])[..., 0])

    def score(self, x):
        # corner(x) − p, without a loss of digits if a value is nearly certain.
        corner, (p, rest) = self.corner(x), softmax_and_rest(self.value_logits)
        return self.by_parameters(corner * rest - (1 - corner) * p)

    def log_ratio(self, x, values, coordinates=None):
        logits = take(self.value_logits, coordinates, axis=-2)
        here = take(self.index(x), coordinates)[..., None]
        return take(logits, values) - take(logits, here)

    def score_change(self, coefficients, x, values, coordinates=None):
        # The score of the logits grows by 1 at the new value and drops by 1 at the old.
        here = take(self.index(x), coordinates)
        total = jnp.sum(coefficients, axis=-1, keepdims=True)
        change = scatter(coefficients, values, self.num_values) - total * jax.nn.one_hot(
            here, self.num_values, dtype=coefficients.dtype
        )
        if coordinates is not None:
            by_value = jnp.swapaxes(change, -1, -2)
            by_value = scatter(by_value, coordinates[..., None, :], self.num_coordinates)
            change = jnp.swapaxes(by_value, -1, -2)
        return self.by_parameters(change)

    def corner(self, x: Float[Array, "..."]) -> Float[Array, "... d m"]:
        """The state as a one-hot vector for each coordinate."""
        return jax.nn.one_hot(self.index(x), self.num_values, dtype=self.value_logits.dtype)

    def soften(self, temperature: float) -> Float[Array, "*batch d m"]:
        r"""$\operatorname{softmax}(\text{value logits} / \tau)$: at $\tau = 1$ the mean of
        `corner(x)`."""
        return jax.nn.softmax(self.value_logits / temperature)

    def through(self, p: Float[Array, "... d m"], gradient: Float[Array, "..."]) -> Any:
        r"""$J(p) \nabla$ with $J(p) = \operatorname{diag} p - p p^\top$, for a gradient with
        respect to the state, shaped like the score."""
        v = self.by_value(gradient)
        return self.by_parameters(p * (v - jnp.sum(p * v, axis=-1, keepdims=True)))

    def by_parameters(self, gradient: Float[Array, "... d m"]) -> Any:
        """The gradient with respect to the parameters, from that with respect to `value_logits`."""
        logits, pull_back = jax.vjp(lambda p: self.with_parameters(p).value_logits, self.parameters)
        for _ in range(gradient.ndim - logits.ndim):
            pull_back = jax.vmap(pull_back)
        return pull_back(gradient)[0]

    @property
    def log_odds(self) -> Float[Array, "*batch d"]:
        r"""$\log q(x_i = v_1) - \log q(x_i = v_0)$ if there are two values."""
        return self.value_logits[..., 1] - self.value_logits[..., 0]

    def by_log_odds(self, gradient: Float[Array, "... d"]) -> Any:
        """The gradient with respect to the parameters, given that with respect to `log_odds`."""
        return self.by_parameters(jnp.stack([-gradient, gradient], axis=-1))


class LogitOfEachValue(FromLogits, Independent):
    """The base class of `Categorical` and `Ordinal`. The parameters are logits of shape `[*batch,
    d, m]`, one for each value."""

    logits: eqx.AbstractVar[Float[Array, "*batch d m"]]

    @property
    def value_logits(self):
        return self._logits

    @property
    def batch_shape(self):
        return self.logits.shape[:-2]

    @property
    def num_coordinates(self):
        return self.logits.shape[-2]

    @property
    def num_values(self):
        return self.logits.shape[-1]

    def by_parameters(self, gradient):
        return gradient
