"""Predictions of the effects of flips, by least squares over past flips, and their errors."""

import torch
from torch import Tensor

from ..estimators.flip_regression import COMMON, ERROR, OWN, POWER
from .arrays import TINY, factorise, substitute


def coefficients(gram: Tensor, cross: Tensor, flips: Tensor, first: Tensor) -> Tensor:
    """Regression coefficients of the change of f on the features, `[d, n]`, from sums over `flips`
    flips; see `steingrad.estimators.flip_regression.coefficients`."""
    total, total_cross = gram.sum(0), cross.sum(0)
    one_flip = total.diagonal() / (flips + TINY) + TINY
    # The systems of all coordinates and the common one are factorised together.
    grams = torch.cat(
        [gram + torch.diag(OWN * one_flip), (total + COMMON * torch.diag(one_flip))[None]]
    )
    pivots, lowers = factorise(grams)
    last = lambda parts: [part[-1] for part in parts]
    common = substitute(last(pivots), last(lowers), total_cross + COMMON * one_flip * first)
    own = lambda parts: [part[:-1] for part in parts]
    return substitute(own(pivots), own(lowers), cross + OWN * one_flip * common)


def relative_errors(error: Tensor, size: Tensor, flips: Tensor) -> Tensor:
    """How often to try each coordinate: its past error relative to the mean error, to a power."""
    spread = error.sum() / (size.sum() + TINY)
    few = ERROR * size.sum() / (flips + TINY) + TINY
    relative = (error / torch.where(spread > 0, spread, 1) + few) / (size + few)
    return torch.where(spread > 0, relative, 1) ** POWER


def sums_by_coordinate(count: int, coordinates: Tensor, columns: dict[str, Tensor]) -> dict:
    """Sum each column over the flips of each coordinate. A column is a tensor `[..., *shape]` with
    one entry for each flip; its sums are a tensor `[d, *shape]` under the same name."""
    lead, number = coordinates.ndim, coordinates.numel()
    rows = torch.cat([column.reshape(number, -1) for column in columns.values()], -1)
    zeros = torch.zeros((count, rows.shape[-1]), dtype=rows.dtype, device=rows.device)
    sums = zeros.index_add(0, coordinates.reshape(-1), rows)
    shapes = [column.shape[lead:] for column in columns.values()]
    parts = sums.split([shape.numel() for shape in shapes], -1)
    named = zip(columns, parts, shapes, strict=True)
    return {name: part.reshape(count, *shape) for name, part, shape in named}
