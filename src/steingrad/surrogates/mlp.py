"""The paper's surrogate: a small network of the other samples' values and gradients."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..distributions.base import compute_dtype
from .base import Surrogate, Values, event_axes, mean_of_others, mean_of_samples, others
from .piecewise import PRECISION, piecewise_linear


class MLPSurrogate(Surrogate):
    r"""$h_k(y) = \frac1{K-1} \sum_{j \ne k} H(f_j, t_j(y))$ with $t_j(y) = \nabla f_j^\top
    (y - x_j)$.

    $H$ and $H^*$ are the two outputs of one network of `hidden` LeakyReLU units (in `layers` = 1
    or 2 layers) with inputs $f_j$ and $t_j(y)$. Because a neighbour $y$ of $x_k$ differs from it
    in one coordinate, $t_j(y) = \nabla f_j^\top (x_k - x_j) + \partial_i f_j \, (y_i - x_{k,i})$:
    one dot product for each pair of samples, then elementwise.

    Reference: Shi et al. 2022, section 4.

    >>> import jax, jax.numpy as jnp
    >>> surrogate = MLPSurrogate(hidden=100)
    >>> params = surrogate.init(jax.random.key(0))
    >>> h, h_star = surrogate.network(params, value=jnp.zeros(5), linear=jnp.ones(5))
    >>> h.shape
    (5,)
    """

    hidden: int = eqx.field(static=True, default=100)
    layers: int = eqx.field(static=True, default=1)
    slope: float = eqx.field(static=True, default=0.3)

    def __check_init__(self):
        name = type(self).__name__
        if self.hidden < 1:
            raise ValueError(f"{name} needs 1 or more hidden units, but was given {self.hidden}.")
        if self.layers not in (1, 2):
            raise ValueError(f"{name} has 1 or 2 hidden layers, but was given {self.layers}.")

    def init(self, key: PRNGKeyArray) -> dict[str, Float[Array, "..."]]:
        """Glorot uniform weights, zero biases."""
        glorot = jax.nn.initializers.glorot_uniform()
        in_key, mid_key, out_key = jax.random.split(key, 3)
        params = {
            "w_in": glorot(in_key, (2, self.hidden)),
            "b_in": jnp.zeros(self.hidden),
            "w_out": glorot(out_key, (self.hidden, 2)),
            "b_out": jnp.zeros(2),
        }
        if self.layers == 2:
            params["w_mid"] = glorot(mid_key, (self.hidden, self.hidden))
            params["b_mid"] = jnp.zeros(self.hidden)
        return params

    def network(
        self,
        params: dict[str, Float[Array, "..."]],
        value: Float[Array, "..."],
        linear: Float[Array, "..."],
    ) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """H and H* at (f_j, t_j), elementwise over arrays that broadcast together."""
        # As precise as at the neighbours: E[A h] = 0 asks for the same h at both.
        matmul = partial(jnp.matmul, precision=PRECISION)
        params = jax.tree.map(lambda p: p.astype(linear.dtype), params)
        w_value, w_linear = params["w_in"]
        hidden = jax.nn.leaky_relu(
            value[..., None] * w_value + linear[..., None] * w_linear + params["b_in"], self.slope
        )
        if self.layers == 2:
            hidden = jax.nn.leaky_relu(
                matmul(hidden, params["w_mid"]) + params["b_mid"], self.slope
            )
        out = matmul(hidden, params["w_out"]) + params["b_out"]
        return out[..., 0], out[..., 1]

    def evaluate(self, params, row, x, fx, dfx, f=None):
        x_j, f_j, df_j = others(x), others(fx), others(dfx)
        # t_j(x_k), then t_j at the neighbours of x_k.
        t_self = jnp.sum(df_j * (x - x_j).astype(dfx.dtype), axis=event_axes(x, fx))
        t = t_self[..., None, None] + row.linear_change(df_j, x)
        return self._values(params, f_j, t_self, t)

    def _values(self, params: Any, value: Array, t_self: Array, t: Array):
        """H and H* at the neighbours and at the samples, averaged over the first axis."""
        dtype = compute_dtype(value, t)
        value, t_self, t = (array.astype(dtype) for array in (value, t_self, t))
        # One row of points for each value: the sample itself, then its neighbours.
        points = jnp.concatenate([t_self[..., None], t.reshape(*value.shape, -1)], axis=-1)
        if self.layers == 1:
            cast = jax.tree.map(lambda p: p.astype(dtype), params)
            outputs: Any = piecewise_linear(cast, value, points, self.slope)
        else:
            outputs = map(mean_of_samples, self.network(params, value[..., None], points))
        local, global_ = (Values(h[..., 1:].reshape(t.shape[1:]), h[..., 0]) for h in outputs)
        return local, global_


class PooledSurrogate(MLPSurrogate):
    r"""$h_k(y) = H(\bar f_k, \bar t_k(y))$, the network of the means $\bar f_k = \frac1{K-1}
    \sum_{j \ne k} f_j$ and $\bar t_k(y) = \frac1{K-1} \sum_{j \ne k} t_j(y)$.

    One evaluation of the network for each sample instead of one for each pair of samples, so that
    the cost grows with $K$, not $K^2$. With $K = 2$ it is `MLPSurrogate`.

    >>> PooledSurrogate(hidden=32, layers=2).layers
    2
    """

    def evaluate(self, params, row, x, fx, dfx, f=None):
        return self._values(params, *(pooled[None] for pooled in pool(row, x, fx, dfx)))


def pool(row, x, fx, dfx):
    """The means over j ≠ k of f_j, of t_j(x_k) and of t_j at the neighbours of x_k."""
    mean_df = mean_of_others(dfx)
    inner = lambda a, b: jnp.sum(a * b.astype(a.dtype), axis=event_axes(x, fx))
    t_self = inner(mean_df, x) - mean_of_others(inner(dfx, x))
    return mean_of_others(fx), t_self, t_self[..., None, None] + row.linear_change(mean_df, x)
