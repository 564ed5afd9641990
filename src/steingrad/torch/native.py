"""Estimates that are a few operations on tensors: PyTorch makes them itself.

Between PyTorch's operations a call into JAX takes a third of a millisecond, however little it does.
Estimates with control variates are worth that, RLOO is not.
"""

from collections.abc import Callable

import torch

from ..estimators import RLOO, Estimator

Native = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From the samples and f there to the estimate for each element of the batch."""


def native(estimator: Estimator) -> Native | None:
    """How PyTorch makes this estimate, if it does."""
    return rloo if type(estimator) is RLOO else None


def rloo(x: torch.Tensor, fx: torch.Tensor) -> torch.Tensor:
    """`steingrad.RLOO.gradient`, 1/K Σₖ wₖ (xₖ − E[x]) with wₖ = K/(K−1) (fₖ − mean of all f).

    The weights sum to zero, so that the first sample may stand in E[x]'s place; it leaves exactly
    0 where all samples are the same.
    """
    weights = (fx - fx.mean(0))[1:] / (len(fx) - 1)
    weights = weights.reshape(weights.shape + (1,) * (x.ndim - fx.ndim))
    return (weights * (x[1:] - x[0])).sum(0)
