"""Double CV: REINFORCE leave-one-out with linear control variates."""

from typing import NamedTuple

import torch
from torch import Tensor

from ... import estimators as sg
from ..arrays import inner, leave_one_out, mean_of_others
from ..module import Estimator


class DoubleCV(Estimator):
    """`steingrad.DoubleCV(num_samples=2)`.

    >>> import torch, steingrad.torch as sgt
    >>> logits, estimator = torch.zeros(3, requires_grad=True), sgt.DoubleCV(2)
    >>> estimator(lambda x: x.sum(-1) ** 2, logits).backward()
    >>> estimator.cv.alpha.shape
    torch.Size([])
    """

    class CV(NamedTuple):
        """The learned coefficient α."""

        alpha: Tensor

    kind = sg.DoubleCV

    def init(self, dist, seed):
        return self.CV(torch.zeros(()))

    def gradient(self, cv, dist, at):
        centred = dist.one_hot(at.x) - dist.mean
        linear = inner(mean_of_others(at.dfx), centred, dist.state_axes)
        weights = leave_one_out(at.fx + cv.alpha * linear) / len(at.fx)
        known = dist.pull_mean(at.dfx.mean(0))
        return dist.centred_score(weights, at.x) - cv.alpha * known
