"""Any distribution on a finite product space, given by a log-probability function."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from ..arrays import as_index
from .base import COORDINATES_AT_A_TIME, Distribution
from .ordinal import check_values, value_change, value_index


class FromLogProb(Distribution):
    r"""Any $q_\eta$ on $\{v_1 \dots v_m\}^d$, given by $\log q_\eta(x)$ as a function of
    parameters and state: an Ising model, an autoregressive model, ...

    `log_prob_fn(parameters, x)` takes the parameters of one distribution and one state `x` of
    shape `[d]`, and returns a scalar. The parameters are any pytree; with a `batch_shape`, each of
    its arrays begins with those axes. Coordinates take the given `values` (default: bits).

    Operators need `log_prob_fn` only up to a constant. Estimators differentiate it, so they need
    the constant too: say `normalized=True` if it is there. Samples come from you (`estimate`), or
    from `sampler(key, parameters)`, which returns one state of shape `[d]`.

    >>> import jax.numpy as jnp
    >>> def ising(parameters, x):
    ...     field, coupling = parameters
    ...     return field @ x + x @ coupling @ x
    >>> q = FromLogProb(ising, (jnp.zeros(3), jnp.eye(3, k=1)), num_coordinates=3, values=(-1, 1))
    >>> aligned = jnp.array([1.0, 1.0, 1.0])
    >>> q.log_ratio(aligned, q.shift(aligned, (1,)))[:, 0]
    Array([-2., -4., -2.], dtype=float32)
    """

    log_prob_fn: Callable[[Any, Array], Array] = eqx.field(static=True)
    _parameters: Any
    _num_coordinates: int = eqx.field(static=True)
    values: tuple[float, ...] = eqx.field(static=True)
    _batch_shape: tuple[int, ...] = eqx.field(static=True)
    sampler: Callable[[PRNGKeyArray, Any], Array] | None = eqx.field(static=True)
    _normalized: bool = eqx.field(static=True)

    def __init__(
        self,
        log_prob_fn: Callable[[Any, Array], Array],
        parameters: Any,
        *,
        num_coordinates: int,
        values: Sequence[int | float] | Array | np.ndarray = (0, 1),
        batch_shape: Sequence[int] = (),
        sampler: Callable[[PRNGKeyArray, Any], Array] | None = None,
        normalized: bool = False,
    ):
        num_coordinates = as_index(num_coordinates)
        if not isinstance(num_coordinates, int) or num_coordinates < 1:
            raise ValueError(
                "FromLogProb needs a whole num_coordinates of 1 or more, but was given "
                f"{num_coordinates!r}."
            )
        self.log_prob_fn = log_prob_fn
        self._parameters = parameters
        self._num_coordinates = num_coordinates
        self._batch_shape = tuple(batch_shape)
        self.sampler = sampler
        self._normalized = normalized
        leaves = jax.tree.leaves(self.parameters)
        if not leaves:
            raise ValueError(
                "FromLogProb needs at least one floating-point array among its parameters, but "
                f"was given {parameters!r}."
            )
        self.values = check_values("FromLogProb", values, self.dtype)
        for leaf in leaves:
            if leaf.shape[: len(self._batch_shape)] != self._batch_shape:
                raise ValueError(
                    f"With batch_shape={self._batch_shape} each parameter must begin with those "
                    f"axes, but one has shape {leaf.shape}."
                )

    @property
    def parameters(self):
        return eqx.filter(self._parameters, eqx.is_inexact_array)

    @property
    def batch_shape(self):
        return self._batch_shape

    @property
    def event_shape(self):
        return (self._num_coordinates,)

    @property
    def num_coordinates(self):
        return self._num_coordinates

    @property
    def num_values(self):
        return len(self.values)

    @property
    def dtype(self):
        return jnp.result_type(*jax.tree.leaves(self.parameters))

    @property
    def normalized(self):
        return self._normalized

    @property
    def is_product(self):
        return False

    def with_parameters(self, parameters):
        everything = eqx.combine(parameters, self._parameters)
        return eqx.tree_at(
            lambda q: q._parameters, self, everything, is_leaf=lambda leaf: leaf is None
        )

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()):
        if self.sampler is None:
            raise ValueError(
                "FromLogProb was built without a sampler. Pass sampler=lambda key, parameters: "
                "..., or draw the samples yourself and hand them to `estimate`."
            )
        sampler = self.sampler
        lead = (*shape, *self._batch_shape)
        keys = jax.random.split(key, lead)
        states = jnp.zeros((*lead, self.num_coordinates), self.dtype)
        return self._for_each(lambda p, _, k: sampler(k, p), states, keys).astype(self.dtype)

    def log_prob(self, x):
        return self._for_each(self.log_prob_fn, x)

    def score(self, x):
        return self._for_each(eqx.filter_grad(self.log_prob_fn), x)

    def index(self, x):
        return value_index(x, self.values)

    def state(self, index):
        return jnp.asarray(self.values, self.dtype)[index]

    def log_ratio(self, x, values, coordinates=None):
        def one(parameters, x, values, coordinates):
            log_probs = self._log_prob_at(parameters, x, values, coordinates)
            return log_probs - self.log_prob_fn(parameters, x)

        return self._for_each(one, x, values, self._all_if_none(x, coordinates))

    def linear_change(self, gradient, x, values, coordinates=None):
        return value_change(gradient, x, jnp.asarray(self.values, x.dtype)[values], coordinates)

    def score_change(self, coefficients, x, values, coordinates=None):
        @eqx.filter_grad
        def one(parameters, x, coefficients, values, coordinates):
            log_probs = self._log_prob_at(parameters, x, values, coordinates)
            here = self.log_prob_fn(parameters, x)
            return jnp.sum(coefficients.astype(here.dtype) * (log_probs - here))

        return self._for_each(one, x, coefficients, values, self._all_if_none(x, coordinates))

    def _all_if_none(self, x, coordinates):
        if coordinates is not None:
            return coordinates
        return jnp.broadcast_to(jnp.arange(self.num_coordinates, dtype=jnp.int32), x.shape)

    def _log_prob_at(self, parameters, x, values, coordinates):
        """log q at the neighbours of one state, recomputed (not stored) when differentiated."""
        support = jnp.asarray(self.values, x.dtype)

        @jax.checkpoint
        def at_coordinate(slot):
            coordinate, new = slot
            return jax.vmap(
                lambda v: self.log_prob_fn(parameters, x.at[coordinate].set(support[v]))
            )(new)

        return jax.lax.map(at_coordinate, (coordinates, values), batch_size=COORDINATES_AT_A_TIME)

    def _for_each(self, fn, x, *others):
        """`fn(parameters, x, *others)` for every state: its own parameters along the batch axes,
        shared ones along the axes before them."""
        dynamic, static = eqx.partition(self._parameters, eqx.is_array)

        def mapped(dynamic, x, *others):
            return fn(eqx.combine(dynamic, static), x, *others)

        for _ in self._batch_shape:
            mapped = jax.vmap(mapped)
        for _ in range(x.ndim - 1 - len(self._batch_shape)):
            mapped = jax.vmap(mapped, in_axes=(None, *([0] * (1 + len(others)))))
        return mapped(dynamic, x, *others)
