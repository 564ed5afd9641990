"""Any distribution on a finite product space, given by a log-probability function."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from ..arrays import as_index, check_whole, take
from .base import COORDINATES_AT_A_TIME, check_inside
from .from_function import FromFunction, batch_of, check_parameters
from .values import RealValued, check_values


class FromLogProb(FromFunction, RealValued):
    r"""Any $q_\eta$ on $\{v_1 \dots v_m\}^d$, given by $\log q_\eta(x)$ as a function of parameters
    and state, such as an Ising model or a network.

    `log_prob_fn(parameters, x)` takes the parameters of one distribution and one state `x` of shape
    `[d]`, and returns a scalar. The parameters are any pytree. With a `batch_shape`, each array in
    it begins with these axes. The `num_coordinates` coordinates $d$ take the given `values`
    (default: bits). An estimate differentiates `log_prob_fn` only once, whatever the number of
    samples.

    **Shared parameters**: with `conditions`, a pytree of arrays that begin with the axes of the
    batch (`batch_shape`; by default their first axis alone), the parameters have no such axes, and
    the call is `log_prob_fn(parameters, x, condition)`: one network for the whole batch. Gradients
    are shaped like the parameters. Conditions, and arrays that the functions close over, are
    constants. A network that reads the conditions is differentiated if its weights are parameters
    and `log_prob_fn` calls it; it then runs once for all samples.

    **Samples**: pass your own to `estimate`, or give a `sampler(key, parameters)`, with conditions
    `sampler(key, parameters, condition)`, that returns one state of shape `[d]`.

    **Without the normalising constant**, `log_prob_fn` is enough for operators, for `GibbsSampler`
    and for estimators in which the constant cancels: `RLOO`, `Rodeo`, and `Lariat` with nothing but
    a `surrogate`. Other estimators need `log_prob_fn` with the constant, and `normalized=True`.

    `log_ratio_fn(parameters, x)`, with conditions `(parameters, x, condition)`, is optional. It
    returns $\log q(x \text{ with } x_i = v_a) - \log q(x)$ for all $i$ and $a$, of shape `[d, m]`,
    if this is cheaper than $d \, (m - 1)$ calls of `log_prob_fn`.

    >>> import jax.numpy as jnp
    >>> def ising(parameters, x):
    ...     field, coupling = parameters
    ...     return field @ x + x @ coupling @ x
    >>> q = FromLogProb(ising, (jnp.zeros(3), jnp.eye(3, k=1)), num_coordinates=3, values=(-1, 1))
    >>> aligned = jnp.array([1.0, 1.0, 1.0])
    >>> q.log_ratio(aligned, q.shift(aligned, (1,)))[:, 0]
    Array([-2., -4., -2.], dtype=float32)

    >>> def bits(weights, x, image):
    ...     logits = image @ weights
    ...     return jnp.sum(x * logits - jnp.logaddexp(logits, 0))
    >>> q = FromLogProb(bits, jnp.ones((2, 3)), conditions=jnp.ones((5, 2)), num_coordinates=3,
    ...                 normalized=True)
    >>> q.batch_shape, q.weighted_score(jnp.ones((4, 5)), jnp.ones((4, 5, 3))).shape
    ((5,), (2, 3))
    """

    log_prob_fn: Callable[..., Array] = eqx.field(static=True)
    _parameters: Any
    conditions: Any
    _num_coordinates: int = eqx.field(static=True)
    values: tuple[float, ...] = eqx.field(static=True)
    _batch_shape: tuple[int, ...] = eqx.field(static=True)
    sampler: Callable[..., Array] | None = eqx.field(static=True)
    log_ratio_fn: Callable[..., Array] | None = eqx.field(static=True)
    _normalized: bool = eqx.field(static=True)
    _factors: Any

    def __init__(
        self,
        log_prob_fn: Callable[..., Array],
        parameters: Any,
        *,
        num_coordinates: int,
        values: Sequence[int | float] | Array | np.ndarray = (0, 1),
        conditions: Any = None,
        batch_shape: Sequence[int] | None = None,
        sampler: Callable[..., Array] | None = None,
        log_ratio_fn: Callable[..., Array] | None = None,
        normalized: bool = False,
    ):
        num_coordinates = as_index(num_coordinates)
        check_whole("FromLogProb", "num_coordinates", num_coordinates, 1)
        self.log_prob_fn = log_prob_fn
        self._parameters = parameters
        self.conditions = jax.tree.map(jnp.asarray, conditions)
        self._num_coordinates = num_coordinates
        self._batch_shape = batch_of("FromLogProb", self.conditions, batch_shape)
        self.sampler = sampler
        self.log_ratio_fn = log_ratio_fn
        self._normalized = normalized
        self._factors = None
        check_parameters("FromLogProb", parameters)
        self.values = check_values("FromLogProb", values, self.dtype)
        for leaf in [] if self.shares_parameters else jax.tree.leaves(self.parameters):
            if leaf.shape[: len(self._batch_shape)] != self._batch_shape:
                raise ValueError(
                    f"With batch_shape={self._batch_shape} each parameter must begin with those "
                    f"axes, but one has shape {leaf.shape}. If the whole batch shares the "
                    "parameters, pass conditions=..., in which its elements differ."
                )

    @property
    def num_coordinates(self):
        return self._num_coordinates

    @property
    def normalized(self):
        return self._normalized

    @property
    def shares_parameters(self):
        return self.conditions is not None

    def with_parameters(self, parameters):
        changed = super().with_parameters(parameters)
        check_values("FromLogProb", self.values, changed.dtype)
        return changed

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()):
        if self.sampler is None:
            raise ValueError(
                "FromLogProb was built without a sampler. Pass sampler=lambda key, parameters: "
                "..., or draw the samples yourself (`GibbsSampler` draws approximate ones) and "
                "hand them to `estimate`."
            )
        sampler, event = self.sampler, self.event_shape

        def one(parameters, condition, key):
            x = jnp.asarray(self._call(sampler, key, parameters, condition=condition))
            if x.shape != event:
                raise ValueError(
                    f"The sampler of this FromLogProb must return one state, of shape {event}, but "
                    f"returned shape {x.shape}."
                )
            return x.astype(self.dtype)

        x = self._for_each_key(one, key, shape)
        check_inside(
            self, x, "The sampler returned it: let the sampler return only values=... as given."
        )
        return x

    def log_prob(self, x):
        return self._for_each(self._log_prob, x)

    def _call(self, fn, *inputs, condition):
        return fn(*inputs, condition) if self.shares_parameters else fn(*inputs)

    def _log_prob(self, parameters, condition, x):
        log_prob = jnp.asarray(self._call(self.log_prob_fn, parameters, x, condition=condition))
        if log_prob.shape != ():
            raise ValueError(
                f"log_prob_fn was given one state, of shape {x.shape}, and must return one number, "
                f"but returned shape {log_prob.shape}."
            )
        if jnp.iscomplexobj(log_prob):
            raise TypeError(
                f"log_prob_fn must return a real number, but returned {log_prob.dtype}. Return "
                "jnp.real(...) of it."
            )
        return log_prob

    def _log_ratio(self, parameters, condition, x, values, coordinates):
        if self.log_ratio_fn is not None:
            ratio = self._call(self.log_ratio_fn, parameters, x, condition=condition)
            expected = (self.num_coordinates, self.num_values)
            if ratio.shape != expected:
                raise ValueError(
                    f"log_ratio_fn must return one number for each coordinate and value, of shape "
                    f"{expected}, but returned shape {ratio.shape}."
                )
            return take(ratio[coordinates], values)
        here = self._log_prob(parameters, condition, x)
        return self._log_prob_at(parameters, condition, x, values, coordinates) - here

    def _log_prob_at(self, parameters, condition, x, values, coordinates):
        """log q at the neighbours of one state."""
        support = jnp.asarray(self.values, x.dtype)

        def at_coordinate(slot):
            coordinate, new = slot
            moved = lambda v: x.at[coordinate].set(support[v])
            return jax.vmap(lambda v: self._log_prob(parameters, condition, moved(v)))(new)

        if len(coordinates) <= COORDINATES_AT_A_TIME:
            return jax.vmap(at_coordinate)((coordinates, values))
        # Derivatives recompute the values instead of storing them.
        at_coordinate = jax.checkpoint(at_coordinate)
        return jax.lax.map(at_coordinate, (coordinates, values), batch_size=COORDINATES_AT_A_TIME)
