"""REBAR: REINFORCE with f at a continuous relaxation of the state as control variate."""

from typing import NamedTuple

import torch
from torch import Tensor

from ... import estimators as sg
from ..relaxations import Relaxing, initial_log_temperature, relaxed_estimate


class Rebar(Relaxing):
    """`steingrad.Rebar(num_samples=1)`. f must accept relaxed states, and be continuous and
    differentiable there (twice); otherwise pass a `relaxation` with the call. f is evaluated
    between the states in the forward pass.

    >>> import torch, steingrad.torch as sgt
    >>> logits, estimator = torch.zeros(3, requires_grad=True), sgt.Rebar()
    >>> estimator(lambda x: (x - 0.45).square().sum(-1), logits).backward()
    >>> estimator.cv.scale.shape
    torch.Size([])
    """

    class CV(NamedTuple):
        """The learned parameters of the control variate."""

        log_temperature: Tensor
        scale: Tensor

    kind = sg.Rebar

    def init(self, dist, seed):
        return self.CV(initial_log_temperature(), torch.ones(()))

    def relaxed_gradient(self, between, cv, dist, at):
        return relaxed_estimate(self.at_relaxed_points(between, cv, dist), dist, at, at.fx)
