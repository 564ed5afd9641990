"""Predictions of the effects of flips, by least squares over past flips, and their errors."""

import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..fast import TINY, solve

# Strengths of shrinkage, in numbers of flips. OWN shrinks a coordinate's coefficients towards those
# common to all coordinates. COMMON shrinks the common ones towards the first guess. ERROR shrinks a
# coordinate's error towards the mean error.
OWN, COMMON, ERROR = 1.0, 10.0, 2.0
# The variance is smallest if flips are drawn in proportion to the root mean square of the error,
# the power ½ of its square. A slightly larger power pays off in the layers below, since coordinates
# with large errors have large weights.
POWER = 0.7


def coefficients(
    gram: Float[Array, "d n n"],
    cross: Float[Array, "d n"],
    flips: Float[Array, ""],
    first: Float[Array, " n"],
) -> Float[Array, "d n"]:
    """Regression coefficients of the change of f on the features, for each coordinate, from sums
    over `flips` flips: `gram` of the features' products, `cross` of features times changes. They
    are shrunk towards coefficients common to all coordinates, and those towards `first`."""
    total, total_cross = jnp.sum(gram, axis=0), jnp.sum(cross, axis=0)
    one_flip = jnp.diagonal(total) / (flips + TINY) + TINY
    common = solve(total + jnp.diag(COMMON * one_flip), total_cross + COMMON * one_flip * first)
    return solve(gram + jnp.diag(OWN * one_flip), cross + OWN * one_flip * common)


def relative_errors(
    error: Float[Array, " d"], size: Float[Array, " d"], flips: Float[Array, ""]
) -> Float[Array, " d"]:
    """How often to try each coordinate: its past error relative to the mean error, to a power.
    `error` holds weighted sums of squared errors, and `size` the sums of the weights."""
    spread = jnp.sum(error) / (jnp.sum(size) + TINY)
    few = ERROR * jnp.sum(size) / (flips + TINY) + TINY
    relative = (error / jnp.where(spread > 0, spread, 1) + few) / (size + few)
    return jnp.where(spread > 0, relative, 1) ** POWER


def sums_by_coordinate(
    count: int, coordinates: Int[Array, "..."], columns: dict[str, Array]
) -> dict[str, Any]:
    """Sum each column over the flips of each coordinate. A column is an array `[..., *shape]` with
    one entry for each flip; its sums are an array `[d, *shape]` under the same name."""
    lead = coordinates.ndim
    shapes = {name: column.shape[lead:] for name, column in columns.items()}
    # One sum of all columns together is faster than one sum for each column.
    flat = [column.reshape(coordinates.size, -1) for column in columns.values()]
    rows = jnp.concatenate(flat, axis=-1)
    sums = jnp.zeros((count, rows.shape[-1]), rows.dtype).at[coordinates.reshape(-1)].add(rows)
    found, start = {}, 0
    for name, shape in shapes.items():
        stop = start + math.prod(shape)
        found[name] = sums[:, start:stop].reshape(count, *shape)
        start = stop
    return found
