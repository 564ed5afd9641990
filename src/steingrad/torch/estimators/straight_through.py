"""Straight-through: the gradient of f at a sample, applied to the mean of the sample. Biased."""

from ... import estimators as sg
from ..drop_in import DropIn


class StraightThrough(DropIn):
    """`steingrad.StraightThrough(num_samples=1)`. **Biased.** `StraightThrough()(logits)` is a
    sample that is differentiated like its mean.

    >>> import torch, steingrad.torch as sgt
    >>> logits = torch.zeros(2, requires_grad=True)
    >>> sgt.StraightThrough()(lambda x: 3 * x.sum(-1), logits).backward()
    >>> logits.grad
    tensor([0.7500, 0.7500])
    """

    kind = sg.StraightThrough

    def gradient(self, cv, dist, at):
        return dist.pull_mean(at.dfx.mean(0))
