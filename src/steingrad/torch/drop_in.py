"""Samples that are differentiated by themselves, for the biased estimators."""

from typing import Any

import torch
from torch import Tensor

from .arrays import compute_dtype
from .calls import view
from .distributions import Categorical, Law, compute, read
from .evaluated import Evaluated
from .module import Estimator, exact, one_thread


class DropIn(Estimator):
    """An estimator whose sample can be differentiated without f.

    `estimator(f, dist)` is that of `Estimator`. `estimator(logits)` returns a sample, of the shape
    of the logits, through which any loss is differentiated. Logits `[*batch, m]` are those of
    categories of m values; for bits pass a `torch.distributions.Bernoulli`.
    """

    def forward(self, f: Any, dist: Any = None, context: Tensor | None = None, **more: Any) -> Any:
        if dist is not None:
            return super().forward(f, dist, context, **more)
        return self.sample(f, **more)

    def sample(self, dist: Any, *, generator: Any = None) -> Tensor:
        """A sample that is differentiated in the way of this estimator."""
        if self.num_samples != 1:
            raise ValueError(
                f"{type(self).__name__} has num_samples={self.num_samples}, but without f it "
                "returns one sample: build it with num_samples=1."
            )
        if isinstance(dist, Tensor):
            shape = dist.shape
            rows = dist.reshape(-1, 1, shape[-1]) if dist.numel() else dist[..., None, :]
            law: Law = Categorical(rows)
        else:
            law = read(dist, None if hasattr(dist, "base_dist") else 0)
            shape = (*law.batch_shape, *law.event_shape)
        with torch.no_grad(), one_thread(), exact(law.logits):
            constant = compute(law)
            x = self.draw(constant, generator)
            noise = self.noise(constant, generator)
        sample = Differentiable.apply(self, type(law), law.logits, x, noise)
        return sample.reshape(shape)


class Differentiable(torch.autograd.Function):
    """From logits to one sample, and back."""

    generate_vmap_rule = True

    @staticmethod
    def forward(module, kind, logits, x, noise):
        shown = view(kind(logits), x, False, module.relaxed_samples)
        return shown.reshape(logits.shape).clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.module, ctx.kind, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx, cotangent):
        logits, x, noise = ctx.saved_tensors
        with torch.no_grad(), exact(logits):
            dist = compute(ctx.kind(logits))
            dtype = compute_dtype(logits)
            at = Evaluated(x, x.new_zeros((), dtype=dtype), cotangent[None].to(dtype), noise=noise)
            grad = ctx.module.gradient(None, dist, at)
        return None, None, grad.to(logits.dtype), None, None


def straight_through(logits: Tensor, *, generator: Any = None) -> Tensor:
    """A one-hot sample along the last axis that is differentiated like its mean. **Biased.**

    >>> import torch, steingrad.torch as sgt
    >>> sgt.straight_through(torch.zeros(4, 3)).shape
    torch.Size([4, 3])
    """
    from .estimators import StraightThrough

    return StraightThrough().sample(logits, generator=generator)


def reinmax(logits: Tensor, temperature: float = 1.0, *, generator: Any = None) -> Tensor:
    """A one-hot sample along the last axis with the derivative of `ReinMax`. **Biased.**

    >>> import torch, steingrad.torch as sgt
    >>> sgt.reinmax(torch.zeros(4, 3)).sum(-1)
    tensor([1., 1., 1., 1.])
    """
    from .estimators import ReinMax

    return ReinMax(temperature=temperature).sample(logits, generator=generator)


def gumbel_softmax(
    logits: Tensor,
    temperature: float = 0.5,
    straight_through: bool = False,
    jacobian_draws: int = 1,
    *,
    generator: Any = None,
) -> Tensor:
    """A relaxed or, with `straight_through`, a one-hot sample along the last axis, with the
    derivative of `GumbelSoftmax`. **Biased.**

    >>> import torch, steingrad.torch as sgt
    >>> sgt.gumbel_softmax(torch.zeros(4, 3), straight_through=True).sum(-1)
    tensor([1., 1., 1., 1.])
    """
    from .estimators import GumbelSoftmax

    estimator = GumbelSoftmax(
        temperature=temperature, straight_through=straight_through, jacobian_draws=jacobian_draws
    )
    return estimator.sample(logits, generator=generator)
