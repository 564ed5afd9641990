"""A blend of an estimate with the score-function estimate, by least squares."""

from typing import Any

import torch
from torch import Tensor

from ..estimators.blend import DECAY, RIDGE, WARM_UP
from .arrays import TINY, mean_of_samples
from .evaluated import Evaluated
from .least_squares import Products, inner_products


def blend(
    grad: Tensor, products: Products, baseline: Tensor, dist: Any, at: Evaluated, learn: bool
) -> tuple[Tensor, Products | None]:
    """Returns g + c₁ (g_SF − g) + c₂ s̄ and, to `learn`, the products with this step's terms; see
    `steingrad.estimators.blend`."""
    c1, c2 = coefficients(products)
    off = at.fx - baseline
    spread = at.only_sound(off.abs().mean(0))
    unit, ones = products.unit(spread), torch.ones_like(off)
    if dist.state_axes == 1:
        score = dist.score(at.x)
        scores, by_score = mean_of_samples(score), mean_of_samples(off[..., None] * score)
    else:  # without an array of the size of all samples
        scores, by_score = (dist.weighted_score(w / len(off), at.x) for w in (ones, off))
    terms = torch.stack([grad, by_score - grad, unit * scores])
    blended = torch.tensordot(torch.stack([torch.ones_like(c1), c1, c2]), terms, 1)
    if not learn:
        return blended, None
    # f may be finite at the samples and not at further points, on which g depends.
    finite = grad.isfinite().flatten(-dist.state_axes).all(-1)
    factors = torch.where(finite, products.factors(spread, unit, at), 0)
    share = at.only_sound(finite.to(spread.dtype)).mean()
    found = inner_products(terms, factors)
    return blended, products.step(found, share, spread, unit, DECAY)


def coefficients(products: Products) -> tuple[Tensor, Tensor]:
    """The coefficients that minimise the mean square, the first one between 0 and 1; 0 in the first
    steps."""
    p = products.matrix
    slopes = p[:2, 2] / (p[2, 2] + TINY)
    square, cross = p[1, 1] - slopes[1] * p[1, 2], p[0, 1] - slopes[0] * p[1, 2]
    known = (products.weight > 1 - DECAY ** (WARM_UP - 0.5)) & (square > RIDGE * p[1, 1])
    c1 = torch.where(known, (-cross / torch.where(known, square, 1)).clamp(0, 1), 0)
    return c1, torch.where(known, -(slopes[0] + c1 * slopes[1]), 0)
