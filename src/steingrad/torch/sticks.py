"""Categories as sequences of bits, so that a coupling of bits becomes one of categories."""

from typing import NamedTuple

import torch
from torch import Tensor


class Sticks(NamedTuple):
    """A category as the position of the first bit that is 1, from the least probable category to
    the most; see `steingrad.estimators.sticks`."""

    order: Tensor
    """Which category each stick stands for."""
    rank: Tensor
    """Which stick stands for each category."""
    log_probs: Tensor
    """The logarithm of the probability of each stick's category."""
    log_tail: Tensor
    """The logarithm of the probability of this category and of all later ones."""

    @property
    def phi(self) -> Tensor:
        return torch.exp(self.log_probs - self.log_tail)

    @property
    def logits(self) -> Tensor:
        """log(φ / (1 − φ)) for all sticks but the last."""
        return self.log_probs[..., :-1] - self.log_tail[..., 1:]


def break_sticks(value_logits: Tensor) -> Sticks:
    log_probs, order = torch.log_softmax(value_logits, -1).sort(dim=-1, stable=True)
    # From the largest to the smallest, so every sum has all its digits.
    log_tail = log_probs.exp().flip(-1).cumsum(-1).flip(-1).log()
    places = torch.arange(order.shape[-1], device=order.device).expand(order.shape)
    rank = torch.empty_like(order).scatter_(-1, order, places)
    return Sticks(order, rank, log_probs, log_tail)


def first_of(sticks: Sticks, bits: Tensor) -> Tensor:
    """The category of the first bit that is 1; the last category if all bits are 0."""
    count = sticks.order.shape[-1]
    places = torch.arange(count - 1, dtype=sticks.log_probs.dtype, device=bits.device)
    first = torch.where(bits, places, count - 1).amin(-1, keepdim=True).long()
    return sticks.order.expand(*first.shape[:-1], -1).gather(-1, first)[..., 0]


def stick_of(sticks: Sticks, index: Tensor) -> Tensor:
    """The stick that stands for each coordinate's category."""
    rank = sticks.rank.expand(*index.shape, sticks.rank.shape[-1])
    return rank.gather(-1, index[..., None])[..., 0]


def scatter_values(numbers: Tensor, index: Tensor, like: Tensor) -> Tensor:
    """The sum over the samples of `numbers` times the one-hot vectors of `index`."""
    last = lambda tensor: tensor.movedim(0, -1)
    return torch.zeros_like(like).scatter_add(-1, last(index), last(numbers))


def pair_weight(sticks: Sticks, differ: Tensor, both: Tensor) -> Tensor:
    """r = p_a p_b / P(a, b), the importance weight of a pair of categories, by the earlier of their
    two sticks; see `steingrad.estimators.sticks.pair_weight`."""
    phi, both = sticks.phi[..., :-2], both[..., :-1]
    # (1 − φ)² / P(0, 0), written as 1 plus the difference from 1.
    factors = 1 + (phi**2 - both) / (1 - 2 * phi + both)
    one = torch.ones_like(sticks.phi[..., :1])
    before = torch.cat([one, factors], -1).cumprod(-1)
    # Two samples of the last category differ at no stick, so their weight is 0.
    return torch.cat([before * differ, 0 * one], -1)
