"""Gumbel-softmax, soft and straight-through: differentiable approximate samples. Biased."""

import torch

from ... import estimators as sg
from ..drop_in import DropIn


class GumbelSoftmax(DropIn):
    """`steingrad.GumbelSoftmax(num_samples=1, temperature=0.5, straight_through=False,
    jacobian_draws=1)`. **Biased.**

    >>> import torch, steingrad.torch as sgt
    >>> estimator = sgt.GumbelSoftmax(straight_through=True, jacobian_draws=10)
    >>> logits = torch.zeros(4, 3, requires_grad=True)
    >>> estimator(logits).square().sum().backward()
    >>> logits.grad.shape
    torch.Size([4, 3])
    """

    kind = sg.GumbelSoftmax

    def draw(self, dist, generator):
        if self.estimator.straight_through:
            return super().draw(dist, generator)
        z = dist.location() + dist.noise(self.num_samples, generator)
        return dist.relax(z, self.estimator.temperature)

    def noise(self, dist, generator):
        if not self.estimator.straight_through:
            return None
        draws = self.estimator.jacobian_draws
        return torch.stack([dist.noise(self.num_samples, generator) for _ in range(draws)])

    def gradient(self, cv, dist, at):
        if at.noise is None:
            # dy/dη is J(y) / τ, which depends on the noise through y alone.
            return self._through(dist, at.x, at.dfx)
        z = dist.latent_given(dist.one_hot(at.x), at.noise)
        y = dist.relax(z, self.estimator.temperature)
        return self._through(dist, y, at.dfx).mean(0)

    def _through(self, dist, y, dfx):
        return dist.through(y, dfx).mean(-1 - len(dist.logits.shape)) / self.estimator.temperature
