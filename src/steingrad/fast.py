"""Fast and exact forms of sums, means and small linear systems, with their plain forms.

On a CPU, XLA's reductions and its solver are slow for the shapes that occur here, and a reduction
over several axes loses digits in float32. `tests/test_fast.py` checks that each function agrees
with the `plain_` function of the same name, and that sums are right up to a million numbers.
"""

import functools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

SHORT = 256
"""The longest axis that is summed by a product with ones. Such a product adds one number after the
other, and its rounding errors add up too: a long sum would lose digits that `jnp.sum` keeps."""
TINY = 1e-30
"""The least pivot of `solve`: a feature that is always 0 then has the coefficient 0."""


def plain_sum_of_samples(values: Float[Array, "samples ..."]) -> Float[Array, "..."]:
    return jnp.sum(values, axis=0)


def sum_of_samples(values: Float[Array, "samples ..."]) -> Float[Array, "..."]:
    """The sum along the first axis. A short axis is summed term by term, because XLA's reduction
    along such an axis takes ten times as long on a CPU."""
    few = len(values) <= 16
    return functools.reduce(operator.add, values) if few else plain_sum_of_samples(values)


def plain_sum_of_events(values: Float[Array, "..."], axes: int = 1) -> Float[Array, "..."]:
    return jnp.sum(values, axis=tuple(range(-axes, 0)))


def sum_of_events(values: Float[Array, "..."], axes: int = 1) -> Float[Array, "..."]:
    """The sum over the last `axes` axes. A short one is a product with ones on a CPU, which takes
    about half of the time of a reduction."""
    lead, event = values.shape[: values.ndim - axes], values.shape[values.ndim - axes :]
    if jax.default_backend() != "cpu":
        return plain_sum_of_events(values, axes)
    if math.prod(event) > SHORT:
        return _sum_by_axis(values, axes)
    ones = jnp.ones(math.prod(event), values.dtype)
    return jnp.matmul(values.reshape(*lead, len(ones)), ones, precision="highest")


def _sum_by_axis(values: Float[Array, "..."], axes: int) -> Float[Array, "..."]:
    """The sum over the last axes, one after the other. XLA's reduction over several axes at once
    has an error of 6 · 10⁻⁴ for 31⁴ equal numbers, and of 10⁻⁶ for one axis of 10⁷ numbers."""
    for _ in range(axes):
        # The barrier keeps the compiler from joining this reduction and the next.
        values = jax.lax.optimization_barrier(jnp.sum(values, axis=-1))
    return values


def plain_total(values: Float[Array, "..."]) -> Float[Array, ""]:
    return jnp.sum(values)


def total(values: Float[Array, "..."]) -> Float[Array, ""]:
    """The sum of all numbers. Rows of at least 64 numbers are summed first, which takes at most
    half of the time of one reduction on a CPU."""
    axes = 0
    while axes < values.ndim - 1 and math.prod(values.shape[values.ndim - axes :]) < 64:
        axes += 1
    rows = sum_of_events(values, axes) if axes else values
    return _sum_by_axis(rows, rows.ndim)


def plain_running_sum(values: Float[Array, "... n"]) -> Float[Array, "... n"]:
    return jnp.cumsum(values, axis=-1)


def running_sum(values: Float[Array, "... n"]) -> Float[Array, "... n"]:
    """The cumulative sums along the last axis, of finite numbers. A few are a product with a
    triangle of ones on a CPU, because XLA computes each cumulative sum by itself there."""
    n = values.shape[-1]
    if jax.default_backend() != "cpu" or n > SHORT:
        return plain_running_sum(values)
    return jnp.matmul(values, jnp.triu(jnp.ones((n, n), values.dtype)), precision="highest")


def mean(values: Float[Array, "..."]) -> Float[Array, ""]:
    """The mean of all values. Without values it is 0, so that an empty batch adds nothing."""
    # A sum of numbers in half precision may be too large for their type.
    wide = values if values.dtype.itemsize >= 4 else values.astype(jnp.float32)
    # The values are often sums themselves: see `_sum_by_axis`.
    wide = jax.lax.optimization_barrier(wide)
    return (total(wide) / max(values.size, 1)).astype(values.dtype)


def mean_of_others(values: Float[Array, "samples ..."]) -> Float[Array, "samples ..."]:
    r"""$\frac1{K-1} \sum_{j \ne k} v_j$ for each $k$, at a cost linear in $K$."""
    if len(values) == 2:
        return values[::-1]
    return (sum_of_samples(values) - values) / (len(values) - 1)


def plain_leave_one_out(values: Float[Array, "samples ..."]) -> Float[Array, "samples ..."]:
    return values - mean_of_others(values)


def leave_one_out(values: Float[Array, "samples ..."]) -> Float[Array, "samples ..."]:
    """Each value minus the mean of the others. All are taken relative to the first, so that a large
    constant in all values costs no digits."""
    return plain_leave_one_out(values if len(values) == 2 else values - values[:1])


def mean_of_samples(values: Float[Array, "samples ..."]) -> Float[Array, "..."]:
    r"""$\frac1K \sum_k v_k$."""
    return sum_of_samples(values) / len(values)


def mean_of_squares(tree: Any) -> Float[Array, ""]:
    """The mean over all numbers in a pytree of their squares."""
    leaves = jax.tree.leaves(tree)
    squares = functools.reduce(operator.add, (total(leaf**2) for leaf in leaves))
    return squares / sum(leaf.size for leaf in leaves)


def plain_solve(gram: Float[Array, "*d n n"], right: Float[Array, "*d n"]) -> Float[Array, "*d n"]:
    return jnp.linalg.solve(gram, right[..., None])[..., 0]


def solve(gram: Float[Array, "*d n n"], right: Float[Array, "*d n"]) -> Float[Array, "*d n"]:
    """The solutions of many small positive definite systems. Cholesky's method is written out here,
    so that each of its few operations works on all systems at once; the library's solver takes the
    systems one by one."""
    n = right.shape[-1]
    factor: dict[tuple[int, int], Array] = {}
    for j in range(n):
        left = gram[..., j, j] - sum(factor[j, k] ** 2 for k in range(j))
        # The bound is the rounding error of a feature that depends linearly on the others.
        factor[j, j] = jnp.sqrt(jnp.maximum(left, 1e-6 * gram[..., j, j] + TINY))
        for i in range(j + 1, n):
            left = gram[..., i, j] - sum(factor[i, k] * factor[j, k] for k in range(j))
            factor[i, j] = left / factor[j, j]
    y: list[Array] = []
    for i in range(n):
        left = right[..., i] - sum(factor[i, k] * y[k] for k in range(i))
        y.append(left / factor[i, i])
    for i in reversed(range(n)):
        left = y[i] - sum(factor[k, i] * y[k] for k in range(i + 1, n))
        y[i] = left / factor[i, i]
    return jnp.stack(y, axis=-1)
