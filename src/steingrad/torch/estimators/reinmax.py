"""ReinMax: straight-through with the trapezoidal rule in place of a tangent. Biased."""

from ... import estimators as sg
from ..drop_in import DropIn


class ReinMax(DropIn):
    """`steingrad.ReinMax(num_samples=1, temperature=1.0)`. **Biased.** `ReinMax()(logits)` is a
    one-hot sample, as `torch.nn.functional.gumbel_softmax(logits, hard=True)` is one.

    >>> import torch, steingrad.torch as sgt
    >>> x = sgt.ReinMax()(torch.zeros(8, 5, requires_grad=True))
    >>> x.shape, x.sum(-1).unique()
    (torch.Size([8, 5]), tensor([1.], grad_fn=<...>))
    """

    kind = sg.ReinMax

    def gradient(self, cv, dist, at):
        halfway = (dist.soften(self.estimator.temperature) + dist.one_hot(at.x)) / 2
        second = dist.through(halfway, at.dfx).mean(0)
        return 2 * second - dist.pull_mean(at.dfx.mean(0)) / 2
