"""Array helpers that several rooms share."""

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped


def compute_dtype(*arrays: Any) -> Any:
    """The type to compute in: that of the arrays, and at least float32."""
    double = any(jnp.result_type(array) == jnp.float64 for array in arrays)
    return jnp.dtype(jnp.float64 if double else jnp.float32)


def as_index(number: Any) -> Any:
    """Whole numbers of any kind, NumPy's too, as an `int`; the rest as it is, to be refused."""
    return operator.index(number) if hasattr(number, "__index__") else number


def check_whole(owner: str, setting: str, number: Any, least: int, why: str = "") -> None:
    """Raise unless a setting, behind `as_index`, is a whole number, and large enough."""
    if not isinstance(number, int) or number < least:
        raise ValueError(
            f"{owner} needs a whole {setting} of {least} or more{why}, but was given {number!r}."
        )


def brief(tree: Any) -> str:
    """A pytree on one line, arrays by type and shape, for an error message."""
    return " ".join(eqx.tree_pformat(tree, struct_as_array=True).split())


def is_concrete(array: Any) -> bool:
    """Whether the numbers in an array can be looked at: JAX is not tracing it."""
    tracer = jax.core.Tracer  # pyright: ignore[reportAttributeAccessIssue]
    return not isinstance(array, tracer) and getattr(array, "is_fully_addressable", True)


def expand(array: Array, ndim: int) -> Array:
    """`array` with axes of length one added at its end."""
    return array.reshape(array.shape + (1,) * (ndim - array.ndim))


def take(array: Array, coordinates: Int[Array, "... c"] | None, axis: int = -1) -> Array:
    """Pick coordinates out of an axis; `array`'s other axes are broadcast against theirs."""
    if coordinates is None:
        return array
    for _ in range(-1 - axis):
        coordinates = coordinates[..., None]
    extra = coordinates.ndim - array.ndim
    array = array.reshape((1,) * max(extra, 0) + array.shape)
    coordinates = coordinates.reshape((1,) * max(-extra, 0) + coordinates.shape)
    return jnp.take_along_axis(array, coordinates, axis=axis)


def scatter(updates: Array, index: Int[Array, "... n"], size: int) -> Array:
    """Add `updates` up into an axis of `size` entries: the transpose of `take`."""
    shape = jnp.broadcast_shapes(updates.shape, index.shape)
    updates, index = jnp.broadcast_to(updates, shape), jnp.broadcast_to(index, shape)
    rows = index.reshape(-1, shape[-1])
    summed = jax.vmap(lambda i, u: jnp.zeros(size, updates.dtype).at[i].add(u))(
        rows, updates.reshape(rows.shape)
    )
    return summed.reshape(*shape[:-1], size)


def concatenate(pieces: Sequence[Array], axis: int) -> Array:
    """One array of them all, in the widest type among them."""
    widest = max((piece.dtype for piece in pieces), key=lambda dtype: dtype.itemsize)
    return jnp.concatenate([piece.astype(widest) for piece in pieces], axis)


def stack_slots(pieces: Sequence[Array]) -> Shaped[Array, "... N 1"]:
    """What belongs to the slots of several parts, each `[..., c, n]`, one after the other."""
    return concatenate([piece.reshape(*piece.shape[:-2], -1, 1) for piece in pieces], axis=-2)


def split_slots(
    stacked: Shaped[Array, "... N 1"], shapes: Sequence[tuple[int, ...]]
) -> list[Array]:
    """The inverse of `stack_slots`, given (c, n) of each part."""
    ends = list(itertools.accumulate(map(math.prod, shapes)))[:-1]
    pieces = jnp.split(stacked[..., 0], ends, axis=-1)
    return [own.reshape(*own.shape[:-1], *shape) for own, shape in zip(pieces, shapes, strict=True)]


def others(values: Shaped[Array, "samples ..."]) -> Shaped[Array, "others samples ..."]:
    """For each k the values of the other samples, v_(k+1), v_(k+2), ... (mod K), along a new axis.

    >>> others(jnp.array([10.0, 11.0, 12.0]))
    Array([[11., 12., 10.],
           [12., 10., 11.]], dtype=float32)
    """
    if len(values) == 2:
        return values[::-1][None]
    # K copies end to end, cut into rows of K + 1: each begins one further than the row before.
    count = len(values)
    copies = jnp.tile(values, (count, *[1] * (values.ndim - 1)))[1:]
    return copies.reshape(count - 1, count + 1, *values.shape[1:])[:, :count]


def mean(values: Float[Array, "..."]) -> Float[Array, ""]:
    """The mean of all values; 0 if there are none, so that an empty batch adds nothing."""
    wide = values.astype(compute_dtype(values))
    return (total(wide) / max(values.size, 1)).astype(values.dtype)


def mean_of_others(values: Float[Array, "samples ..."]) -> Float[Array, "samples ..."]:
    r"""$\frac1{K-1} \sum_{j \ne k} v_j$ for each $k$, at a cost linear in $K$."""
    if len(values) == 2:
        return values[::-1]
    return (sum_of_samples(values) - values) / (len(values) - 1)


def mean_of_samples(values: Float[Array, "samples ..."]) -> Float[Array, "..."]:
    r"""$\frac1K \sum_k v_k$."""
    return sum_of_samples(values) / len(values)


def sum_of_samples(values: Float[Array, "samples ..."]) -> Float[Array, "..."]:
    """A sum along a first axis that is short: term by term, because on a CPU reductions along such
    an axis are compiled into something that takes ten times as long."""
    few = len(values) <= 16
    return functools.reduce(operator.add, values) if few else jnp.sum(values, axis=0)


def sum_of_events(values: Float[Array, "..."], axes: int = 1) -> Float[Array, "..."]:
    """The sum over the last axes. On a CPU as a product with ones: a reduction adds the numbers of
    a row one after the other there, and takes four times as long."""
    if jax.default_backend() != "cpu":
        return jnp.sum(values, axis=tuple(range(-axes, 0)))
    lead, event = values.shape[: values.ndim - axes], values.shape[values.ndim - axes :]
    ones = jnp.ones(math.prod(event), values.dtype)
    return jnp.matmul(values.reshape(*lead, len(ones)), ones, precision="highest")


def total(values: Float[Array, "..."]) -> Float[Array, ""]:
    """The sum of all numbers, by rows of as many last axes as make up 64 of them: on a CPU, in half
    the time of one reduction or less."""
    axes = 0
    while axes < values.ndim - 1 and math.prod(values.shape[values.ndim - axes :]) < 64:
        axes += 1
    return jnp.sum(sum_of_events(values, axes) if axes else values)


def running_sum(values: Float[Array, "... n"]) -> Float[Array, "... n"]:
    """The sums up to each number of a last axis that is short, of finite numbers. On a CPU as a
    product with a triangle of ones: there a cumulative sum is as many sums, number by number."""
    if jax.default_backend() != "cpu":
        return jnp.cumsum(values, axis=-1)
    n = values.shape[-1]
    return jnp.matmul(values, jnp.triu(jnp.ones((n, n), values.dtype)), precision="highest")


def weighted_mean(coefficients: Float[Array, "samples ..."], score: Any) -> Any:
    """1/K Σₖ cₖ s(xₖ), for each leaf of the score."""
    return jax.tree.map(lambda s: mean_of_samples(expand(coefficients, s.ndim) * s), score)


def mean_of_squares(tree: Any) -> Float[Array, ""]:
    """The mean over all numbers in a pytree of their squares."""
    leaves = jax.tree.leaves(tree)
    dtype = compute_dtype(*leaves)
    squares = jnp.stack([total(leaf.astype(dtype) ** 2) for leaf in leaves])
    return jnp.sum(squares) / sum(leaf.size for leaf in leaves)
