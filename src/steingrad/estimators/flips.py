"""What Bronco can change in a sample: one coordinate, one coordinate of one part, or a swap."""

import abc
import itertools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..arrays import expand, split_slots, stack_slots, take
from ..distributions import Joint, Ordinal, Subset
from ..distributions.base import Distribution
from ..operators import Gibbs
from ..operators.base import Row


def num_coordinates(dist: Distribution) -> int:
    """How many coordinates can be flipped: a subset's are its bits."""
    if isinstance(dist, Joint):
        return sum(map(num_coordinates, dist.parts))
    return dist.logits.shape[-1] if isinstance(dist, Subset) else dist.num_coordinates


def num_values(dist: Distribution) -> int:
    """The most values that a coordinate has."""
    if isinstance(dist, Joint):
        return max(map(num_values, dist.parts))
    return 2 if isinstance(dist, Subset) else dist.num_values


class Slope(eqx.Module):
    """What f does to first order: its gradient at the samples, or the mean effect of each value of
    each coordinate in the past."""

    gradient: Any
    """Of shape `[..., *event]`, or `None`: then there is an"""
    effect: Any
    """of shape `[d, m]`."""


class Flips(eqx.Module):
    r"""The changes of single coordinates of samples $x$, in an array `[..., c, n]` of slots. If $h$
    is the change of $f$ by each of them, $E[f]$ has the gradient $E[$`gradient(h)`$]$."""

    @property
    @abc.abstractmethod
    def conditional(self) -> Float[Array, "... c n"]:
        """The probability of the new value."""

    @property
    @abc.abstractmethod
    def here(self) -> Int[Array, "... c n"]:
        """The index of the coordinate's value before the change,"""

    @property
    @abc.abstractmethod
    def there(self) -> Int[Array, "... c n"]:
        """and after it."""

    @property
    @abc.abstractmethod
    def squared_step(self) -> Float[Array, "... c n"]:
        """|y − x|², divided by its mean over all pairs of values."""

    @abc.abstractmethod
    def linear_change(self, slope: "Slope") -> Float[Array, "... c n"]:
        r"""$\nabla^\top (y - x)$, before it is known what a random change will be."""

    @property
    def has_partners(self) -> bool:
        """Whether something else changes with the coordinate, which is left to chance."""
        return False

    def draw_partners(
        self, slots: Int[Array, "flips ..."], key: PRNGKeyArray
    ) -> Int[Array, "flips ..."] | None:
        """What that is."""
        return None

    def by_chance(
        self, slots: Int[Array, "flips ..."], partners: Int[Array, "flips ..."], slope: "Slope"
    ) -> tuple[Float[Array, "flips ..."], Float[Array, "flips ..."]]:
        r"""$\nabla^\top (y - x)$ with these partners, minus `linear_change`; and minus its mean
        over all partners."""
        raise NotImplementedError

    @abc.abstractmethod
    def gradient(self, change: Float[Array, "... c n"]) -> Any:
        """The gradient for each sample, shaped like the score, from the changes of f."""

    @abc.abstractmethod
    def spread(self, numbers: Float[Array, "d *more"]) -> Float[Array, "c n *more"]:
        """What belongs to each coordinate, at its slots (n may be 1, for all of them)."""

    @abc.abstractmethod
    def coordinates(self, slots: Int[Array, "flips ..."]) -> Int[Array, "flips ..."]:
        """Which coordinates the slots change."""

    @abc.abstractmethod
    def points(
        self, slots: Int[Array, "flips ..."], partners: Int[Array, "flips ..."] | None
    ) -> Float[Array, "flips ..."]:
        """The samples with these changes made."""


def flips_of(dist: Distribution, x: Float[Array, "..."]) -> Flips:
    if isinstance(dist, Joint):
        states = zip(dist.parts, dist.each(x), strict=True)
        return JointFlips(
            dist, tuple(flips_of(part, own.astype(part.dtype)) for part, own in states)
        )
    if isinstance(dist, Subset):
        return Swaps(dist, x, dist.marginals)
    return CoordinateFlips(dist, x, Gibbs(scan="own").neighbours(dist, x))


class CoordinateFlips(Flips):
    """All other values of each coordinate, the others as they are: independent coordinates."""

    dist: Distribution
    x: Float[Array, "..."]
    row: Row

    @property
    def conditional(self):
        return self.row.weights * self.dist.num_coordinates

    @property
    def here(self):
        return jnp.broadcast_to(self.dist.index(self.x)[..., None], self.row.values.shape)

    @property
    def there(self):
        return self.row.values

    @property
    def squared_step(self):
        if not isinstance(self.dist, Ordinal):
            return jnp.ones_like(self.row.weights)
        values = jnp.asarray(self.dist.values, self.row.weights.dtype)
        step = values[self.row.values] - self.x[..., None].astype(values.dtype)
        m = len(self.dist.values)
        mean = jnp.sum((values[:, None] - values) ** 2) / (m * (m - 1))
        return step**2 / mean

    def linear_change(self, slope):
        if slope.effect is None:
            return self.row.linear_change(slope.gradient, self.x)
        of = lambda value: take(slope.effect[:, None], value[..., None])[..., 0]
        return of(self.there) - of(self.here)

    def gradient(self, change):
        here = jnp.zeros(change.shape[:-2], change.dtype)
        return self.row.apply_to_score(change, here, self.dist.score(self.x), self.x)

    def spread(self, numbers):
        return numbers[:, None]

    def coordinates(self, slots):
        return slots // (self.dist.num_values - 1)

    def points(self, slots, partners):
        coordinates, steps = jnp.divmod(slots[..., None], self.dist.num_values - 1)
        here = jnp.arange(self.dist.num_coordinates, dtype=slots.dtype) == coordinates
        # Change n of a coordinate is to the value n + 1 further on, cyclically.
        index = self.dist.index(self.x) + jnp.where(here, steps + 1, 0)
        return self.dist.state(index % self.dist.num_values)


class Swaps(Flips):
    r"""A bit of a `Subset` and a random partner, so that there still are $k$ ones.

    $\partial_i E[f] = \mu_i (1 - \mu_i) (E[f \mid x_i = 1] - E[f \mid x_i = 0])$. If $x_i = 1$, the
    state with $i$ out and a partner $j$ in, drawn with `chances`, has the distribution of $x$
    given $x_i = 0$, and the other way round. So $\mu_i (1 - \mu_i)$ times the change of $f$, or its
    negative if $x_i = 1$, has the mean $\partial_i E[f]$.
    """

    dist: Subset
    x: Float[Array, "... d"]
    mean: Float[Array, "*batch d"]

    @property
    def conditional(self):
        return jnp.where(self.x > 0.5, 1 - self.mean, self.mean)[..., None]

    @property
    def here(self):
        return (self.x > 0.5).astype(jnp.int32)[..., None]

    @property
    def there(self):
        return 1 - self.here

    @property
    def squared_step(self):
        return jnp.ones_like(self.conditional)

    def linear_change(self, slope):
        # The partner's mean, had it nothing to do with the bit.
        gradient, member = self._gradient(slope), self.x > 0.5
        entering, leaving = jnp.where(member, 0, self.mean), jnp.where(member, 1 - self.mean, 0)
        mean_of = lambda w: jnp.sum(w * gradient, -1) / (jnp.sum(w, -1) + 1e-30)
        enters, leaves = (mean_of(w)[..., None] for w in (entering, leaving))
        return jnp.where(member, enters - gradient, gradient - leaves)[..., None]

    @property
    def has_partners(self):
        return True

    def draw_partners(self, slots, key):
        probability = self.chances(slots)
        below = jnp.cumsum(probability, axis=-1)
        uniform = jax.random.uniform(key, slots.shape, below.dtype)[..., None]
        # Never one of probability 0, whatever was rounded.
        chosen = (below > uniform * below[..., -1:]) & (probability > 0)
        partner = jnp.argmax(chosen, axis=-1).astype(jnp.int32)
        # A bit that cannot change has no partner, and stays.
        return jnp.where(below[..., -1] > 0, partner, slots)

    def by_chance(self, slots, partners, slope):
        gradient = self._gradient(slope)
        # Partners of other parts' slots may lie outside, and are not used.
        partners = jnp.clip(partners, 0, self.mean.shape[-1] - 1)
        at = lambda array, element: take(array[None], element[..., None])[..., 0]
        sign = jnp.where(at(self.x, slots) > 0.5, 1, -1).astype(gradient.dtype)
        partner = at(gradient, partners)
        change = sign * (partner - at(gradient, slots))
        expected = jnp.sum(self.chances(slots) * gradient, axis=-1)
        guessed = at(self.linear_change(slope)[..., 0], slots)
        return change - guessed, sign * (partner - expected)

    def _gradient(self, slope: Slope) -> Float[Array, "... d"]:
        if slope.effect is not None:
            difference = slope.effect[:, 1] - slope.effect[:, 0]
            return jnp.broadcast_to(difference.astype(self.mean.dtype), self.x.shape)
        # Elements that are never members have none: f with log q in it is infinite there.
        return jnp.where(self.mean > 0, slope.gradient.astype(self.mean.dtype), 0)

    def gradient(self, change):
        sign = jnp.where(self.x > 0.5, -1, 1).astype(change.dtype)
        return (self.mean * (1 - self.mean)).astype(change.dtype) * sign * change[..., 0]

    def spread(self, numbers):
        return numbers[:, None]

    def coordinates(self, slots):
        return slots

    def points(self, slots, partners):
        elements = jnp.arange(self.mean.shape[-1], dtype=jnp.int32)
        assert partners is not None
        moved = (elements == slots[..., None]) ^ (elements == partners[..., None])
        return jnp.where(moved, 1 - self.x, self.x)

    def chances(self, slots: Int[Array, "flips ..."]) -> Float[Array, "flips ... d"]:
        r"""The probability of each element to be the partner of bit $i$.

        Without $i$, $A$ of $k - 1$ and $B$ of $k$ elements are drawn element by element, from the
        last to the first, with the same uniform numbers. With more members missing an element is
        more likely one, so $B$ is $A$ until it has one more, the partner, and is $A$ again after
        it. One of the two is known here; the other follows given that.
        """
        d = self.mean.shape[-1]
        elements = jnp.arange(d, dtype=jnp.int32)
        bit = elements == slots[..., None]
        others = self.dist.with_parameters(jnp.where(bit, -jnp.inf, self.dist.logits))
        include = jnp.moveaxis(others.inclusion, 0, -2)  # [..., d, missing]
        known = (~bit & (self.x > 0.5)).astype(jnp.int32)
        missing = jnp.cumsum(known, axis=-1)
        smaller = jnp.sum(jnp.where(bit, self.x, 0), -1, keepdims=True) > 0.5  # A is known
        of_a = jnp.where(smaller, missing, missing - 1)
        at = lambda r: take(include, jnp.clip(r, 0, self.dist.k)[..., None])[..., 0]
        p_a, p_b = at(of_a), at(of_a + 1)
        joins = (p_b - p_a) / jnp.maximum(1 - p_a, 1e-30)
        parts = 1 - p_a / jnp.maximum(p_b, 1e-30)
        hazard = jnp.where(smaller, jnp.where(known > 0, 0, joins), jnp.where(known > 0, parts, 0))
        hazard = jnp.clip(jnp.where(bit, 0, hazard), 0, 1)
        after = jnp.cumprod(1 - hazard[..., ::-1], axis=-1)[..., ::-1]
        survives = jnp.concatenate([after[..., 1:], jnp.ones_like(after[..., :1])], axis=-1)
        partners = hazard * survives
        total = jnp.sum(partners, axis=-1, keepdims=True)
        return partners / jnp.where(total > 0, total, 1)


class JointFlips(Flips):
    """Those of the parts, one after the other: slots `[..., N, 1]`."""

    joint: Joint
    parts: tuple[Any, ...]  # Flips, which all know their x

    @property
    def conditional(self):
        return stack_slots([part.conditional for part in self.parts])

    @property
    def here(self):
        return stack_slots([part.here for part in self.parts])

    @property
    def there(self):
        return stack_slots([part.there for part in self.parts])

    @property
    def squared_step(self):
        return stack_slots([part.squared_step for part in self.parts])

    def linear_change(self, slope):
        own = zip(self.parts, self._slopes(slope), strict=True)
        return stack_slots([part.linear_change(s) for part, s in own])

    @property
    def has_partners(self):
        return any(part.has_partners for part in self.parts)

    def draw_partners(self, slots, key):
        keys, drawn = jax.random.split(key, len(self.parts)), None
        for (part, _, local, inside), k in zip(self._local(slots), keys, strict=True):
            own = part.draw_partners(local, k)
            if own is not None:
                drawn = jnp.where(inside, own, jnp.zeros_like(slots) if drawn is None else drawn)
        return drawn

    def by_chance(self, slots, partners, slope):
        total: list[Any] = [0.0, 0.0]
        dtype = self.conditional.dtype
        local = zip(self._local(slots), self._slopes(slope), strict=True)
        for (part, _, own, inside), s in local:
            if part.has_partners:
                terms = (term.astype(dtype) for term in part.by_chance(own, partners, s))
                total = [jnp.where(inside, term, t) for term, t in zip(terms, total, strict=True)]
        return total[0], total[1]

    def _slopes(self, slope: Slope) -> list[Slope]:
        if slope.effect is None:
            return [Slope(own, None) for own in self.joint.each(slope.gradient)]
        sizes = itertools.accumulate(map(num_coordinates, self.joint.parts))
        pieces = jnp.split(slope.effect, list(sizes)[:-1])
        return [Slope(None, own) for own in pieces]

    def gradient(self, change):
        own = zip(self.parts, split_slots(change, self._shapes), strict=True)
        return self.joint.named([part.gradient(change) for part, change in own])

    def spread(self, numbers):
        pieces, start = [], 0
        for part, dist, shape in zip(self.parts, self.joint.parts, self._shapes, strict=True):
            stop = start + num_coordinates(dist)
            own = part.spread(numbers[start:stop])
            own = jnp.broadcast_to(own, (*shape, *own.shape[2:]))
            pieces.append(own.reshape(-1, 1, *own.shape[2:]))
            start = stop
        return jnp.concatenate(pieces)

    def coordinates(self, slots):
        coordinates = jnp.zeros_like(slots)
        first = 0
        for part, dist, local, inside in self._local(slots):
            coordinates = jnp.where(inside, first + part.coordinates(local), coordinates)
            first += num_coordinates(dist)
        return coordinates

    def points(self, slots, partners):
        states = []
        for part, dist, local, inside in self._local(slots):
            inside = expand(inside, inside.ndim + dist.event_ndim)
            states.append(jnp.where(inside, part.points(local, partners), part.x))
        return self.joint.join(states)

    @property
    def x(self):
        return self.joint.join([part.x for part in self.parts])

    @property
    def _shapes(self) -> list[tuple[int, ...]]:
        return [part.conditional.shape[-2:] for part in self.parts]

    def _local(self, slots):
        """Each part with its distribution, the slots as its own, and which are."""
        start = 0
        for part, dist, shape in zip(self.parts, self.joint.parts, self._shapes, strict=True):
            count = math.prod(shape)
            local = slots - start
            inside = (local >= 0) & (local < count)
            yield part, dist, jnp.clip(local, 0, count - 1), inside
            start += count
