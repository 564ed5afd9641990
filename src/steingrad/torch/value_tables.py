"""Predictions of the effects of flips by the values that a coordinate leaves and takes."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..estimators.value_tables import (
    MOST_PAIRS,
    PAIR_MEMORY,
    POWER,
    SHRINK,
    VALUE_MEMORY,
    kept,
)
from .arrays import TINY


class ValueTables(NamedTuple):
    """What is left of the change of f, for coordinate i that leaves the value u and takes the value
    v; see `steingrad.estimators.value_tables`."""

    values: Tensor
    """For each value, the sums of weighted residuals and of weights, `[d, m, 2]`."""
    pairs: Tensor | None
    """For each unordered pair of values, the same; `None` if there are too many pairs."""
    errors: Tensor
    """For each value that is taken, the sums of weighted squared errors and of weights."""

    @classmethod
    def zero(cls, d: int, m: int) -> Any:
        """Empty tables; `None` for two values."""
        if m == 2:
            return None
        count = m * (m - 1) // 2
        pairs = torch.zeros(d, count, 2) if d * count <= MOST_PAIRS else None
        return cls(torch.zeros(d, m, 2), pairs, torch.zeros(d, m, 2))

    def change(self, here: Tensor, one_flip: Tensor) -> Tensor:
        """The predicted residuals of all values, `[..., d, m]`, for the present values `here`."""
        of_value = shrunken(self.values, one_flip)
        d, m = of_value.shape
        if self.pairs is None:
            own = of_value.expand(*here.shape, m).gather(-1, here[..., None])
            return own + of_value
        # One table of all pairs, so that each present value is looked up only once.
        values = torch.arange(m, device=here.device)
        of_pair = shrunken(self.pairs, one_flip)[:, pair_number(values[:, None], values)]
        table = of_value[:, :, None] + of_value[:, None, :] + of_pair
        rows = torch.arange(d, device=here.device) * m + here
        return table.reshape(d * m, m).index_select(0, rows.reshape(-1)).reshape(*here.shape, m)

    def importance(self, one_flip: Tensor) -> Tensor:
        """How often to try each value, relative to the others of the same coordinate: `[d, m]`."""
        error, size = self.errors[..., 0], self.errors[..., 1]
        usual = error.sum(-1, keepdim=True) / (size.sum(-1, keepdim=True) + TINY)
        few = SHRINK * one_flip + TINY
        relative = (error / torch.where(usual > 0, usual, 1) + few) / (size + few)
        return torch.where(usual > 0, relative, 1) ** POWER

    def learn(
        self,
        coordinates: Tensor,
        here: Tensor,
        there: Tensor,
        missed: Tensor,
        error: Tensor,
        weight: Tensor,
        one_flip: Tensor,
    ) -> "ValueTables":
        """The tables with flips added. `missed` is what the whole guess left of their changes."""
        d, m = self.values.shape[:2]

        def add(table: Tensor, where: Tensor, of: Tensor) -> Tensor:
            rows = torch.stack([weight * of, weight], -1).reshape(-1, 2)
            count = table.shape[1]
            flat = (coordinates * count + where).reshape(-1)
            return table.reshape(-1, 2).index_add(0, flat, rows).reshape(table.shape)

        of_value = shrunken(self.values, one_flip)
        leaves, takes = of_value[coordinates, here], of_value[coordinates, there]
        pairs, without_pair, flips = self.pairs, missed, missed.numel()
        if pairs is not None:
            pair = pair_number(here, there)
            without_pair = missed + shrunken(pairs, one_flip)[coordinates, pair]
            pairs = pairs * kept(flips, PAIR_MEMORY * d * pairs.shape[1])
            pairs = add(pairs, pair, without_pair)
        # Each value's share is what the other value's number leaves of the residual.
        values = self.values * kept(2 * flips, VALUE_MEMORY * d * m)
        values = add(values, there, without_pair + takes)
        values = add(values, here, without_pair + leaves)
        errors = add(self.errors * kept(flips, VALUE_MEMORY * d * m), there, error)
        return ValueTables(values, pairs, errors)


def pair_number(u: Tensor, v: Tensor) -> Tensor:
    """The number of the unordered pair {u, v}; 0 if u = v."""
    low, high = torch.minimum(u, v), torch.maximum(u, v)
    number = torch.div(high * (high - 1), 2, rounding_mode="floor") + low
    return torch.where(low < high, number, 0)


def shrunken(sums: Tensor, one_flip: Tensor) -> Tensor:
    """Means of residuals, shrunk towards 0."""
    return sums[..., 0] / (sums[..., 1] + SHRINK * one_flip + TINY)
