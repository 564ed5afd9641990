"""What past flips say about the next ones: least squares for each coordinate, and their errors."""

import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..fast import TINY, solve

# How much a coordinate's own past counts. Its coefficients are shrunk towards those common to all
# coordinates by as much as OWN flips, and the common ones towards the first guess by COMMON flips.
# Its error is shrunk towards the mean by ERROR flips.
OWN, COMMON, ERROR = 1.0, 10.0, 2.0
# The variance is least if flips go where the error's root mean square is large (the power ½ of its
# square). A little more pays off in the layers below, since such coordinates have large weights.
POWER = 0.7


def coefficients(
    gram: Float[Array, "d n n"],
    cross: Float[Array, "d n"],
    flips: Float[Array, ""],
    first: Float[Array, " n"],
) -> Float[Array, "d n"]:
    """The coefficients of the features for each coordinate, from sums of their products with each
    other and with the change of f over a number of flips. They are shrunk towards coefficients
    common to all coordinates, and these towards the first guess."""
    total, total_cross = jnp.sum(gram, axis=0), jnp.sum(cross, axis=0)
    one_flip = jnp.diagonal(total) / (flips + TINY) + TINY
    common = solve(total + jnp.diag(COMMON * one_flip), total_cross + COMMON * one_flip * first)
    return solve(gram + jnp.diag(OWN * one_flip), cross + OWN * one_flip * common)


def relative_errors(
    error: Float[Array, " d"], size: Float[Array, " d"], flips: Float[Array, ""]
) -> Float[Array, " d"]:
    """How often to try each coordinate: its past error over the mean error, to a power. `error` has
    sums of squares of what the guess missed, `size` of what they are relative to."""
    spread = jnp.sum(error) / (jnp.sum(size) + TINY)
    few = ERROR * jnp.sum(size) / (flips + TINY) + TINY
    relative = (error / jnp.where(spread > 0, spread, 1) + few) / (size + few)
    return jnp.where(spread > 0, relative, 1) ** POWER


def sums_by_coordinate(
    count: int, coordinates: Int[Array, "..."], columns: dict[str, Array]
) -> dict[str, Any]:
    """Sums of each column, an array `[..., *shape]` with one entry for each flip, over the flips of
    each coordinate: arrays `[d, *shape]`, by the names of the columns."""
    lead = coordinates.ndim
    shapes = {name: column.shape[lead:] for name, column in columns.items()}
    # One sum over rows of all columns is faster than one for each of them.
    flat = [column.reshape(coordinates.size, -1) for column in columns.values()]
    rows = jnp.concatenate(flat, axis=-1)
    sums = jnp.zeros((count, rows.shape[-1]), rows.dtype).at[coordinates.reshape(-1)].add(rows)
    found, start = {}, 0
    for name, shape in shapes.items():
        stop = start + math.prod(shape)
        found[name] = sums[:, start:stop].reshape(count, *shape)
        start = stop
    return found
