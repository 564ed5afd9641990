"""Estimators on a `Joint` of parts that they take."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float

from ..arrays import concatenate
from ..distributions import Joint
from ..distributions.base import Distribution
from .base import check_distribution


def leaves(dist: Distribution) -> list[Any]:
    """The parts that are no joints themselves, in order; of anything else, it alone."""
    if not isinstance(dist, Joint):
        return [dist]
    return [leaf for part in dist.parts for leaf in leaves(part)]


def apart(dist: Distribution, x: Float[Array, "..."]) -> list[Float[Array, "..."]]:
    """The shares that the `leaves` have of a state or a gradient."""
    if not isinstance(dist, Joint):
        return [x]
    each = zip(dist.parts, dist.each(x), strict=True)
    return [inner for part, own in each for inner in apart(part, own)]


def merged(dist: Distribution, pieces: Sequence[Float[Array, "..."]]) -> Float[Array, "..."]:
    """The inverse of `apart`, in the pieces' own type."""
    if not isinstance(dist, Joint):
        return pieces[0]
    each = zip(leaves(dist), pieces, strict=True)
    flat = [own.reshape(*own.shape[: own.ndim - leaf.event_ndim], -1) for leaf, own in each]
    return concatenate(flat, axis=-1)


def arranged(dist: Distribution, pieces: Sequence[Any]) -> Any:
    """What belongs to the `leaves`, arranged like the distribution's parameters."""
    left = iter(pieces)

    def of(dist):
        if not isinstance(dist, Joint):
            return next(left)
        return dist.named([of(part) for part in dist.parts])

    return of(dist)


def samples_parts(sample: Callable) -> Callable:
    """A method `sample` that draws the parts of a `Joint` independently. Samples that are coupled
    are so in each part, and exchangeable as they were."""

    @functools.wraps(sample)
    def of_parts(self, key, dist):
        if not isinstance(dist, Joint):
            return sample(self, key, dist)
        check_distribution(self, dist)
        keys = jax.random.split(key, len(dist.parts))
        return dist.join(
            [of_parts(self, k, part) for k, part in zip(keys, dist.parts, strict=True)]
        )

    return of_parts


def differentiates_parts(gradient: Callable) -> Callable:
    """A method `gradient` that goes by one coordinate at a time: a part's needs of the others only
    what f made of them."""

    @functools.wraps(gradient)
    def of_parts(self, cv, dist, at):
        if not isinstance(dist, Joint):
            return gradient(self, cv, dist, at)
        count = len(dist.parts)
        keys = [None] * count if at.key is None else jax.random.split(at.key, count)
        slopes = [None] * count if at.dfx is None else dist.each(at.dfx)
        gradients = []
        for part, x, dfx, key in zip(dist.parts, dist.each(at.x), slopes, keys, strict=True):
            own = eqx.tree_at(
                lambda at: (at.x, at.dfx, at.key),
                at,
                (x.astype(part.dtype), dfx, key),
                is_leaf=lambda leaf: leaf is None,
            )
            gradients.append(of_parts(self, cv, part, own))
        return dist.named(gradients)

    return of_parts
