"""CARMS: any number of mutually antithetic samples of categories."""

import torch

from ... import estimators as sg
from ..arrays import others
from ..couplings import both_rare, debias, mutually_antithetic
from ..module import Estimator
from ..sticks import break_sticks, first_of, pair_weight, scatter_values, stick_of


class CARMS(Estimator):
    """`steingrad.CARMS(num_samples=3)`: mutually antithetic samples of categories.

    >>> import torch, steingrad.torch as sgt
    >>> logits = torch.zeros(3, 4, requires_grad=True)
    >>> dist = torch.distributions.OneHotCategorical(logits=logits)
    >>> sgt.CARMS()(lambda x: x[..., 0].sum(-1), dist, event_ndim=1).backward()
    """

    kind = sg.CARMS

    def draw(self, dist, generator):
        sticks = break_sticks(dist.value_logits)
        bits = mutually_antithetic(sticks.logits, self.num_samples, generator)
        return dist.from_index(first_of(sticks, bits))

    def gradient(self, cv, dist, at):
        sticks, count = break_sticks(dist.value_logits), self.num_samples
        odds, index = sticks.logits, dist.index(at.x)
        weight = pair_weight(sticks, debias(odds, count), both_rare(odds, count))
        stick = stick_of(sticks, index)
        first = torch.minimum(stick, others(stick))  # [K − 1, K, *batch, d]
        lead = (*first.shape, weight.shape[-1])
        r = weight.expand(lead).gather(-1, first[..., None])[..., 0]
        # r is symmetric, so the coefficients sum to 0, and the mean in the score cancels.
        change = (at.fx - others(at.fx))[..., None]
        coefficients = (r * change).sum(0) / (count - 1)
        return dist.by_values(scatter_values(coefficients / count, index, weight))
