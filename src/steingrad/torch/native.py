"""Estimates that PyTorch computes itself, because they are a few operations on tensors.

A call into JAX between PyTorch operations takes at least a third of a millisecond. This is worth it
for estimates with control variates, but not for RLOO.
"""

from collections.abc import Callable

import torch

from ..estimators import RLOO, Estimator

Native = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A function from samples and values of f to the estimate for each element of the batch."""


def native(estimator: Estimator) -> Native | None:
    """The function that computes this estimate in PyTorch; `None` if there is none."""
    return rloo if type(estimator) is RLOO else None


def rloo(x: torch.Tensor, fx: torch.Tensor) -> torch.Tensor:
    """`steingrad.RLOO.gradient`, 1/K Σₖ wₖ (xₖ − E[x]) with wₖ = K/(K−1) (fₖ − mean of all f).

    The weights sum to zero, so E[x] can be replaced by the first sample. The result is then exactly
    0 if all samples are equal.
    """
    weights = (fx - fx.mean(0))[1:] / (len(fx) - 1)
    weights = weights.reshape(weights.shape + (1,) * (x.ndim - fx.ndim))
    return (weights * (x[1:] - x[0])).sum(0)
