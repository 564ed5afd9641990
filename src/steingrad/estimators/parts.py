"""Estimators that are, on a `Joint`, what they are on each of its parts."""

import functools
from collections.abc import Callable

import equinox as eqx
import jax

from ..distributions import Joint
from .base import check_distribution


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
