"""PyTorch distributions, converted to distributions of this library."""

import math
from typing import Any, NamedTuple

import torch
from torch import distributions as td
from torch import nn

from ..distributions import Bernoulli, Categorical
from .tensors import compute_dtype

SUPPORTED = (
    "Pass torch.distributions.Bernoulli, OneHotCategorical or Categorical (whose samples f is "
    "given as one-hot vectors), one of these inside Independent, or a tensor of logits of bits."
)


class Law(NamedTuple):
    """A distribution in the form that the estimators use."""

    kind: Any
    """The class of this library, `Bernoulli` or `Categorical`."""
    logits: torch.Tensor
    """The logits, of shape `[*batch, d]` or `[*batch, d, m]`."""
    event_shape: tuple[int, ...]
    """The shape of a state as f gets it: all coordinates in one axis, or in as many axes as
    `Independent` says."""

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return tuple(self.logits.shape[: self.logits.ndim - (1 if self.kind is Bernoulli else 2)])

    @property
    def state_shape(self) -> tuple[int, ...]:
        """The shape of a state as the estimators use it."""
        return tuple(self.logits.shape[len(self.batch_shape) :])

    def sample(self, count: int) -> torch.Tensor:
        """Independent samples of shape `[count, *batch, *state_shape]`."""
        logits = self.logits.detach().to(compute_dtype(self.logits))
        noise = torch.empty((count, *logits.shape), dtype=logits.dtype, device=logits.device)
        if self.kind is Bernoulli:  # in place: zeros and ones in the dtype of the noise
            x = noise.uniform_().lt_(torch.sigmoid(logits))
        else:  # argmax of logits plus Gumbel noise, −log of an exponential variable
            x = logits - noise.exponential_().log_()
            x = nn.functional.one_hot(x.argmax(-1), logits.shape[-1])
        return x.to(self.logits.dtype)


def read(dist: Any) -> Law:
    """Convert a PyTorch distribution, or a tensor of logits. Raises if it is not supported."""
    whole, axes = dist, 0
    while isinstance(dist, td.Independent):
        axes, dist = axes + dist.reinterpreted_batch_ndims, dist.base_dist
    if isinstance(dist, torch.Tensor):
        kind, logits = Bernoulli, dist
    elif type(dist) is td.Bernoulli:
        kind, logits = Bernoulli, dist.logits
    elif isinstance(dist, (td.OneHotCategorical, td.Categorical)):
        kind, logits = Categorical, dist.logits
    else:
        name = type(whole).__name__
        if whole is not dist:
            name += f" of {type(dist).__name__}"
        raise TypeError(f"The distribution is a {name}, which is not supported. {SUPPORTED}")
    if not logits.is_floating_point():
        raise TypeError(f"Logits must be floating-point, but have dtype {logits.dtype}.")
    values = tuple(logits.shape[-1:]) if kind is Categorical else ()
    coordinates = tuple(logits.shape[: logits.ndim - len(values)])
    if not coordinates:
        raise ValueError(
            f"The {type(dist).__name__} is a single variable, with logits of shape "
            f"{tuple(logits.shape)}, but coordinates need an axis: pass logits"
            f"{'.unsqueeze(-2)' if values else '.unsqueeze(-1)'}."
        )
    # Without Independent, the last axis holds the coordinates of one state.
    first = len(coordinates) - max(axes, 1)
    batch, own = coordinates[:first], coordinates[first:]
    if not math.prod((*own, *values)):
        raise ValueError(
            f"Logits of shape {tuple(logits.shape)} have no coordinate: pass one or more."
        )
    if len(own) != 1:
        logits = logits.reshape(*batch, math.prod(own), *values)
    return Law(kind, logits, (*own, *values))
