"""The network that the learned surrogates share."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..arrays import as_index, check_whole
from ..fast import mean_of_samples
from .base import Surrogate, Values
from .piecewise import PRECISION, piecewise_linear


class NetworkSurrogate(Surrogate):
    r"""A surrogate made of $H$ and $H^*$, the two outputs of one network of `hidden` LeakyReLU
    units (in `layers` = 1 or 2 layers), whose inputs are a value and a linear change."""

    hidden: int = eqx.field(static=True, converter=as_index, default=100)
    """The number of hidden units of the surrogate in each layer (paper: 100)."""
    layers: int = eqx.field(static=True, converter=as_index, default=1)
    """The number of hidden layers of the surrogate, 1 or 2 (paper: 1; ablation: 2)."""
    slope: float = eqx.field(static=True, default=0.3)
    """The slope of the surrogate's LeakyReLU units below zero."""

    def __check_init__(self):
        name = type(self).__name__
        check_whole(name, "number of hidden units", self.hidden, 1)
        if self.layers not in (1, 2):
            raise ValueError(f"{name} needs 1 or 2 hidden layers, but was given {self.layers}.")

    def init(self, key: PRNGKeyArray) -> dict[str, Float[Array, "..."]]:
        """The network starts with Glorot uniform weights and with biases of zero."""
        glorot = jax.nn.initializers.glorot_uniform()
        in_key, mid_key, out_key = jax.random.split(key, 3)
        cv = {
            "w_in": glorot(in_key, (2, self.hidden)),
            "b_in": jnp.zeros(self.hidden),
            "w_out": glorot(out_key, (self.hidden, 2)),
            "b_out": jnp.zeros(2),
        }
        if self.layers == 2:
            cv["w_mid"] = glorot(mid_key, (self.hidden, self.hidden))
            cv["b_mid"] = jnp.zeros(self.hidden)
        return cv

    def network(
        self,
        cv: dict[str, Float[Array, "..."]],
        value: Float[Array, "..."],
        linear: Float[Array, "..."],
    ) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """H and H* at (f_j, t_j), elementwise over arrays that broadcast together."""
        # As precise as at the neighbours, because E[A h] = 0 needs the same h at both.
        matmul = partial(jnp.matmul, precision=PRECISION)
        w_value, w_linear = cv["w_in"]
        hidden = jax.nn.leaky_relu(
            value[..., None] * w_value + linear[..., None] * w_linear + cv["b_in"], self.slope
        )
        if self.layers == 2:
            hidden = jax.nn.leaky_relu(matmul(hidden, cv["w_mid"]) + cv["b_mid"], self.slope)
        out = matmul(hidden, cv["w_out"]) + cv["b_out"]
        return out[..., 0], out[..., 1]

    def values(
        self,
        cv: dict[str, Float[Array, "..."]],
        value: Float[Array, "others samples ..."],
        t_self: Float[Array, "others samples ..."],
        t: Float[Array, "others samples ... c n"],
    ) -> tuple[Values, Values]:
        """H and H* at the neighbours and at the samples, averaged over the first axis."""
        # One row of points for each value: the sample itself, then its neighbours.
        points = jnp.concatenate([t_self[..., None], t.reshape(*value.shape, -1)], axis=-1)
        if self.layers == 1:
            outputs: Any = piecewise_linear(cv, value, points, self.slope)
        else:
            outputs = map(mean_of_samples, self.network(cv, value[..., None], points))
        local, global_ = (Values(h[..., 1:].reshape(t.shape[1:]), h[..., 0]) for h in outputs)
        return local, global_
