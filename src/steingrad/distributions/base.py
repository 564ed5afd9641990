"""What every distribution knows: how to sample, its score, and its single-coordinate changes."""

import abc
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..arrays import compute_dtype, take

MAX_STATES = 2**20
# Neighbours are visited this many coordinates at a time, so that memory stays linear in d.
COORDINATES_AT_A_TIME = 64


class Distribution(eqx.Module):
    r"""A distribution $q_\eta$ on $\mathcal X^d$, where a coordinate takes one of $m$ values.

    A state `x` has shape `[..., *event]`; its leading axes end with `batch_shape`. Which of the
    $m$ values a coordinate has is also written as an index in $0 \dots m-1$. A neighbour of `x`
    differs from it in one coordinate and is described by that coordinate and the index of its
    new value: arrays `coordinates` of shape `[..., c]` (or `None`: all $d$ of them, in order) and
    `values` of shape `[..., c, n]`.
    """

    @property
    @abc.abstractmethod
    def parameters(self) -> Any:
        """What the score differentiates with respect to: an array, or a pytree of arrays."""

    @property
    @abc.abstractmethod
    def batch_shape(self) -> tuple[int, ...]: ...

    @property
    @abc.abstractmethod
    def num_coordinates(self) -> int:
        """The number of coordinates, $d$."""

    @property
    @abc.abstractmethod
    def num_values(self) -> int:
        """The number of values of a coordinate, $m$."""

    @property
    @abc.abstractmethod
    def event_shape(self) -> tuple[int, ...]: ...

    @property
    @abc.abstractmethod
    def dtype(self) -> Any:
        """The type of the entries of a state."""

    @abc.abstractmethod
    def with_parameters(self, parameters: Any) -> "Distribution":
        """The same kind of distribution with other parameters."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
        """Independent samples of shape `[*shape, *batch, *event]`."""

    @abc.abstractmethod
    def log_prob(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        r"""$\log q(x)$."""

    @abc.abstractmethod
    def score(self, x: Float[Array, "..."]) -> Any:
        r"""$s(x) = \nabla_\eta \log q_\eta(x)$: the shape of the parameters after `x`'s leading
        axes."""

    @abc.abstractmethod
    def index(self, x: Float[Array, "..."]) -> Int[Array, "... d"]:
        """The index of each coordinate's value."""

    @abc.abstractmethod
    def state(self, index: Int[Array, "... d"]) -> Float[Array, "..."]:
        """The state with these indices: the inverse of `index`."""

    @abc.abstractmethod
    def log_ratio(
        self,
        x: Float[Array, "..."],
        values: Int[Array, "... c n"],
        coordinates: Int[Array, "... c"] | None = None,
    ) -> Float[Array, "... c n"]:
        r"""$\log q(y_n) - \log q(x)$ at the neighbours."""

    @abc.abstractmethod
    def linear_change(
        self,
        gradient: Float[Array, "..."],
        x: Float[Array, "..."],
        values: Int[Array, "... c n"],
        coordinates: Int[Array, "... c"] | None = None,
    ) -> Float[Array, "... c n"]:
        r"""$\nabla^\top (y_n - x)$ at the neighbours, for a gradient shaped like `x`."""

    @abc.abstractmethod
    def score_change(
        self,
        coefficients: Float[Array, "... c n"],
        x: Float[Array, "..."],
        values: Int[Array, "... c n"],
        coordinates: Int[Array, "... c"] | None = None,
    ) -> Any:
        r"""$\sum_n c_n \, (s(y_n) - s(x))$, shaped like `score(x)`."""

    @property
    def event_ndim(self) -> int:
        return len(self.event_shape)

    @property
    def num_states(self) -> int:
        """How many states there are, $m^d$."""
        return self.num_values**self.num_coordinates

    @property
    def num_neighbours(self) -> int:
        """How many states differ from a state in one coordinate."""
        return self.num_coordinates * (self.num_values - 1)

    @property
    def normalized(self) -> bool:
        """Whether `log_prob` is a true log-probability: estimators need that, operators don't."""
        return True

    @property
    def is_product(self) -> bool:
        """Whether the coordinates are independent, each with parameters of its own."""
        return True

    def view(self, x: Float[Array, "..."]) -> Any:
        """What f is shown of a state: all of it, as it is."""
        return x

    def enumerate(self) -> Float[Array, "states ..."]:
        """Every state, of shape `[m**d, *event]`, the last coordinate changing fastest."""
        if self.num_states > MAX_STATES:
            raise ValueError(
                f"Cannot enumerate {self.num_values}^{self.num_coordinates} states: at most 2^20 "
                f"= {MAX_STATES} are allowed. Use fewer coordinates, or an estimator in place of "
                "the exact sum."
            )
        number = jnp.arange(self.num_states, dtype=jnp.int32)
        return self.state(number[:, None] // self._place % self.num_values)

    def probabilities(self) -> Float[Array, "... states"]:
        """q of every state in the order of `enumerate()`, normalised: shape `[*batch, m**d]`."""
        states = self.enumerate()
        batch = len(self.batch_shape)
        states = states.reshape(len(states), *(1,) * batch, *self.event_shape)
        states = jnp.broadcast_to(states, (len(states), *self.batch_shape, *self.event_shape))
        return jax.nn.softmax(jnp.moveaxis(self.log_prob(states), 0, -1))

    def state_number(self, x: Float[Array, "..."]) -> Int[Array, "..."]:
        """The position of `x` in `enumerate()`."""
        return jnp.sum(self.index(x) * self._place, axis=-1, dtype=jnp.int32)

    @property
    def _place(self) -> Int[Array, "d"]:
        return self.num_values ** jnp.arange(self.num_coordinates - 1, -1, -1, dtype=jnp.int32)

    def shift(
        self,
        x: Float[Array, "..."],
        offsets: tuple[int, ...],
        coordinates: Int[Array, "... c"] | None = None,
    ) -> Int[Array, "... c n"]:
        """The `values` of the neighbours whose index is larger by each offset, cyclically."""
        index = take(self.index(x), coordinates)[..., None]
        return (index + jnp.asarray(offsets, index.dtype)) % self.num_values

    def at_neighbours(
        self,
        h: Callable[[Float[Array, "..."]], Float[Array, "..."]],
        x: Float[Array, "..."],
        values: Int[Array, "... c n"],
        coordinates: Int[Array, "... c"] | None = None,
    ) -> Float[Array, "... c n"]:
        """`h` at every neighbour, a few coordinates at a time: the plain definition."""
        index = self.index(x)
        if coordinates is None:
            coordinates = jnp.broadcast_to(_arange(self.num_coordinates), index.shape)

        def at_coordinate(slot):
            coordinate, new = slot  # [...] and [n, ...]
            moved = _arange(self.num_coordinates) == coordinate[..., None]
            # One call of h for each new value, so that h always sees the shape of x.
            return jax.vmap(lambda v: h(self.state(jnp.where(moved, v[..., None], index))))(new)

        slots = (jnp.moveaxis(coordinates, -1, 0), jnp.moveaxis(values, (-2, -1), (0, 1)))
        h_values = jax.lax.map(at_coordinate, slots, batch_size=COORDINATES_AT_A_TIME)
        return jnp.moveaxis(h_values, (0, 1), (-2, -1))


class FromLogits(Distribution):
    """What distributions share whose parameters are their logits."""

    logits: eqx.AbstractVar[Float[Array, "..."]]

    @property
    def parameters(self):
        return self.logits

    @property
    def dtype(self):
        return self.logits.dtype

    def with_parameters(self, parameters):
        return eqx.tree_at(lambda q: q.logits, self, parameters)

    @property
    @abc.abstractmethod
    def mean(self) -> Float[Array, "..."]:
        r"""$\mu = E[x]$, shaped like a state."""

    @abc.abstractmethod
    def slope(
        self, gradient: Float[Array, "..."]
    ) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        r"""The $v$ with $\nabla_\eta (v^\top \mu)$ = `gradient`: a numerator and a denominator, the
        variance of $x$, both shaped like a state."""

    @property
    def _logits(self) -> Array:
        return self.logits.astype(compute_dtype(self.logits))


def _arange(n: int) -> Int[Array, "n"]:
    return jnp.arange(n, dtype=jnp.int32)


def as_logits(name: str, logits: Any, axes: tuple[str, ...]) -> Float[Array, "..."]:
    """`logits` as an array; raise unless it has floating-point numbers and these last axes."""
    if not isinstance(logits, (jax.Array, np.ndarray, np.generic)):
        raise TypeError(
            f"{name} needs its logits as an array, but was given a {type(logits).__name__}. Write "
            f"{name}(jnp.asarray(...)), with floating-point numbers."
        )
    shape: tuple[int, ...] = jnp.shape(logits)
    dtype = logits.dtype
    layout = f"[..., {', '.join(axes)}]"
    if len(shape) < len(axes):
        raise ValueError(
            f"{name} needs logits of shape {layout}, of rank {len(axes)} or more, but was given "
            f"shape {shape}.{_one_variable(shape, axes)}"
        )
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(
            f"{name} needs floating-point logits (bfloat16, float32 or float64), but was given "
            f"{dtype}."
        )
    if len(axes) > 1 and shape[-1] < 2:
        raise ValueError(
            f"{name} needs at least 2 values on the last axis of its logits, which have shape "
            f"{shape}."
        )
    if math.prod(shape[len(shape) - len(axes) :]) == 0:
        raise ValueError(
            f"{name} needs at least one coordinate, but its logits have shape {shape}."
        )
    return jnp.asarray(logits)


def _one_variable(shape: tuple[int, ...], axes: tuple[str, ...]) -> str:
    """What to do with the logits of a single variable."""
    if len(shape) == len(axes) - 1 == 1:
        return (
            f" A single variable of {shape[0]} values has logits[None], of shape (1, {shape[0]})."
        )
    return " A single one has logits[None], of shape (1,)." if not shape and len(axes) == 1 else ""
