"""The inputs of an estimate, and what all estimates that learn have in common."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..objective import OUTGROWN
from .arrays import expand


class Evaluated(NamedTuple):
    """The samples, the evaluations of f, and the other inputs of an estimate, all constants of one
    floating-point dtype."""

    x: Tensor
    """The samples as they are stored, of shape `[K, *batch, d]`."""
    fx: Tensor
    """f at the samples, of shape `[K, *batch]`."""
    dfx: Any = None
    """∇f at the samples, of shape `[K, *batch, *state_shape]`."""
    fy: Any = None
    """f at the further points that were proposed, of shape `[n, K, *batch]`."""
    memo: tuple[Tensor, ...] = ()
    """What `propose` returned with the further points."""
    noise: Any = None
    """The random numbers of the estimate."""
    context: Tensor | None = None
    """A further input of the control variates, of shape `[*batch, c]`."""
    sound: Tensor | None = None
    """Which elements of the batch count in what is learned, of shape `[*batch]`; `None`: all."""

    def only_sound(self, array: Tensor) -> Tensor:
        """An array `[..., *batch]` with 0 at the elements of the batch that do not count."""
        return array if self.sound is None else torch.where(self.sound, array, 0)

    @property
    def sound_share(self) -> Tensor:
        """The share of the batch that counts in what is learned."""
        return self.only_sound(torch.ones_like(self.fx[0])).mean()

    def has_outgrown(self, size: Tensor) -> Tensor:
        """Whether a typical size of f is far too large for the present values."""
        largest = self.only_sound(self.fx).abs().amax()
        return (largest > 0) & (size.abs() > OUTGROWN * largest)


def stamp(grad: Tensor, at: Evaluated) -> Tensor:
    """The estimate, with NaN at the elements of the batch that are not sound."""
    if at.sound is None:
        return grad
    return torch.where(expand(at.sound, grad.ndim), grad, torch.nan)
