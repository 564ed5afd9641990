"""Coupled samples of bits: each sample is exact by itself, and two samples are seldom equal."""

import torch
from torch import Tensor, nn

from .arrays import others as samples_but_one
from .distributions import uniform


def antithetic_pairs(log_odds: Tensor, num_samples: int, generator) -> Tensor:
    """K/2 pairs of bits with one uniform number for each pair. The first half holds every b = 1[u >
    1 − p], the second every 1[u < p]."""
    u = uniform((num_samples // 2, *log_odds.shape), log_odds, generator)
    p = torch.sigmoid(log_odds)
    return torch.cat([1 - u < p, u < p])


def mutually_antithetic(log_odds: Tensor, num_samples: int, generator) -> Tensor:
    """K bits of probability p ≤ ½, from the logits of p, that share a Dirichlet vector."""
    u = uniform((num_samples, *log_odds.shape), log_odds, generator)
    e = -torch.log1p(-u)
    # 1 − D is a share of the total: a sum, since a difference would lose digits where it is small.
    total = e.sum(0)
    if num_samples <= 4:
        others = samples_but_one(e).sum(0)
    else:
        index = e.argmax(0, keepdim=True)
        largest = torch.zeros_like(e, dtype=torch.bool).scatter(0, index, True)
        others = torch.where(largest, torch.where(largest, 0, e).sum(0), total - e)
    return others / total < torch.exp(nn.functional.logsigmoid(log_odds) / (num_samples - 1))


def both_rare(log_odds: Tensor, num_samples: int) -> Tensor:
    """P(b₁ = b₂ = 1) of `mutually_antithetic` bits."""
    root = torch.exp(nn.functional.logsigmoid(log_odds) / (num_samples - 1))
    return (2 * root - 1).clamp(min=0) ** (num_samples - 1)


def debias(log_odds: Tensor, num_samples: int) -> Tensor:
    """θ (1 − θ) / (θ − P(b₁ = b₂ = 1)) of `mutually_antithetic` bits; see
    `steingrad.estimators.couplings.debias`."""
    others = num_samples - 1
    root = torch.expm1(nn.functional.softplus(log_odds.abs()) / others).clamp(
        max=1
    )  # p^(−1/(K−1)) − 1
    return torch.sigmoid(log_odds.abs()) / -torch.expm1(others * torch.log1p(-root))
