"""RELAX: REBAR with a free network in its control variate."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ... import estimators as sg
from ..relaxations import Relaxing, initial_log_temperature, relaxed_estimate


class Relax(Relaxing):
    """`steingrad.Relax(num_samples=1, context_size=0, hidden=137)`; see `Rebar`.

    >>> import torch, steingrad.torch as sgt
    >>> logits, estimator = torch.zeros(3, requires_grad=True), sgt.Relax(hidden=10)
    >>> estimator(lambda x: (x - 0.45).square().sum(-1), logits).backward()
    >>> estimator.cv.network["w_in"].shape
    torch.Size([3, 10])
    """

    class CV(NamedTuple):
        """The learned parameters of the control variate."""

        log_temperature: Tensor
        scale: Tensor
        network: dict[str, Tensor]

    kind = sg.Relax

    def init(self, dist, seed):
        inputs = self.estimator.context_size + math.prod(dist.state_shape)
        hidden = self.estimator.hidden
        w_in, w_out = seed.glorot(inputs, hidden), seed.glorot(hidden, 1)[:, 0]
        network = {"b_in": torch.zeros(hidden), "b_out": torch.zeros(()), "w_in": w_in}
        return self.CV(initial_log_temperature(), torch.ones(()), network | {"w_out": w_out})

    def relaxed_gradient(self, between, cv, dist, at):
        size = self.estimator.context_size
        expected = (*dist.batch_shape, size) if size else None
        given = None if at.context is None else tuple(at.context.shape)
        if given != expected:
            raise ValueError(
                f"Relax(context_size={size}) takes a context of shape {expected}, but was given "
                f"{given}. Pass context=... of shape [*batch, context_size]."
            )
        rebar = self.at_relaxed_points(between, cv, dist)

        def control(z):
            flat = z.flatten(-dist.state_axes)
            return rebar(z) + network(cv.network, at.context, flat)

        return relaxed_estimate(control, dist, at, at.fx)


def network(weights: dict[str, Tensor], context: Tensor | None, z: Tensor) -> Tensor:
    """r(context, z), of shape `[...]`."""
    w_in: Any = weights["w_in"]
    w_context, w_z = w_in.split([len(w_in) - z.shape[-1], z.shape[-1]])
    hidden = z @ w_z + weights["b_in"]
    if context is not None:
        # The context is the same for all samples, so one product is enough.
        hidden = hidden + context @ w_context
    return nn.functional.leaky_relu(hidden, 0.3) @ weights["w_out"] + weights["b_out"]
