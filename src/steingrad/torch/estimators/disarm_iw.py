"""DisARM-IW: antithetic pairs of categories with importance weights."""

import torch

from ... import estimators as sg
from ..couplings import antithetic_pairs
from ..module import Estimator
from ..sticks import break_sticks, first_of, pair_weight, scatter_values, stick_of


class DisARMIW(Estimator):
    """`steingrad.DisARMIW(num_samples=2)`: antithetic pairs of categories.

    >>> import torch, steingrad.torch as sgt
    >>> logits = torch.zeros(3, 4, requires_grad=True)
    >>> dist = torch.distributions.OneHotCategorical(logits=logits)
    >>> sgt.DisARMIW()(lambda x: x[..., 0].sum(-1), dist, event_ndim=1).backward()
    """

    kind = sg.DisARMIW

    def draw(self, dist, generator):
        sticks = break_sticks(dist.value_logits)
        bits = antithetic_pairs(sticks.logits, self.num_samples, generator)
        return dist.from_index(first_of(sticks, bits))

    def gradient(self, cv, dist, at):
        fx, fx_tilde = at.fx.chunk(2)
        sticks, index = break_sticks(dist.value_logits), dist.index(at.x)
        phi = sticks.phi[..., :-1]
        weight = pair_weight(sticks, differ=1 - phi, both=torch.zeros_like(phi))
        first = torch.minimum(*stick_of(sticks, index).chunk(2))
        r = weight.expand(*first.shape, weight.shape[-1]).gather(-1, first[..., None])[..., 0]
        change = r * (fx - fx_tilde)[..., None] / (2 * len(fx))
        return dist.by_values(scatter_values(torch.cat([change, -change]), index, weight))
