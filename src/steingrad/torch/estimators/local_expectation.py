"""The local expectation gradient: the exact sum over each coordinate's own values."""

import torch

from ... import estimators as sg
from ..module import Estimator


class LocalExpectation(Estimator):
    """`steingrad.LocalExpectation(num_samples=1)`: one call of f for each coordinate and value.

    >>> import torch, steingrad.torch as sgt
    >>> logits = torch.zeros(3, requires_grad=True)
    >>> sgt.LocalExpectation()(lambda x: x.sum(-1), logits).backward()
    >>> logits.grad
    tensor([0.2500, 0.2500, 0.2500])
    """

    kind = sg.LocalExpectation

    def num_further(self, dist):
        return dist.num_neighbours

    def propose(self, cv, dist, at):
        index, others = dist.index(at.x), dist.num_values - 1
        count = torch.arange(dist.num_neighbours, device=at.x.device)
        steps = torch.zeros(
            dist.num_neighbours, dist.num_coordinates, dtype=torch.int64, device=at.x.device
        )
        steps[count, count // others] = count % others + 1
        steps = steps.reshape(len(count), *[1] * (index.ndim - 1), dist.num_coordinates)
        return dist.from_index((index + steps) % dist.num_values), ()

    def gradient(self, cv, dist, at):
        others, flips = dist.num_values - 1, dist.flips(at.x)
        change = (at.fy - at.fx).movedim(0, -1)
        change = change.reshape(*at.fx.shape, dist.num_coordinates, others)
        if flips.slot_axes == 1:
            change = change[..., 0]
        else:  # from the order of the neighbours to the order of the values
            values = torch.arange(others + 1, device=at.x.device)
            step = (values - at.x[..., None] - 1) % (others + 1)
            change = change.gather(-1, step.clamp(max=others - 1))
        # Where q is 0, f may be infinite, for example if it contains log q.
        return flips.local_gradient(torch.where(flips.conditional == 0, 0, change))
