"""Array helpers that several packages use."""

import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped


def compute_dtype(*arrays: Any) -> Any:
    """The dtype to compute in: float64 if one of the arrays has it, otherwise float32."""
    double = any(jnp.result_type(array) == jnp.float64 for array in arrays)
    return jnp.dtype(jnp.float64 if double else jnp.float32)


def cast(tree: Any, like: Any) -> Any:
    """Cast the real floating-point arrays of a tree to a dtype, or to the dtypes of another
    tree."""
    if not isinstance(like, jnp.dtype):
        return jax.tree.map(lambda leaf, old: leaf.astype(old.dtype), tree, like)
    floating = lambda leaf: eqx.is_inexact_array(leaf) and not jnp.iscomplexobj(leaf)
    return jax.tree.map(lambda leaf: leaf.astype(like) if floating(leaf) else leaf, tree)


def as_index(number: Any) -> Any:
    """Convert a whole number of any kind, such as NumPy's, to `int`. Anything else is returned
    unchanged, so that a later check can refuse it."""
    return operator.index(number) if hasattr(number, "__index__") else number


def check_whole(owner: str, setting: str, number: Any, least: int, why: str = "") -> None:
    """Raise unless a setting, converted by `as_index`, is a whole number of at least `least`."""
    if not isinstance(number, int) or number < least:
        raise ValueError(
            f"{owner} needs a whole {setting} of {least} or more{why}, but was given {number!r}."
        )


def brief(tree: Any) -> str:
    """A pytree on one line, with arrays as dtype and shape, for an error message."""
    return " ".join(eqx.tree_pformat(tree, struct_as_array=True).split())


def is_concrete(array: Any) -> bool:
    """Whether the numbers in an array are known: it is no tracer, and it is on this machine."""
    tracer = jax.core.Tracer  # pyright: ignore[reportAttributeAccessIssue]
    return not isinstance(array, tracer) and getattr(array, "is_fully_addressable", True)


def is_log_zero(array: Array) -> Array:
    """Whether the numbers are −∞. (`jnp.isneginf` makes an infinite number to compare with, at
    which `jax_debug_infs` raises an error.)"""
    return array < float(jnp.finfo(array.dtype).min)


def expand(array: Array, ndim: int) -> Array:
    """`array` with axes of length one appended, up to `ndim` axes."""
    return array.reshape(array.shape + (1,) * (ndim - array.ndim))


def take(array: Array, coordinates: Int[Array, "... c"] | None, axis: int = -1) -> Array:
    """Pick coordinates from an axis. The other axes of `array` and `coordinates` are broadcast."""
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


def others(values: Shaped[Array, "samples ..."]) -> Shaped[Array, "others samples ..."]:
    """For each k the values of the other samples, v_(k+1), v_(k+2), ... (mod K), on a new axis.

    >>> others(jnp.array([10.0, 11.0, 12.0]))
    Array([[11., 12., 10.],
           [12., 10., 11.]], dtype=float32)
    """
    if len(values) == 2:
        return values[::-1][None]
    # K copies end to end, cut into rows of K + 1: each row starts one sample later.
    count = len(values)
    copies = jnp.tile(values, (count, *[1] * (values.ndim - 1)))[1:]
    return copies.reshape(count - 1, count + 1, *values.shape[1:])[:, :count]


@jax.custom_jvp
def log_softmax(logits: Float[Array, "... m"]) -> Float[Array, "... m"]:
    """The logarithm of the softmax along the last axis. That of `jax.nn` has an error of 10⁻⁷ in
    float32; this one has all its digits, even if a value is nearly certain."""
    shifted = logits - jnp.max(logits, axis=-1, keepdims=True)
    return shifted - jnp.log1p(_odds_of_others(logits)[1])


@log_softmax.defjvp
def _(primals, tangents):
    # The sum in the formula leaves out the largest logit, so its derivative is not the right one.
    out, (tangent,) = log_softmax(*primals), tangents
    return out, tangent - jnp.sum(jnp.exp(out) * tangent, axis=-1, keepdims=True)


def softmax_and_rest(
    logits: Float[Array, "... m"],
) -> tuple[Float[Array, "... m"], Float[Array, "... m"]]:
    """Returns p, the softmax along the last axis, and 1 − p. Both have all their digits."""
    p = jax.nn.softmax(logits)
    largest, odds = _odds_of_others(jax.lax.stop_gradient(logits))
    # The digits that 1 − p has lost. Its derivative is right.
    lost = jnp.where(largest, odds / (1 + odds) - (1 - jax.lax.stop_gradient(p)), 0)
    return p, 1 - p + lost


def _odds_of_others(logits: Float[Array, "... m"]) -> tuple[Bool[Array, "... m"], Array]:
    """Returns which logit is the largest, and Σ exp(logit − largest) over the others."""
    # By its index: the compiler may compute a logit several times and round it differently, so that
    # the largest logit would not be equal to itself.
    index = jnp.argmax(logits, axis=-1, keepdims=True)
    largest = jnp.arange(logits.shape[-1], dtype=index.dtype) == index
    shifted = logits - jnp.max(logits, axis=-1, keepdims=True)
    odds = jnp.sum(jnp.where(largest, 0, jnp.exp(shifted)), axis=-1, keepdims=True)
    return largest, odds
