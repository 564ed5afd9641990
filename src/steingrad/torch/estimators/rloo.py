"""REINFORCE leave-one-out."""

from ... import estimators as sg
from ..arrays import leave_one_out
from ..module import Estimator


class RLOO(Estimator):
    """`steingrad.RLOO(num_samples=2)`: the mean over the other samples is the baseline.

    >>> import torch, steingrad.torch as sgt
    >>> logits = torch.zeros(3, requires_grad=True)
    >>> sgt.RLOO(4)(lambda x: x.sum(-1), logits).backward()
    """

    kind = sg.RLOO

    def gradient(self, cv, dist, at):
        return dist.centred_score(leave_one_out(at.fx) / len(at.fx), at.x)
