"""An operator from any Markov chain on a small state space."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..arrays import compute_dtype, expand, is_concrete, take
from ..distributions.base import Distribution
from ..distributions.neighbours import Neighbours
from .base import Operator, Row, check_state


class TransitionMatrix(Operator):
    r"""$A = P - I$ for a transition matrix $P$ that leaves $q$ invariant, $q^\top P = q^\top$.

    `matrix` has shape `[N, N]` (or `[*batch, N, N]`) over the states in the order of
    `dist.enumerate()`, or it is a function from the distribution to such a matrix. It must leave
    $q$ invariant; `check(dist)` verifies this.

    Reference: Shi et al. 2022, section 3.

    >>> import jax.numpy as jnp, steingrad as sg
    >>> q = sg.Bernoulli(jnp.log(jnp.array([3.0])))
    >>> operator = TransitionMatrix([[0.4, 0.6], [0.2, 0.8]])
    >>> operator.check(q)
    >>> operator.apply(lambda x: x[..., 0], q, q.enumerate()).round(2)
    Array([ 0.6, -0.2], dtype=float32)
    """

    matrix: Any
    """The transition matrix, or a function from the distribution to the matrix."""

    def __init__(self, matrix: Array | np.ndarray | list | Callable[[Distribution], Array]):
        self.matrix = matrix if callable(matrix) else jnp.asarray(matrix)
        if not callable(self.matrix):
            shape = self.matrix.shape
            if len(shape) < 2 or shape[-1] != shape[-2]:
                raise ValueError(
                    f"TransitionMatrix needs a matrix of shape [..., N, N], but was given {shape}."
                )
            if is_concrete(self.matrix):
                values = np.asarray(self.matrix, np.float64)
                if (values < 0).any() or not np.allclose(values.sum(-1), 1, atol=1e-5):
                    raise ValueError(
                        "TransitionMatrix needs rows of probabilities, not below 0 and summing to "
                        f"1; the rows given sum to {values.sum(-1)}, the smallest entry is "
                        f"{values.min():.3g}."
                    )

    def transition(self, dist: Distribution) -> Float[Array, "... states states"]:
        """The matrix for this distribution, of shape `[*batch, N, N]`."""
        matrix: Any = self.matrix(dist) if callable(self.matrix) else self.matrix
        n = dist.num_states
        if matrix.shape[-2:] != (n, n):
            raise ValueError(
                f"This {type(dist).__name__} has {n} states, so its TransitionMatrix must have "
                f"shape [..., {n}, {n}], but has shape {matrix.shape}."
            )
        return jnp.broadcast_to(matrix, (*dist.batch_shape, n, n))

    def check(self, dist: Distribution, tolerance: float = 1e-5) -> None:
        """Raise unless the matrix leaves the distribution invariant."""
        probs = dist.probabilities()
        moved = jnp.einsum("...x,...xy->...y", probs, self.transition(dist).astype(probs.dtype))
        error = float(jnp.max(jnp.abs(moved - probs)))
        if error > tolerance:
            raise ValueError(
                f"The matrix does not leave the distribution invariant: one step moves a "
                f"probability by {error:.3g}, more than {tolerance:.3g}. Use a chain such as "
                "Gibbs or Metropolis-Hastings for this distribution."
            )

    def neighbours(
        self, dist: Distribution, x: Float[Array, "..."], *, key: PRNGKeyArray | None = None
    ) -> Row:
        check_state(dist, x)
        weights = take(self.transition(dist), dist.state_number(x)[..., None], axis=-2)
        weights = weights.astype(compute_dtype(weights))
        values = jnp.arange(dist.num_states, dtype=jnp.int32)
        values = jnp.broadcast_to(values, weights.shape)
        self_weight = jnp.full(weights.shape[:-2], -1, weights.dtype)
        return Row(AllStates(dist, x, values, None), weights, self_weight)


class AllStates(Neighbours):
    """All states of a small space as neighbours of each other. The whole state is treated as a
    single coordinate, whose values are the numbers of the states."""

    def evaluate(self, h):
        return jnp.moveaxis(jax.vmap(h)(self._repeated()), 0, -1)[..., None, :]

    def linear_change(self, gradient):
        axes = tuple(range(-self.dist.event_ndim, 0))
        step = self._states(gradient.ndim).astype(gradient.dtype) - self.x.astype(gradient.dtype)
        change = jnp.sum(gradient * step, axis=axes)
        return jnp.moveaxis(change, 0, -1)[..., None, :]

    def score_change(self, coefficients):
        coefficients = jnp.moveaxis(coefficients[..., 0, :], -1, 0)
        weigh = lambda s_y, s_x: jnp.sum(expand(coefficients, s_y.ndim) * (s_y - s_x), axis=0)
        return jax.tree.map(weigh, self.dist.score(self._repeated()), self.dist.score(self.x))

    def weighted_score_change(self, coefficients):
        coefficients = jnp.moveaxis(coefficients[..., 0, :], -1, 0)
        there = self.dist.weighted_score(coefficients, self._repeated())
        here = self.dist.weighted_score(jnp.sum(coefficients, axis=0), self.x)
        return jax.tree.map(jnp.subtract, there, here)

    def _repeated(self) -> Array:
        """All states, repeated for each state in x."""
        states = self._states(self.x.ndim)
        return jnp.broadcast_to(states, (len(states), *self.x.shape))

    def _states(self, ndim: int) -> Array:
        """All states, with axes of length one before the event axes, to broadcast with x."""
        states = self.dist.enumerate()
        event = self.dist.event_ndim
        return states.reshape(len(states), *(1,) * (ndim - event), *states.shape[1:])
