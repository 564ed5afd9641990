"""REINFORCE, with or without a baseline."""

from typing import NamedTuple

import torch
from torch import Tensor

from ... import estimators as sg
from ...estimators.reinforce import DECAY, LIMIT
from ..arrays import safe_divide, tree_map
from ..module import Estimator
from ..optimizers import Optimizer


class Reinforce(Estimator):
    """`steingrad.Reinforce(num_samples=1, baseline=None)`. The baseline is none, a number,
    `"moving_average"` or `"learned"`.

    >>> import torch, steingrad.torch as sgt
    >>> logits = torch.zeros(3, requires_grad=True)
    >>> sgt.Reinforce(4, baseline=1.5)(lambda x: x.sum(-1), logits).backward()
    """

    class CV(NamedTuple):
        """The baseline b."""

        baseline: Tensor
        distance: Tensor | None = None
        """The moving average of |f − b|, if b is a moving average too."""

    kind = sg.Reinforce

    def init(self, dist, seed):
        if not isinstance(self.estimator.baseline, str):
            return None
        average = self.estimator.baseline == "moving_average"
        return self.CV(torch.zeros(()), torch.zeros(()) if average else None)

    def cv_optimizer(self, cv):
        average = self.estimator.baseline == "moving_average"
        return Optimizer(cv, 1 - DECAY) if average else super().cv_optimizer(cv)

    def gradient(self, cv, dist, at):
        baseline = cv.baseline if cv is not None else (self.estimator.baseline or 0.0)
        return dist.weighted_score((at.fx - baseline) / len(at.fx), at.x)

    def adapt(self, cv, dist, at):
        if self.estimator.baseline != "moving_average":
            return super().adapt(cv, dist, at)
        distance = at.only_sound(at.fx - cv.baseline).abs().mean()
        is_first = cv.distance <= 0
        # A step that is far from the past, because f had an accident, counts as one at `LIMIT`.
        limit = torch.where(is_first, 0, LIMIT * cv.distance)
        far = torch.where(distance > limit, safe_divide(limit, distance), 1)
        # At the first step `far` is 0, and the average does not move.
        off = far * at.only_sound(cv.baseline - at.fx).mean()
        usual = at.sound_share * cv.distance - far * distance
        step = self.CV(off, torch.where(is_first, -distance / (1 - DECAY), usual))
        # Gradient descent of step size 1 − DECAY then leaves nothing.
        forget = lambda old, new: torch.where(at.has_outgrown(old), old / (1 - DECAY), new)
        return self.gradient(cv, dist, at), tree_map(forget, cv, step)
