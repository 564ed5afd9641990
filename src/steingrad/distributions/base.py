"""The base class of distributions: sampling, scores, and changes of single coordinates."""

import abc
import math
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..arrays import compute_dtype, expand, is_concrete, take
from ..fast import sum_of_samples
from .neighbours import Neighbours

MAX_STATES = 2**20
# Neighbours are visited this many coordinates at a time, so that memory stays linear in d.
COORDINATES_AT_A_TIME = 64


State = Float[Array, "..."]
Values = Int[Array, "... c n"]
Coordinates = Int[Array, "... c"] | None
Slots = Float[Array, "... c n"]


class Distribution(eqx.Module):
    r"""A distribution $q_\eta$ on $\mathcal X^d$, where a coordinate takes one of $m$ values.

    A state `x` has shape `[..., *event]`, and its leading axes end with `batch_shape`. The value of
    a coordinate is also written as an index in $0 \dots m-1$. A neighbour of `x` differs in one
    coordinate. It is given by this coordinate and the index of its new value: arrays `coordinates`
    of shape `[..., c]` (`None`: all $d$, in order) and `values` of shape `[..., c, n]`.

    Estimators and operators ask a distribution what it can do (`has_mean`, `is_product`,
    `is_binary`, `relaxable`, `flippable`) and never which class it has.
    """

    normalized: ClassVar[Any] = True
    """Whether `log_prob` is normalised. Some estimators need this; operators do not."""
    large_scores: ClassVar[Any] = False
    """Whether a score for each sample would be too large, as for the weights of a network. If so,
    `weighted_score` and `weighted_score_change` are vector–Jacobian products."""
    shares_parameters: ClassVar[Any] = False
    """Whether the elements of the batch share the parameters. If so, the parameters have no batch
    axes, gradients are sums over the batch, and `large_scores` is true."""
    has_mean: ClassVar[Any] = False
    """Whether $E[x]$ is known, with the methods `mean`, `pull_mean` and `slope`."""
    is_product: ClassVar[Any] = False
    """Whether the coordinates are independent, each with parameters of its own."""
    relaxable: ClassVar[Any] = False
    """Whether states are the corners of a cube or a simplex, with the methods of `Relaxable`."""
    differentiable: ClassVar[Any] = True
    """Whether f gets states by which it can be differentiated. Indices are no such states."""
    full_support: ClassVar[Any] = True
    """Whether each combination of values has a probability above 0 if all logits are finite. Some
    operators need this."""

    @property
    @abc.abstractmethod
    def parameters(self) -> Any:
        """The parameters η, by which the score differentiates: an array, or a pytree of arrays."""

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
        """The dtype of a state."""

    @abc.abstractmethod
    def with_parameters(self, parameters: Any) -> Any:
        """The same kind of distribution with other parameters."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
        """Independent samples of shape `[*shape, *batch, *event]`."""

    @abc.abstractmethod
    def log_prob(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        r"""$\log q(x)$."""

    @abc.abstractmethod
    def score(self, x: Float[Array, "..."]) -> Any:
        r"""$s(x) = \nabla_\eta \log q_\eta(x)$, with the leading axes of `x`, then those of the
        parameters."""

    @abc.abstractmethod
    def index(self, x: Float[Array, "..."]) -> Int[Array, "... d"]:
        """The index of each coordinate's value."""

    @abc.abstractmethod
    def state(self, index: Int[Array, "... d"]) -> Float[Array, "..."]:
        """The state with these indices: the inverse of `index`."""

    @abc.abstractmethod
    def log_ratio(self, x: State, values: Values, coordinates: Coordinates = None) -> Slots:
        r"""$\log q(y_n) - \log q(x)$ at the neighbours."""

    @abc.abstractmethod
    def linear_change(
        self, gradient: State, x: State, values: Values, coordinates: Coordinates = None
    ) -> Slots:
        r"""$\nabla^\top (y_n - x)$ at the neighbours, for a gradient shaped like `x`."""

    @abc.abstractmethod
    def score_change(
        self, coefficients: Slots, x: State, values: Values, coordinates: Coordinates = None
    ) -> Any:
        r"""$\sum_n c_n \, (s(y_n) - s(x))$, shaped like `score(x)`."""

    def squared_step(
        self, x: Float[Array, "..."], values: Int[Array, "... d n"]
    ) -> Float[Array, "... d n"]:
        """$|y_n - x|^2$, divided by its mean over all pairs of values: 1 unless the values are real
        numbers."""
        return jnp.ones(values.shape, x.dtype)

    def counted(self, factors: Float[Array, "..."]) -> "Distribution":
        """The same distribution, but its sums over the batch count each element with a factor.
        `factors` is one number, or an array of shape `[*batch]`. Only gradients with respect to
        shared parameters are sums over the batch (`shares_parameters`)."""
        return self

    def weighted_score(self, weights: Float[Array, "..."], x: Float[Array, "..."]) -> Any:
        r"""$\sum_k w_k \, s(x_k)$ over the axes of `x` before the batch axes, shaped like the
        parameters. If the batch shares the parameters, the sum is over the batch too.

        If `large_scores`, this is one vector–Jacobian product of `log_prob`.
        """
        if self.large_scores:
            return self._pull_back(weights, lambda q: q.log_prob(x.astype(q.dtype)))
        weights, x = self._one_lead(weights, 0), self._one_lead(x, self.event_ndim)
        weigh = lambda s: sum_of_samples(expand(weights, s.ndim) * s)
        return jax.tree.map(weigh, self.score(x))

    def weighted_score_change(
        self, coefficients: Slots, x: State, values: Values, coordinates: Coordinates = None
    ) -> Any:
        """`score_change`, summed like `weighted_score`. If `large_scores`, this is one
        vector–Jacobian product of `log_ratio`."""
        if self.large_scores:
            return self._pull_back(
                coefficients, lambda q: q.log_ratio(x.astype(q.dtype), values, coordinates)
            )
        coefficients, values = self._one_lead(coefficients, 2), self._one_lead(values, 2)
        if coordinates is not None:
            coordinates = self._one_lead(coordinates, 1)
        change = self.score_change(
            coefficients, self._one_lead(x, self.event_ndim), values, coordinates
        )
        return jax.tree.map(sum_of_samples, change)

    def _pull_back(
        self, weights: Float[Array, "..."], log_probs: Callable[["Distribution"], Array]
    ) -> Any:
        """∇_η Σ weights · log_probs(q_η). The result is linear in the weights, so its derivative
        with respect to them is one Jacobian–vector product."""
        parameters = jax.tree.map(lambda p: p.astype(compute_dtype(p)), self.parameters)
        out, pull_back = jax.vjp(lambda p: log_probs(self.with_parameters(p)), parameters)
        return pull_back(weights.astype(out.dtype))[0]

    def _one_lead(self, array: Array, ndim: int) -> Array:
        """`array` with a single axis before the batch axes and its own last `ndim` axes."""
        rest = len(self.batch_shape) + ndim
        return array.reshape(-1, *array.shape[array.ndim - rest :])

    @property
    def event_ndim(self) -> int:
        return len(self.event_shape)

    @property
    def num_states(self) -> int:
        """The number of states, $m^d$."""
        return self.num_values**self.num_coordinates

    @property
    def num_neighbours(self) -> int:
        """The number of states that differ from a state in one coordinate."""
        return self.num_coordinates * (self.num_values - 1)

    @property
    def mean(self) -> Float[Array, "..."]:
        r"""$\mu = E[x]$, shaped like a state."""
        raise NotImplementedError(f"{type(self).__name__} has no mean in closed form.")

    def pull_mean(self, v: Float[Array, "..."]) -> Any:
        r"""$\nabla_\eta (v^\top \mu)$ for a constant $v$ shaped like a state: the product with the
        Jacobian of the mean, shaped like the parameters."""
        _, pull_back = jax.vjp(lambda p: self.with_parameters(p).mean, self.parameters)
        return pull_back(v)[0]

    def slope(self, gradient: Any) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        r"""The $v$ with $\nabla_\eta (v^\top \mu)$ = `gradient`, as a numerator and a denominator,
        both shaped like a state. The denominator measures how much $x$ varies."""
        raise NotImplementedError(f"{type(self).__name__} has no mean in closed form.")

    @property
    def is_binary(self) -> bool:
        """Whether the coordinates are independent and have two values each."""
        return self.is_product and self.num_values == 2

    @property
    def flippable(self) -> bool:
        """Whether a coordinate can change alone, or with a random partner: see `flips`."""
        return self.is_product

    @property
    def flip_shape(self) -> tuple[int, int]:
        """The number of coordinates that `flips` changes, and the most values of any of them."""
        return self.num_coordinates, self.num_values

    def constants(self) -> tuple:
        """Arrays that are not among the parameters and must not be differentiated, such as arrays
        that functions of the distribution close over."""
        return ()

    def view(self, x: Float[Array, "..."]) -> Any:
        """The state in the form in which f gets it."""
        return x

    def by_given(self, gradient: Any) -> Any:
        """The gradient with respect to the arrays that the user gave, from that with respect to the
        parameters. They differ if the distribution comes from another library."""
        return gradient

    def by_part(self, fn: Callable, *states: Array | None, key: PRNGKeyArray | None = None) -> Any:
        """`fn(part, *states, key)` for all independent parts, arranged like the parameters.

        A `Joint` calls `fn` for each of its parts, with the part's share of each state (or
        gradient) and a key of its own. Any other distribution has itself as its only part.
        """
        return fn(self, *states, key)

    def sample_by_part(self, draw: Callable, key: PRNGKeyArray) -> Float[Array, "..."]:
        """The results of `draw(part, key)` for all independent parts, joined to states."""
        return draw(self, key)

    def rows(self, row: Callable, x: Float[Array, "..."], averages: bool) -> tuple:
        """The results of `row(part, x)` for all independent parts, joined: neighbours, their
        weights, and the weight of `x`. If the row `averages` over coordinates, each part counts
        with its share of them."""
        return row(self, x)

    def neighbours(
        self, x: State, offsets: tuple[int, ...] | None = None, coordinates: Coordinates = None
    ) -> Neighbours:
        """The states that differ from `x` in one coordinate, whose index is larger by one of the
        offsets, cyclically. By default all other values of all coordinates are neighbours."""
        return Neighbours(self, x, self.shift(x, offsets, coordinates), coordinates)

    def flips(self, x: Float[Array, "..."]) -> Any:
        """The changes of single coordinates from which `Bronco` draws. A coordinate that cannot
        change alone may have a partner that changes with it."""
        return self.neighbours(x)

    def enumerate(self) -> Float[Array, "states ..."]:
        """Every state, of shape `[m**d, *event]`, with the last coordinate changing fastest."""
        if self.num_states > MAX_STATES:
            raise ValueError(
                f"Cannot enumerate {self.num_values}^{self.num_coordinates} states: at most 2^20 "
                f"= {MAX_STATES} are allowed. Use fewer coordinates, or an estimator in place of "
                "the exact sum."
            )
        number = jnp.arange(self.num_states, dtype=jnp.int32)
        return self.state(number[:, None] // self._place % self.num_values)

    def enumerate_batch(self) -> Float[Array, "states ..."]:
        """Every state for each element of the batch: `[m**d, *batch, *event]`."""
        states = self.enumerate()
        batch = self.batch_shape
        states = states.reshape(len(states), *(1,) * len(batch), *self.event_shape)
        return jnp.broadcast_to(states, (len(states), *batch, *self.event_shape))

    def probabilities(self) -> Float[Array, "... states"]:
        """Normalised q of every state in the order of `enumerate()`, of shape `[*batch, m**d]`."""
        return jax.nn.softmax(jnp.moveaxis(self.log_prob(self.enumerate_batch()), 0, -1))

    def state_number(self, x: Float[Array, "..."]) -> Int[Array, "..."]:
        """The position of `x` in `enumerate()`."""
        return jnp.sum(self.index(x) * self._place, axis=-1, dtype=jnp.int32)

    @property
    def _place(self) -> Int[Array, "d"]:
        return self.num_values ** jnp.arange(self.num_coordinates - 1, -1, -1, dtype=jnp.int32)

    def shift(
        self, x: State, offsets: tuple[int, ...] | None = None, coordinates: Coordinates = None
    ) -> Values:
        """The `values` of the neighbours whose index is larger by each offset, cyclically. By
        default all other values."""
        index, m = self.index(x), self.num_values
        index = (index if coordinates is None else take(index, coordinates))[..., None]
        offsets = tuple(range(1, m)) if offsets is None else offsets
        return (index + jnp.asarray(offsets, index.dtype)) % m

    def at_neighbours(
        self, h: Callable[[State], State], x: State, values: Values, coordinates: Coordinates = None
    ) -> Slots:
        """`h` at every neighbour, evaluated for a few coordinates at a time."""
        index = self.index(x)
        everywhere = jnp.arange(self.num_coordinates, dtype=jnp.int32)
        if coordinates is None:
            coordinates = jnp.broadcast_to(everywhere, index.shape)

        def at_coordinate(slot):
            coordinate, new = slot  # [...] and [n, ...]
            moved = everywhere == coordinate[..., None]
            # One call of h for each new value, so that h always sees the shape of x.
            return jax.vmap(lambda v: h(self.state(jnp.where(moved, v[..., None], index))))(new)

        slots = (jnp.moveaxis(coordinates, -1, 0), jnp.moveaxis(values, (-2, -1), (0, 1)))
        h_values = jax.lax.map(at_coordinate, slots, batch_size=COORDINATES_AT_A_TIME)
        return jnp.moveaxis(h_values, (0, 1), (-2, -1))


class FromLogits(Distribution):
    """The base class of distributions whose parameters are logits."""

    logits: eqx.AbstractVar[Float[Array, "..."]]
    has_mean: ClassVar = True

    @property
    def parameters(self):
        return self.logits

    @property
    def dtype(self):
        return self.logits.dtype

    def with_parameters(self, parameters):
        return eqx.tree_at(lambda q: q.logits, self, parameters)

    @property
    def _logits(self) -> Array:
        """The logits in the dtype to compute in, at least float32."""
        wide = self.logits.dtype.itemsize >= 4
        return self.logits if wide else self.logits.astype(jnp.float32)


def check_inside(
    dist: Distribution,
    x: Array,
    advice: str = "Pass the points that `sample` gave, where f was evaluated.",
) -> None:
    """Raise if `x` has an entry that no state of the distribution has. Tracers are not checked."""
    if not is_concrete(x) or not is_concrete(jax.tree.leaves(dist.parameters)[0]):
        return
    with jax.ensure_compile_time_eval():
        index = np.asarray(dist.index(x))
        nearest = dist.state(jnp.asarray(np.clip(index, 0, dist.num_values - 1)))
        # Rounding to another dtype is allowed.
        coarse = max(float(jnp.finfo(t).eps) for t in (x.dtype, nearest.dtype))
        given, nearest = np.asarray(x, np.float64), np.asarray(nearest, np.float64)
    outside = ~np.isclose(given, nearest, rtol=2 * coarse, atol=0)
    if outside.any():
        raise ValueError(
            f"x has the entry {given[outside][0]:g}, which no state of this {type(dist).__name__} "
            f"has (the nearest state has {nearest[outside][0]:g} in its place). {advice}"
        )


def as_logits(name: str, logits: Any, axes: tuple[str, ...]) -> Float[Array, "..."]:
    """Returns `logits` as an array. Raises unless it is floating-point and has these last axes."""
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
            f"{name} needs at least 2 values on the last axis of its logits, but was given shape "
            f"{shape}."
        )
    if math.prod(shape[len(shape) - len(axes) :]) == 0:
        raise ValueError(
            f"{name} needs at least one coordinate, but its logits have shape {shape}."
        )
    return jnp.asarray(logits)


def _one_variable(shape: tuple[int, ...], axes: tuple[str, ...]) -> str:
    """The advice to add an axis, if the logits are those of a single variable."""
    if len(shape) == len(axes) - 1 == 1:
        return (
            f" A single variable of {shape[0]} values has logits[None], of shape (1, {shape[0]})."
        )
    alone = not shape and len(axes) == 1
    return " A single variable has logits[None], of shape (1,)." if alone else ""
