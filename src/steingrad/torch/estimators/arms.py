"""ARMS: any number of mutually antithetic samples of bits."""

import torch

from ... import estimators as sg
from ..arrays import leave_one_out
from ..couplings import debias, mutually_antithetic
from ..module import Estimator


class ARMS(Estimator):
    """`steingrad.ARMS(num_samples=3)`: mutually antithetic samples of bits.

    >>> import torch, steingrad.torch as sgt
    >>> logits = torch.zeros(3, requires_grad=True)
    >>> sgt.ARMS(4)(lambda x: x.sum(-1), logits).backward()
    """

    kind = sg.ARMS

    def draw(self, dist, generator):
        log_odds = dist.log_odds
        rare = mutually_antithetic(-log_odds.abs(), self.num_samples, generator)
        return dist.from_index((rare == (log_odds < 0)).long())

    def gradient(self, cv, dist, at):
        log_odds, signal = dist.log_odds, leave_one_out(at.fx)[..., None]
        g = (signal * (at.x.to(signal.dtype) - torch.sigmoid(log_odds))).mean(0)
        return dist.by_log_odds(g * debias(log_odds, self.num_samples))
