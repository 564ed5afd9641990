"""A network with one hidden layer of LeakyReLU units, as the piecewise linear function it is.

With S the slope (1 or that of LeakyReLU) of each hidden unit at each point (f, t),

    H_k(f, t) = Σ_u S_u (t w_linear[u] + f w_value[u] + b_in[u]) w_out[u, k] + b_out[k],

which is linear in t and f but for S. So the outputs need the sums of S times six columns made of
the weights, and all parameter gradients the sums over points of S times six columns made of
(t, f, 1) and the two cotangents: two narrow matrix products share one S, and no other array of its
size exists, neither forward nor backward.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

PRECISION = jax.lax.Precision.HIGHEST


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def piecewise_linear(
    params: dict[str, Float[Array, "..."]],
    value: Float[Array, "*rows"],
    linear: Float[Array, "*rows points"],
    slope: float,
) -> Float[Array, "*rows 2 points"]:
    """Both outputs of the network at (value, linear): one value for each row of points.

    The same as `MLPSurrogate.network`, many times faster where the rows are long.
    """
    return _forward(params, value, linear, slope)[0]


def _forward(params, value, linear, slope):
    (w_value, w_linear), w_out = params["w_in"], params["w_out"]
    offset = w_value[:, None] * value.ravel() + params["b_in"][:, None]  # [units, rows]
    points = linear.reshape(value.size, -1)
    hidden = w_linear[:, None, None] * points + offset[..., None]
    slopes = jnp.where(hidden > 0, 1.0, slope).astype(linear.dtype)  # S: [units, rows, points]
    # Six columns: of t, of f and of 1, for each of the two outputs.
    columns = jnp.concatenate([w_linear * w_out.T, w_value * w_out.T, params["b_in"] * w_out.T])
    sums = jnp.dot(columns, slopes.reshape(len(w_value), -1), precision=PRECISION)
    steepness, by_value, constant = sums.reshape(3, 2, *points.shape)
    out = points * steepness + value.reshape(-1, 1) * by_value + constant
    out = out + params["b_out"][:, None, None]
    return jnp.moveaxis(out.reshape(2, *linear.shape), 0, -2), (
        params,
        value,
        linear,
        slopes,
        steepness,
    )


def _backward(slope, residuals, cotangent):
    params, value, linear, slopes, steepness = residuals
    (w_value, w_linear), w_out = params["w_in"], params["w_out"]
    points, f = linear.reshape(value.size, -1), value.reshape(-1, 1)
    g = jnp.moveaxis(cotangent, -2, 0).reshape(2, *points.shape)
    columns = jnp.concatenate([points * g, f * g, g])
    sums = jnp.dot(slopes.reshape(len(w_value), -1), columns.reshape(6, -1).T, precision=PRECISION)
    with_t, with_f, alone = sums[:, :2], sums[:, 2:4], sums[:, 4:]
    gradient = {
        "w_in": jnp.stack([jnp.sum(with_f * w_out, axis=-1), jnp.sum(with_t * w_out, axis=-1)]),
        "b_in": jnp.sum(alone * w_out, axis=-1),
        "w_out": with_t * w_linear[:, None]
        + with_f * w_value[:, None]
        + alone * params["b_in"][:, None],
        "b_out": jnp.sum(g, axis=(1, 2)),
    }
    d_linear = jnp.sum(g * steepness, axis=0).reshape(linear.shape)
    # Not needed while parameters are adapted, and then left out by the compiler.
    d_unit = jnp.einsum("urp,krp->urk", slopes, g, precision=PRECISION)
    d_value = jnp.einsum("urk,uk,u->r", d_unit, w_out, w_value, precision=PRECISION)
    return gradient, d_value.reshape(value.shape), d_linear


piecewise_linear.defvjp(_forward, _backward)
