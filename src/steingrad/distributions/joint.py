"""Several independent distributions side by side."""

import functools
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .base import MAX_STATES, Distribution


class Joint(Distribution):
    r"""Independent parts, each a distribution of its own: $q(x) = \prod_p q_p(x_p)$.

    The parts are named, `Joint(gates=Bernoulli(...), colours=Categorical(...))`, or a sequence,
    `Joint([Bernoulli(...), Categorical(...)])`. They may have different kinds and numbers of
    values, but share their `batch_shape`. `parameters`, and so gradients, are a dictionary or a
    tuple of the parts' parameters.

    **f sees the parts**: a dictionary or a tuple of states `[..., *event]`. Everywhere else a state
    is one array, the parts' entries one after the other along its last axis, of shape
    `[*batch, D]`; `split` takes it apart and `merge` puts it together.

    Estimators that take any distribution take a `Joint`, and the others one of parts that they
    take. An operator's neighbours are those of the parts.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> q = Joint(on=sg.Bernoulli(jnp.zeros(2)), colour=sg.Categorical(jnp.zeros((1, 3))))
    >>> q.sample(jax.random.key(0), (4,)).shape
    (4, 5)
    >>> f = lambda x: jnp.sum(x["on"], axis=-1) * x["colour"][..., 0, 2]
    >>> value, grads = sg.value_and_grad(f, q, sg.LocalExpectation(), key=jax.random.key(1))
    >>> jax.tree.map(jnp.shape, grads.parameters)
    {'colour': (1, 3), 'on': (2,)}
    """

    parts: tuple[Distribution, ...]
    names: tuple[str, ...] | None = eqx.field(static=True)

    def __init__(self, parts: Sequence[Any] | None = None, /, **named: Any):
        if (parts is None) == (not named):
            raise ValueError(
                "Joint takes named parts, Joint(a=..., b=...), or a sequence of parts, "
                "Joint([..., ...]): one of the two."
            )
        self.names = tuple(named) or None
        self.parts = tuple(named.values() if parts is None else parts)
        for part in self.parts:
            if not isinstance(part, Distribution):
                raise TypeError(
                    f"Joint is made of distributions, but was given a {type(part).__name__}."
                )
        shapes = {part.batch_shape for part in self.parts}
        if len(shapes) != 1:
            raise ValueError(
                "Joint needs one or more parts that share their batch_shape, but was given parts "
                f"with {[part.batch_shape for part in self.parts]}."
            )

    @property
    def parameters(self):
        return self.named([part.parameters for part in self.parts])

    @property
    def batch_shape(self):
        return self.parts[0].batch_shape

    @property
    def event_shape(self):
        return (sum(self._sizes),)

    @property
    def num_coordinates(self):
        return sum(part.num_coordinates for part in self.parts)

    @property
    def num_values(self):
        """The most that any coordinate has."""
        return max(part.num_values for part in self.parts)

    @property
    def num_states(self):
        return math.prod(part.num_states for part in self.parts)

    @property
    def num_neighbours(self):
        return sum(part.num_neighbours for part in self.parts)

    @property
    def dtype(self):
        return _widest(part.dtype for part in self.parts)

    @property
    def normalized(self):
        return all(part.normalized for part in self.parts)

    @property
    def is_product(self):
        return all(part.is_product for part in self.parts)

    @property
    def large_scores(self):
        return any(part.large_scores for part in self.parts)

    @property
    def shares_parameters(self):
        return any(part.shares_parameters for part in self.parts)

    @property
    def has_mean(self):
        return all(part.has_mean for part in self.parts)

    @property
    def mean(self) -> Float[Array, "*batch D"]:
        """The means of the parts."""
        parts: Any = self.parts
        return self.join([part.mean for part in parts])

    def slope(self, gradient: Any) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Those of the parts."""
        parts: Any = self.parts
        slopes = [part.slope(own) for part, own in zip(parts, self.in_order(gradient), strict=True)]
        return self.join([v for v, _ in slopes]), self.join([scale for _, scale in slopes])

    def closed_over(self):
        return tuple(array for part in self.parts for array in part.closed_over())

    def with_parameters(self, parameters):
        parts = [
            part.with_parameters(own)
            for part, own in zip(self.parts, self.in_order(parameters), strict=True)
        ]
        return Joint(**self.named(parts)) if self.names else Joint(parts)

    def split(self, x: Float[Array, "... D"]) -> Any:
        """The parts of a state, of shapes `[..., *event]`: a dictionary or a tuple."""
        return self.named(self.each(x))

    def merge(self, states: Any) -> Float[Array, "... D"]:
        """The state with these parts: the inverse of `split`."""
        return self.join(self.in_order(states))

    def view(self, x):
        return self.named([part.view(own) for part, own in self._with(x)])

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()):
        keys = jax.random.split(key, len(self.parts))
        samples = [part.sample(k, shape) for part, k in zip(self.parts, keys, strict=True)]
        return self.join(samples)

    def log_prob(self, x):
        return _sum([part.log_prob(own) for part, own in self._with(x)])

    def score(self, x):
        return self.named([part.score(own) for part, own in self._with(x)])

    def weighted_score(self, weights, x):
        return self.named([part.weighted_score(weights, own) for part, own in self._with(x)])

    def weighted_score_change(self, coefficients, x, values, coordinates=None):
        raise NotImplementedError(NEIGHBOURS)

    def index(self, x):
        # A number that no state has must not become one by another part's having more values.
        index = [jnp.clip(part.index(own), 0, part.num_values - 1) for part, own in self._with(x)]
        return jnp.concatenate(index, axis=-1)

    def state(self, index):
        counts = [part.num_coordinates for part in self.parts]
        index = _cut(index, counts)
        return self.join([part.state(own) for part, own in zip(self.parts, index, strict=True)])

    def enumerate(self):
        """Every state, of shape `[N, D]`, the last part changing fastest."""
        if self.num_states > MAX_STATES:
            raise ValueError(
                f"Cannot enumerate the {self.num_states} states of this Joint: at most 2^20 = "
                f"{MAX_STATES} are allowed. Use smaller parts, or an estimator in place of the "
                "exact sum."
            )
        number = jnp.arange(self.num_states, dtype=jnp.int32)
        states = []
        for part, place in zip(self.parts, self._places, strict=True):
            states.append(part.enumerate()[number // place % part.num_states])
        return self.join(states)

    def state_number(self, x):
        numbers = [part.state_number(own) for part, own in self._with(x)]
        return _sum([n * place for n, place in zip(numbers, self._places, strict=True)])

    def log_ratio(self, x, values, coordinates=None):
        raise NotImplementedError(NEIGHBOURS)

    def linear_change(self, gradient, x, values, coordinates=None):
        raise NotImplementedError(NEIGHBOURS)

    def score_change(self, coefficients, x, values, coordinates=None):
        raise NotImplementedError(NEIGHBOURS)

    def each(self, x: Float[Array, "... D"]) -> list[Float[Array, "..."]]:
        """The parts of a state, or of a gradient, in order."""
        return [
            own.reshape(*own.shape[:-1], *part.event_shape)
            for part, own in zip(self.parts, _cut(x, self._sizes), strict=True)
        ]

    def join(self, parts: Sequence[Float[Array, "..."]]) -> Float[Array, "... D"]:
        """The inverse of `each`."""
        flat = [
            own.reshape(*own.shape[: own.ndim - part.event_ndim], size).astype(self.dtype)
            for part, own, size in zip(self.parts, parts, self._sizes, strict=True)
        ]
        return jnp.concatenate(flat, axis=-1)

    def in_order(self, parts: Any) -> list:
        """What belongs to the parts, out of a dictionary or a sequence."""
        return [parts[name] for name in self.names] if self.names else list(parts)

    def named(self, parts: Sequence) -> Any:
        """What belongs to the parts, as a dictionary or a tuple."""
        return dict(zip(self.names, parts, strict=True)) if self.names else tuple(parts)

    def _with(self, x):
        for part, own in zip(self.parts, self.each(x), strict=True):
            yield part, own.astype(part.dtype)

    @property
    def _sizes(self) -> list[int]:
        return [math.prod(part.event_shape) for part in self.parts]

    @property
    def _places(self) -> list[int]:
        counts = [part.num_states for part in self.parts]
        return [math.prod(counts[p + 1 :]) for p in range(len(counts))]


NEIGHBOURS = (
    "The neighbours of a Joint's state are those of its parts, which have different numbers of "
    "values: ask an operator for them, operator.neighbours(joint, x), or one of joint.parts."
)


def _widest(dtypes: Iterable) -> Any:
    return max(map(jnp.dtype, dtypes), key=lambda dtype: dtype.itemsize)


def _sum(arrays: list[Array]) -> Array:
    dtype = _widest(array.dtype for array in arrays)
    return functools.reduce(operator.add, [array.astype(dtype) for array in arrays])


def _cut(array: Array, sizes: Sequence[int]) -> list[Array]:
    """Pieces of these sizes along the last axis."""
    pieces, start = [], 0
    for size in sizes:
        pieces.append(array[..., start : start + size])
        start += size
    return pieces
