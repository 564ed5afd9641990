"""DisARM: antithetic pairs of bits."""

import torch

from ... import estimators as sg
from ..arrays import expand
from ..couplings import antithetic_pairs
from ..module import Estimator


class DisARM(Estimator):
    """`steingrad.DisARM(num_samples=2)`: antithetic pairs of bits.

    >>> import torch, steingrad.torch as sgt
    >>> logits = torch.zeros(3, requires_grad=True)
    >>> sgt.DisARM()(lambda x: x.sum(-1), logits).backward()
    """

    kind = sg.DisARM

    def draw(self, dist, generator):
        bits = antithetic_pairs(dist.log_odds, self.num_samples, generator)
        return dist.from_index(bits.long())

    def gradient(self, cv, dist, at):
        fx, fx_tilde = at.fx.chunk(2)
        x, x_tilde = at.x.to(fx.dtype).chunk(2)
        g = (expand(fx - fx_tilde, x.ndim) * (x - x_tilde)).mean(0)
        return dist.by_log_odds(g * torch.sigmoid(dist.log_odds.abs()) / 2)
