r"""A network with one hidden layer of LeakyReLU units, as the piecewise linear function it is.

With S the slope (1 or that of LeakyReLU) of each hidden unit u at each point (f, t),

    H_k(f, t) = Σ_u S_u (t w_linear[u] + f w_value[u] + b_in[u]) w_out[u, k] + b_out[k],

so the gradients of the parameters depend on the points only through the sums of S_u g_k and of
S_u t g_k over the points of a row, where g is the cotangent: four narrow products with one S.

An array of points × units would be far larger than a cache, and would cost more to move than to
compute. So the forward pass adds a few units at a time to the outputs, and the backward pass
recomputes S, a few rows at a time. The plain network (`MLPSurrogate.network`) and its derivative
give the same numbers up to rounding, but are several times slower (`benchmarks/growth.py`).
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..derivatives import on_each_device
from ..fast import sum_of_events

PRECISION = jax.lax.Precision.HIGHEST
# Units added in one pass over the points: enough to hide reading and writing the outputs.
UNITS = 10
# Numbers in the S of one block: 4 MB in float32, within the cache of a processor.
BLOCK = 2**20


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def piecewise_linear(
    cv: dict[str, Float[Array, "..."]],
    value: Float[Array, "others *rows"],
    linear: Float[Array, "others *rows points"],
    slope: float,
) -> Float[Array, "2 *rows points"]:
    """Both outputs of the network at (value, linear), one value for each row of points, averaged
    over the first axis."""
    f, t = _flat(value, linear)
    w_value, w_linear = cv["w_in"]
    w_out = cv["w_out"] / len(f)

    # LeakyReLU(z) = slope z + (1 − slope) max(z, 0). The first term of all units is a single sum.
    # (`jnp.maximum` costs more, to handle z = NaN, which the sum propagates anyway.)
    positive = lambda z: jnp.where(z > 0, z, 0)
    inputs = jnp.stack([w_linear, w_value, cv["b_in"]])
    of_t, of_f, of_1 = slope * jnp.matmul(inputs, w_out, precision=PRECISION)[..., None]

    def add_units(outputs, t, block):
        for w, c, w_out in zip(*block, strict=True):
            outputs = outputs + w_out[:, None, None] * positive(w * t + c[:, None])
        return outputs

    def add_other(outputs, other):
        f, t = other
        outputs = outputs + (of_t[..., None] * t + (of_f * f + of_1)[..., None])
        offset = w_value[:, None] * f + cv["b_in"][:, None]  # [units, rows]
        blocks = _blocks(len(w_value) / UNITS, (w_linear, offset, (1 - slope) * w_out))
        return jax.lax.scan(lambda o, block: (add_units(o, t, block), None), outputs, blocks)

    outputs = jnp.broadcast_to(cv["b_out"][:, None, None], (2, *t.shape[1:]))
    outputs, _ = jax.lax.scan(add_other, outputs, (f, t))
    return outputs.reshape(2, *linear.shape[1:])


def _forward(cv, value, linear, slope):
    return piecewise_linear(cv, value, linear, slope), (cv, value, linear)


def _backward(slope, residuals, cotangent):
    cv, value, linear = residuals
    (w_value, w_linear), w_out = cv["w_in"], cv["w_out"]
    f, t = _flat(value, linear)
    g = cotangent.reshape(2, *t.shape[1:]) / len(f)
    # Rows of (t g, g), of t and of the units' offsets, for each of the others.
    columns = jnp.stack([jnp.broadcast_to(g, (len(t), *g.shape)), t[:, None] * g], axis=1)
    columns = jnp.moveaxis(columns.reshape(len(t), 4, *t.shape[1:]), 1, 2)
    columns = columns.reshape(-1, *columns.shape[2:])
    offset = f.reshape(-1, 1) * w_value + cv["b_in"]
    pieces_of_row = t.shape[-1] * len(w_value) / BLOCK

    def product(t, columns, offset):
        slopes = jnp.where(t[..., None] * w_linear + offset[:, None] >= 0, 1.0, slope)
        return jnp.einsum("rcp,rpu->rcu", columns, slopes.astype(t.dtype), precision=PRECISION)

    def sums(block):
        """Σ S g and Σ S t g over the points of each row: [rows, 4, units]."""
        t, columns, offset = block
        if pieces_of_row <= 1:
            return product(t, columns, offset)
        # A single row is too long for a block.
        pieces = _blocks(pieces_of_row, (t.T, jnp.moveaxis(columns, -1, 0)))
        one = lambda t, columns: product(t.T, jnp.moveaxis(columns, 0, -1), offset)
        zeros = jnp.zeros((len(t), 4, len(w_value)), t.dtype)
        zeros, pieces = on_each_device((zeros, pieces))
        return jax.lax.scan(lambda total, piece: (total + one(*piece), None), zeros, pieces)[0]

    blocks = _blocks(t.size * len(w_value) / BLOCK, (t.reshape(-1, t.shape[-1]), columns, offset))
    of_rows = jax.lax.map(sums, blocks).reshape(-1, 2, 2, len(w_value))[: len(offset)]
    alone = of_rows[:, 0]  # [rows, outputs, units]
    of_all = partial(jnp.einsum, "r,rku->uk", precision=PRECISION)
    ones = jnp.ones(len(offset), t.dtype)
    with_t = of_all(ones, of_rows[:, 1])
    with_f = of_all(f.ravel(), alone)
    with_1 = of_all(ones, alone)
    gradient = {
        "w_in": jnp.stack([jnp.sum(with_f * w_out, axis=-1), jnp.sum(with_t * w_out, axis=-1)]),
        "b_in": jnp.sum(with_1 * w_out, axis=-1),
        "w_out": with_t * w_linear[:, None]
        + with_f * w_value[:, None]
        + with_1 * cv["b_in"][:, None],
        "b_out": len(f) * jnp.sum(sum_of_events(g), axis=-1),
    }
    # These are not needed to adapt the parameters, and the compiler then removes them.
    d_value = jnp.einsum("rku,uk,u->r", alone, w_out, w_value, precision=PRECISION)
    d_linear = _steepness(cv, f, t, g, slope)
    return gradient, d_value.reshape(value.shape), d_linear.reshape(linear.shape)


piecewise_linear.defvjp(_forward, _backward)


def _flat(value, linear):
    """All rows along one axis: values `[others, rows]`, points `[others, rows, points]`."""
    others, points = value.shape[0], linear.shape[-1]
    return value.reshape(others, -1), linear.reshape(others, -1, points)


def _steepness(cv, f, t, g, slope):
    """Σ_u S_u w_linear[u] Σ_k w_out[u, k] g_k: the derivative with respect to t."""
    unit = lambda w_value, w, b, w_out: (
        w
        * jnp.where(w_value * f[..., None] + w * t + b >= 0, 1.0, slope).astype(t.dtype)
        * (w_out[0] * g[0] + w_out[1] * g[1])
    )
    add = lambda total, weights: (total + unit(*weights), None)
    weights = (*cv["w_in"], cv["b_in"], cv["w_out"])
    zeros, *weights = on_each_device((jnp.zeros_like(t), *weights))
    return jax.lax.scan(add, zeros, tuple(weights))[0]


def _blocks(count: float, tree: Any) -> Any:
    """Cut the first axis into at least `count` blocks of equal length. The last block is padded
    with zeros."""
    first = len(jax.tree.leaves(tree)[0])
    length = math.ceil(first / max(1, math.ceil(count)))
    padded = lambda leaf: jnp.pad(leaf, [(0, -first % length)] + [(0, 0)] * (leaf.ndim - 1))
    return jax.tree.map(lambda leaf: padded(leaf).reshape(-1, length, *leaf.shape[1:]), tree)
