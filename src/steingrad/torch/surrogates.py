"""The surrogates of `steingrad.surrogates`: cheap approximations of f at the neighbours."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import surrogates as sg
from .arrays import expand, inner, mean_of_others, others
from .evaluated import Evaluated
from .piecewise import piecewise_linear


class Values(NamedTuple):
    """A surrogate at the slots of the neighbours, and at the samples."""

    neighbours: Tensor
    self: Tensor


def init(surrogate: Any, seed: Any) -> Any:
    """What is learned at first: Glorot uniform weights and biases of zero, or `None`."""
    if not isinstance(surrogate, sg.network.NetworkSurrogate):
        return None
    hidden = surrogate.hidden
    cv = {
        "w_in": seed.glorot(2, hidden),
        "b_in": torch.zeros(hidden),
        "w_out": seed.glorot(hidden, 2),
        "b_out": torch.zeros(2),
    }
    if surrogate.layers == 2:
        cv |= {"w_mid": seed.glorot(hidden, hidden), "b_mid": torch.zeros(hidden)}
    return {name: cv[name] for name in sorted(cv)}


def check(name: str, surrogate: Any) -> None:
    """Raise if a surrogate exists in JAX only."""
    kinds = sg.MLPSurrogate, sg.PooledSurrogate, sg.LinearSurrogate
    if type(surrogate) not in kinds:
        raise TypeError(
            f"{name} in PyTorch takes an MLPSurrogate, a PooledSurrogate or a LinearSurrogate, but "
            f"was given a {type(surrogate).__name__}: use one of these, or use {name} in JAX."
        )


def evaluate(surrogate: Any, cv: Any, dist: Any, flips: Any, at: Evaluated) -> tuple:
    """h and h* at each sample and its neighbours."""
    x = dist.one_hot(at.x)
    if type(surrogate) is sg.MLPSurrogate:
        f_j, df_j = others(at.fx), others(at.dfx)
        t_self = inner(df_j, x - others(x), dist.state_axes)
        t = expand(t_self, t_self.ndim + flips.slot_axes) + flips.first_order(df_j)
        return values(surrogate, cv, f_j, t_self, t)
    mean_df = mean_of_others(at.dfx)
    own = inner(at.dfx, x, dist.state_axes)
    t_self = inner(mean_df, x, dist.state_axes) - mean_of_others(own)
    t = expand(t_self, t_self.ndim + flips.slot_axes) + flips.first_order(mean_df)
    value = mean_of_others(at.fx)
    if type(surrogate) is sg.LinearSurrogate:
        linear = Values(expand(value, t.ndim) + t, value + t_self)
        return linear, linear
    return values(surrogate, cv, value[None], t_self[None], t[None])


def values(surrogate: Any, cv: dict, value: Tensor, t_self: Tensor, t: Tensor) -> tuple:
    """H and H* at the neighbours and at the samples, averaged over the first axis."""
    # One row of points for each value: the sample itself, then its neighbours.
    points = torch.cat([t_self[..., None], t.reshape(*value.shape, -1)], -1)
    if surrogate.layers == 1:
        outputs = piecewise_linear(cv, value, points, surrogate.slope)
    else:
        outputs = network(cv, value[..., None], points, surrogate.slope).mean(1)
    return tuple(Values(h[..., 1:].reshape(t.shape[1:]), h[..., 0]) for h in outputs.unbind())


def network(cv: dict, value: Tensor, linear: Tensor, slope: float) -> Tensor:
    """H and H* along the first axis, elementwise over tensors that broadcast together."""
    w_value, w_linear = cv["w_in"]
    hidden = value[..., None] * w_value + linear[..., None] * w_linear + cv["b_in"]
    hidden = nn.functional.leaky_relu(hidden, slope)
    if "w_mid" in cv:
        hidden = nn.functional.leaky_relu(hidden @ cv["w_mid"] + cv["b_mid"], slope)
    return (hidden @ cv["w_out"] + cv["b_out"]).movedim(-1, 0)
