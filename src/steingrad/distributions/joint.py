"""Several independent distributions side by side."""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from ..arrays import expand
from .base import MAX_STATES, Distribution
from .foreign import as_distribution, is_foreign
from .neighbours import Neighbours, Slope


def _of_parts(combine: Callable, name: str) -> Any:
    """A property of a `Joint`, made of the same property of its parts."""
    return property(lambda joint: combine(getattr(part, name) for part in joint.parts))


class Joint(Distribution):
    r"""Independent parts, each a distribution of its own: $q(x) = \prod_p q_p(x_p)$.

    The parts are named, `Joint(gates=Bernoulli(...), colours=Categorical(...))`, or a sequence,
    `Joint([Bernoulli(...), Categorical(...)])`. They may have different kinds and numbers of
    values, but must have the same `batch_shape`. `parameters` and gradients are dictionaries or
    tuples with one entry for each part.

    **f sees the parts**: a dictionary or a tuple of states `[..., *event]`. Everywhere else a state
    is one array of shape `[*batch, D]`, the parts' entries one after the other along its last axis.
    `split` returns the parts of a state, and `merge` joins them.

    A `Joint` can do what all of its parts can do: for example, it `has_mean` if each part has one.
    The neighbours of a state are the neighbours of its parts, in slots `[..., N, 1]`.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> q = Joint(on=sg.Bernoulli(jnp.zeros(2)), colour=sg.Categorical(jnp.zeros((1, 3))))
    >>> q.sample(jax.random.key(0), (4,)).shape
    (4, 5)
    >>> f = lambda x: jnp.sum(x["on"], axis=-1) * x["colour"][..., 0, 2]
    >>> value, grads = sg.value_and_grad(f, q, sg.LocalExpectation(), key=jax.random.key(1))
    >>> jax.tree.map(jnp.shape, grads.parameters)
    {'colour': (1, 3), 'on': (2,)}
    """

    parts: tuple[Any, ...]
    names: tuple[str, ...] | None = eqx.field(static=True)

    def __init__(self, parts: Sequence[Any] | None = None, /, **named: Any):
        if (parts is None) == (not named):
            raise ValueError(
                "Joint takes either named parts or a sequence of parts: write Joint(a=..., b=...) "
                "or Joint([..., ...])."
            )
        self.names = tuple(named) or None
        given = tuple(named.values() if parts is None else parts)
        for part in given:
            if not (isinstance(part, Distribution) or is_foreign(part)):
                raise TypeError(
                    f"Joint is made of distributions, but was given a {type(part).__name__}."
                )
        self.parts = tuple(map(as_distribution, given))
        shapes = {part.batch_shape for part in self.parts}
        if len(shapes) != 1:
            raise ValueError(
                "Joint needs one or more parts that share their batch_shape, but was given parts "
                f"with {[part.batch_shape for part in self.parts]}."
            )

    normalized = _of_parts(all, "normalized")
    has_mean = _of_parts(all, "has_mean")
    is_product = _of_parts(all, "is_product")
    is_binary = _of_parts(all, "is_binary")
    relaxable = _of_parts(all, "relaxable")
    flippable = _of_parts(all, "flippable")
    differentiable = _of_parts(all, "differentiable")
    full_support = _of_parts(all, "full_support")
    large_scores = _of_parts(any, "large_scores")
    shares_parameters = _of_parts(any, "shares_parameters")
    num_coordinates = _of_parts(sum, "num_coordinates")
    num_neighbours = _of_parts(sum, "num_neighbours")
    num_states = _of_parts(math.prod, "num_states")
    num_values = _of_parts(max, "num_values")  # the most that any coordinate has

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
    def dtype(self):
        return _widest(part.dtype for part in self.parts)

    @property
    def mean(self):
        return self.join([part.mean for part in self.parts])

    def pull_mean(self, v):
        return self.named([part.pull_mean(own) for part, own in self._with(v)])

    def slope(self, gradient):
        own = zip(self.parts, self.in_order(gradient), strict=True)
        above, below = zip(*(part.slope(g) for part, g in own), strict=True)
        return self.join(above), self.join(below)

    def noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "... D"]:
        """The noise of the parts."""
        return self.sample_by_part(lambda part, key: part.noise(key, shape), key)

    def location(self) -> Float[Array, "*batch D"]:
        """The locations of the parts."""
        return self.join([part.location() for part in self.parts])

    def latent_given(self, x: Float[Array, "... D"], noise: Float[Array, "... D"]) -> Array:
        """The latent variables of the parts, given their states."""
        each = zip(self.parts, self.each(x), self.each(noise), strict=True)
        return self.join([part.latent_given(own, n) for part, own, n in each])

    def relax(self, z: Float[Array, "... D"], temperature: Any) -> Float[Array, "... D"]:
        """The relaxed states of the parts."""
        each = zip(self.parts, self.each(z), strict=True)
        return self.join([part.relax(own, temperature) for part, own in each])

    def constants(self):
        return tuple(array for part in self.parts for array in part.constants())

    def with_parameters(self, parameters):
        own = zip(self.parts, self.in_order(parameters), strict=True)
        parts = tuple(part.with_parameters(p) for part, p in own)
        return eqx.tree_at(lambda q: q.parts, self, parts)

    def split(self, x: Float[Array, "... D"]) -> Any:
        """The parts of a state, of shapes `[..., *event]`: a dictionary or a tuple."""
        return self.named(self.each(x))

    def merge(self, states: Any) -> Float[Array, "... D"]:
        """The state with these parts: the inverse of `split`."""
        return self.join(self.in_order(states))

    def view(self, x):
        each = zip(self.parts, self.each(x), strict=True)
        return self.named([part.view(own.astype(part.dtype)) for part, own in each])

    def by_given(self, gradient):
        own = zip(self.parts, self.in_order(gradient), strict=True)
        return self.named([part.by_given(g) for part, g in own])

    def by_part(self, fn, *states, key=None):
        count = len(self.parts)
        keys = [None] * count if key is None else jax.random.split(key, count)
        shares = [[None] * count if state is None else self.each(state) for state in states]
        each = zip(self.parts, keys, *shares, strict=True)
        return self.named([part.by_part(fn, *own, key=k) for part, k, *own in each])

    def sample_by_part(self, draw, key):
        keys = jax.random.split(key, len(self.parts))
        each = zip(self.parts, keys, strict=True)
        return self.join([part.sample_by_part(draw, k) for part, k in each])

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()):
        return self.sample_by_part(lambda part, key: part.sample(key, shape), key)

    def log_prob(self, x):
        return _sum([part.log_prob(own) for part, own in self._with(x)])

    def score(self, x):
        return self.named([part.score(own) for part, own in self._with(x)])

    def counted(self, factors):
        parts = tuple(part.counted(factors) for part in self.parts)
        return eqx.tree_at(lambda q: q.parts, self, parts)

    def weighted_score(self, weights, x):
        return self.named([part.weighted_score(weights, own) for part, own in self._with(x)])

    def index(self, x):
        # An invalid value must not become valid because another part has more values.
        index = [jnp.clip(part.index(own), 0, part.num_values - 1) for part, own in self._with(x)]
        return jnp.concatenate(index, axis=-1)

    def state(self, index):
        index = _cut(index, [part.num_coordinates for part in self.parts])
        return self.join([part.state(own) for part, own in zip(self.parts, index, strict=True)])

    def enumerate(self):
        """Every state, of shape `[N, D]`, with the last part changing fastest."""
        if self.num_states > MAX_STATES:
            raise ValueError(
                f"Cannot enumerate the {self.num_states} states of this Joint: at most 2^20 = "
                f"{MAX_STATES} are allowed. Use smaller parts, or an estimator in place of the "
                "exact sum."
            )
        number = jnp.arange(self.num_states, dtype=jnp.int32)
        each = zip(self.parts, self._places, strict=True)
        return self.join(
            [part.enumerate()[number // place % part.num_states] for part, place in each]
        )

    def state_number(self, x):
        numbers = [part.state_number(own) for part, own in self._with(x)]
        return _sum([n * place for n, place in zip(numbers, self._places, strict=True)])

    def neighbours(self, x, offsets=None, coordinates=None):
        if offsets is not None or coordinates is not None:
            raise ValueError(
                "A Joint takes no offsets or coordinates, because its parts have different values, "
                "but was given some: pass them to one of joint.parts, or use an operator."
            )
        return JointNeighbours(self, x, [part.neighbours(own) for part, own in self._with(x)])

    def rows(self, row, x, averages):
        each = [part.rows(row, own, averages) for part, own in self._with(x)]
        neighbours, weights, self_weights = zip(*each, strict=True)
        if averages:
            shares = [part.num_coordinates / self.num_coordinates for part in self.parts]
            weights = [w * share for w, share in zip(weights, shares, strict=True)]
            self_weights = [w * share for w, share in zip(self_weights, shares, strict=True)]
        return JointNeighbours(self, x, neighbours), stack_slots(weights), _sum([*self_weights])

    @property
    def flip_shape(self):
        counts, values = zip(*(part.flip_shape for part in self.parts), strict=True)
        return sum(counts), max(values)

    def flips(self, x):
        return JointNeighbours(self, x, [part.flips(own) for part, own in self._with(x)])

    def log_ratio(self, x, values, coordinates=None):
        return self._of_values(x, values, coordinates).log_ratio()

    def linear_change(self, gradient, x, values, coordinates=None):
        return self._of_values(x, values, coordinates).linear_change(gradient)

    def score_change(self, coefficients, x, values, coordinates=None):
        return self._of_values(x, values, coordinates).score_change(coefficients)

    def weighted_score_change(self, coefficients, x, values, coordinates=None):
        return self._of_values(x, values, coordinates).weighted_score_change(coefficients)

    def shift(self, x, offsets=None, coordinates=None):
        return self.neighbours(x, offsets, coordinates).values

    def at_neighbours(self, h, x, values, coordinates=None):
        return self._of_values(x, values, coordinates).evaluate(h)

    def _of_values(self, x, values, coordinates) -> "JointNeighbours":
        """The neighbours with these values, in the slots of `neighbours(x)`."""
        every = self.neighbours(x, None, coordinates)
        own = zip(every.parts, every.apart(values), strict=True)
        parts = [Neighbours(part.dist, part.x, new, part.coordinates) for part, new in own]
        return JointNeighbours(self, x, parts)

    def each(self, x: Float[Array, "... D"]) -> list[Float[Array, "..."]]:
        """The parts of a state, or of a gradient, in order."""
        shapes = [part.event_shape for part in self.parts]
        pieces = zip(_cut(x, [math.prod(shape) for shape in shapes]), shapes, strict=True)
        return [own.reshape(*own.shape[:-1], *shape) for own, shape in pieces]

    def join(self, parts: Sequence[Float[Array, "..."]]) -> Float[Array, "... D"]:
        """The inverse of `each`, in the widest dtype among the parts."""
        each = zip(self.parts, parts, strict=True)
        return _concatenate([_flatten(own, part.event_ndim) for part, own in each])

    def in_order(self, parts: Any) -> list:
        """The entries of a dictionary or sequence, in the order of the parts."""
        return [parts[name] for name in self.names] if self.names else list(parts)

    def named(self, parts: Sequence) -> Any:
        """The entries, in the order of the parts, as a dictionary or a tuple."""
        return dict(zip(self.names, parts, strict=True)) if self.names else tuple(parts)

    def _with(self, x):
        return zip(self.parts, self.each(x), strict=True)

    @property
    def _sizes(self) -> list[int]:
        return [math.prod(part.event_shape) for part in self.parts]

    @property
    def _places(self) -> list[int]:
        counts = [part.num_states for part in self.parts]
        return [math.prod(counts[p + 1 :]) for p in range(len(counts))]


class JointNeighbours(Neighbours):
    """The neighbours of the parts of a state, one after the other: slots `[..., N, 1]`."""

    parts: tuple[Neighbours, ...]
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    """The lengths (c, n) of the last two axes of each part's slots."""

    def __init__(self, joint: Joint, x: Float[Array, "... D"], parts: Sequence[Neighbours]):
        self.dist, self.x, self.parts, self.coordinates = joint, x, tuple(parts), None
        self.shapes = tuple(part.values.shape[-2:] for part in parts)
        self.values = stack_slots([part.values for part in parts])

    def apart(self, slots: Shaped[Array, "... N 1"]) -> list[Array]:
        """The entries of an array of slots that belong to each part."""
        ends = list(itertools.accumulate(map(math.prod, self.shapes)))[:-1]
        pieces = zip(jnp.split(slots[..., 0], ends, axis=-1), self.shapes, strict=True)
        return [own.reshape(*own.shape[:-1], *shape) for own, shape in pieces]

    def log_ratio(self):
        return stack_slots([part.log_ratio() for part in self.parts])

    def conditional(self):
        return stack_slots([part.conditional() for part in self.parts])

    def evaluate(self, h):
        states = [part.x for part in self.parts]

        def with_part(p):
            return lambda own: h(self.dist.join([*states[:p], own, *states[p + 1 :]]))

        return stack_slots([part.evaluate(with_part(p)) for p, part in enumerate(self.parts)])

    def linear_change(self, gradient):
        own = zip(self.parts, self.dist.each(gradient), strict=True)
        return stack_slots([part.linear_change(g) for part, g in own])

    def score_change(self, coefficients):
        return self._named("score_change", self.apart(coefficients))

    def weighted_score_change(self, coefficients):
        return self._named("weighted_score_change", self.apart(coefficients))

    def times_score(self, numbers, score):
        return self._named("times_score", self.apart(numbers), self.dist.in_order(score))

    def local_expectation(self, change, conditional):
        return self._named("local_expectation", self.apart(change), self.apart(conditional))

    def local_gradient(self, change, conditional):
        return self._named("local_gradient", self.apart(change), self.apart(conditional))

    def _named(self, method: str, *inputs: Sequence) -> Any:
        each = zip(self.parts, *inputs, strict=True)
        return self.dist.named([getattr(part, method)(*own) for part, *own in each])

    @property
    def here(self):
        return stack_slots([part.here for part in self.parts])

    def squared_step(self):
        return stack_slots([part.squared_step() for part in self.parts])

    def first_order(self, slope):
        own = zip(self.parts, self._slopes(slope), strict=True)
        return stack_slots([part.first_order(s) for part, s in own])

    def spread(self, numbers):
        each = zip(self.parts, _cut(numbers, self._counts), self.shapes, strict=True)
        pieces = [jnp.broadcast_to(part.spread(n), shape) for part, n, shape in each]
        return stack_slots(pieces)

    def coordinate_of(self, slots):
        coordinates, first = jnp.zeros_like(slots), 0
        for part, count, (local, inside) in zip(
            self.parts, self._counts, self._local(slots), strict=True
        ):
            coordinates = jnp.where(inside, first + part.coordinate_of(local), coordinates)
            first += count
        return coordinates

    def moved(self, slots, partners):
        states = []
        for part, (local, inside) in zip(self.parts, self._local(slots), strict=True):
            moved = part.moved(local, partners)
            states.append(jnp.where(expand(inside, moved.ndim), moved, part.x))
        return self.dist.join(states)

    @property
    def has_partners(self):
        return any(part.has_partners for part in self.parts)

    def draw_partners(self, slots, key):
        if not self.has_partners:
            return None
        keys, drawn = jax.random.split(key, len(self.parts)), jnp.zeros_like(slots)
        for part, k, (local, inside) in zip(self.parts, keys, self._local(slots), strict=True):
            own = part.draw_partners(local, k)
            drawn = drawn if own is None else jnp.where(inside, own, drawn)
        return drawn

    def by_chance(self, slots, partners, slope):
        zero = jnp.zeros(slots.shape, self.x.dtype)
        total = zero, zero
        own = zip(self.parts, self._slopes(slope), self._local(slots), strict=True)
        for part, s, (local, inside) in own:
            if part.has_partners:
                terms = zip(part.by_chance(local, partners, s), total, strict=True)
                total = tuple(jnp.where(inside, term, t) for term, t in terms)
        return total

    def _slopes(self, slope: Slope) -> list[Slope]:
        if slope.effect is None:
            return [Slope(own, None) for own in self.dist.each(slope.gradient)]
        ends = list(itertools.accumulate(self._counts))[:-1]
        return [Slope(None, own) for own in jnp.split(slope.effect, ends)]

    @property
    def _counts(self) -> list[int]:
        """The numbers of coordinates that the parts' slots change."""
        return [part.flip_shape[0] for part in self.dist.parts]

    def _local(self, slots: Array) -> list[tuple[Array, Array]]:
        """For each part, the slots as numbers of its own slots, and which of them are its own."""
        found, start = [], 0
        for count in map(math.prod, self.shapes):
            local = slots - start
            found.append((jnp.clip(local, 0, count - 1), (local >= 0) & (local < count)))
            start += count
        return found


def stack_slots(pieces: Sequence[Array]) -> Shaped[Array, "... N 1"]:
    """Arrays over the slots of several parts, each `[..., c, n]`, one after the other."""
    return _concatenate([_flatten(piece, 2) for piece in pieces])[..., None]


def _flatten(array: Array, ndim: int) -> Array:
    """The last axes of an array as one. (A −1 in its place would not do for an empty batch.)"""
    lead, own = array.shape[: array.ndim - ndim], array.shape[array.ndim - ndim :]
    return array.reshape(*lead, math.prod(own))


def _concatenate(pieces: Sequence[Array]) -> Array:
    """The pieces joined along their last axis, in the widest of their dtypes."""
    widest = _widest(piece.dtype for piece in pieces)
    return jnp.concatenate([piece.astype(widest) for piece in pieces], axis=-1)


def _widest(dtypes: Iterable) -> Any:
    """The dtype that holds all numbers of these dtypes: the widest, but float32 for bfloat16 and
    float16, of which neither holds the numbers of the other."""
    dtypes = set(map(jnp.dtype, dtypes))
    most = max(dtype.itemsize for dtype in dtypes)
    widest = [dtype for dtype in dtypes if dtype.itemsize == most]
    return widest[0] if len(widest) == 1 else jnp.dtype(jnp.float32)


def _sum(arrays: list[Array]) -> Array:
    dtype = _widest(array.dtype for array in arrays)
    return functools.reduce(operator.add, [array.astype(dtype) for array in arrays])


def _cut(array: Array, sizes: Sequence[int]) -> list[Array]:
    """Pieces of these sizes along the last axis."""
    return jnp.split(array, list(itertools.accumulate(sizes))[:-1], axis=-1)
