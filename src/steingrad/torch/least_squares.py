"""Least-squares coefficients of control variates, from moving averages over past steps."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..estimators.least_squares import (
    ACCIDENT,
    DECAY,
    LARGEST,
    LIMIT,
    RECENT_DECAY,
    RIDGE,
    SMALLER,
    WARM_UP,
)
from .arrays import expand, leave_one_out, tree_map
from .evaluated import Evaluated


class Products(NamedTuple):
    """Moving averages of the products of terms, with the estimate itself in the first row and
    column, in units of the square of f's spread."""

    matrix: Tensor
    weight: Tensor
    """The moving average of 1, which shows how many steps there have been."""
    log_unit: Tensor
    """The logarithm to base 2 of the mean spread of f, the unit."""
    recent_spread: Tensor
    """The largest spread of f in the last steps."""
    recent_square: Tensor
    """The largest product of the estimate with itself in the last steps."""

    @classmethod
    def zero(cls, num_terms: int) -> "Products":
        zeros = (torch.zeros(()) for _ in range(4))
        return cls(torch.zeros(1 + num_terms, 1 + num_terms), *zeros)

    def unit(self, spread: Tensor) -> Tensor:
        """The spread of f in past steps or, if it is not known yet, in this step."""
        now = spread.mean()
        first = torch.where((now > 0) & now.isfinite(), now, 1)
        return torch.where(self.matrix[0, 0] > 0, self.log_unit.exp2(), first)

    def influence(
        self, spread: Tensor, unit: Tensor, distance: Any = None, middle: Any = None
    ) -> Tensor:
        """A factor for each element of the batch, below 1 if its f is spread more than `LIMIT`
        units, or if its `distance` from the mean so far, `middle`, is."""
        factor = within(spread, LIMIT * unit)
        if distance is None:
            return factor
        return torch.minimum(factor, within(distance, LIMIT * (unit + middle.abs())))

    def factors(self, spread: Tensor, unit: Tensor, at: Evaluated, *far: Tensor) -> Tensor:
        """The factors of the batch's elements in products; 0 for those that are not sound or had an
        accident."""
        influence = self.influence(spread, unit, *far)
        return at.only_sound(torch.where(influence > ACCIDENT, influence, 0) / unit)

    def step(
        self,
        products: Tensor,
        weight: Tensor,
        spread: Tensor,
        unit: Tensor,
        decay: float = DECAY,
    ) -> "Products":
        """The new averages. `products` are in units of `unit`, the unit of this spread."""
        now = spread.mean()
        # The unit is a moving average, too. No element of the batch counts more than `LIMIT`.
        growth = 1 + (1 - decay) * ((spread / unit).clamp(max=LIMIT).mean() - weight)
        growth = torch.where(now > 0, growth, 1)
        # Nor does a step count that is far from the past in one of the terms alone. Such a step is
        # not the first one that a term is known from: the term would seem to be tiny ever after.
        past, new = self.matrix.diagonal(), products.diagonal() * self.weight
        excess = torch.where(past > 0, new / (LIMIT**2 * torch.where(past > 0, past, 1)), 0).amax()
        known = (past > 0) | (excess <= 1)
        products = torch.where(known & known[:, None], products, 0) / excess.clamp(min=1)
        log_unit = (unit.log2() + growth.log2()).clamp(-LARGEST, LARGEST)
        # As long as f did not vary, the unit was not known, and the averages are of no use.
        old = torch.where(self.matrix[0, 0] > 0, self.matrix, 0)
        recent = lambda past, new: torch.maximum(
            torch.where(now > 0, RECENT_DECAY * past, past), new
        )
        return Products(
            (decay * old + (1 - decay) * products) / growth**2,
            decay * self.weight + (1 - decay) * weight,
            log_unit,
            recent(self.recent_spread, now),
            recent(self.recent_square, products[0, 0]) / growth**2,
        )

    def coefficients(self, decay: float = DECAY, ridge: float = RIDGE) -> Tensor:
        """The c that minimise the mean square of G₀ + Σ cₘ Gₘ; 0 in the first steps."""
        gram, target = self.matrix[1:, 1:], self.matrix[1:, 0]
        square = gram.diagonal()
        present = square > 0
        scale = torch.where(present, torch.where(present, square, 1).rsqrt(), 0)
        unit = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        gram = scale[:, None] * gram * scale + ridge * unit
        # Without a check whether it succeeded, for which the host would have to wait.
        solved, _ = torch.linalg.solve_ex(gram, scale * target)
        return torch.where(self.weight > 1 - decay ** (WARM_UP - 0.5), -scale * solved, 0)


def within(size: Tensor, limit: Tensor) -> Tensor:
    """The factor that brings a size down to a limit; 1 if it is below."""
    return torch.where(size > limit, limit / torch.where(size > 0, size, 1), 1)


class Terms(NamedTuple):
    """An estimate and its control variates, Gₘ = Σᵣ wₘᵣ bᵣ. The basis b consists of the K scores
    and of the vectors that some terms add."""

    weights: Tensor
    """`[terms, basis, *batch]`."""
    basis: Tensor
    num_scores: int

    @classmethod
    def of(cls, terms: list[tuple[Tensor, Any]], score: Tensor) -> "Terms":
        """Each term is 1/K Σₖ wₖ sₖ + v, given as w and v (or `None`)."""
        added = [m for m, (_, vector) in enumerate(terms) if vector is not None]
        weights = torch.stack([weights for weights, _ in terms])
        rows = weights / weights.shape[1]
        if added:
            unit = torch.eye(len(terms), dtype=weights.dtype, device=weights.device)[:, added]
            unit = expand(unit, weights.ndim).expand(*unit.shape, *weights.shape[2:])
            rows = torch.cat([rows, unit], 1)
            score = torch.cat([score, torch.stack([terms[m][1] for m in added])])
        return cls(rows, score, weights.shape[1])

    def products(self, factors: Tensor) -> Tensor:
        """GₘᵀGₙ, averaged over the batch, each element times the square of its factor."""
        scores, basis = self.num_scores, self.basis
        weights = torch.cat([self.weights[:, :scores] * factors, self.weights[:, scores:]], 1)
        vectors = basis[scores:] * expand(factors, basis.ndim - 1)
        basis = torch.cat([basis[:scores], vectors])
        axes = basis.ndim - self.weights.ndim + 1
        batch = self.weights.shape[2:].numel()
        flat = basis.reshape(len(basis), batch, -1) if axes else basis.reshape(len(basis), batch, 1)
        gram = torch.einsum("rbi,qbi->brq", flat, flat)
        weights = weights.reshape(*weights.shape[:2], batch)
        return torch.einsum("mrb,brq,nqb->mn", weights, gram, weights) / batch

    def combine(self, coefficients: Tensor) -> Tensor:
        """G₀ + Σ cₘ Gₘ for each element of the batch."""
        weights = self.weights[0] + torch.tensordot(coefficients, self.weights[1:], 1)
        return (expand(weights, self.basis.ndim) * self.basis).sum(0)


def unless_outgrown(averages: Any, products: Products, at: Evaluated) -> Any:
    """New averages, or zeros if f has become far smaller than the old `products`."""
    square = products.matrix[0, 0]
    unit = torch.where(square > 0, products.log_unit.exp2(), 0)
    smaller = unit > SMALLER * products.recent_spread
    smaller = smaller | (square > SMALLER**2 * products.recent_square * products.weight)
    forget = at.has_outgrown(unit) | smaller
    return tree_map(lambda leaf: torch.where(forget, 0, leaf), averages)


def spread_of(at: Evaluated) -> Tensor:
    """How far f at the samples of each element of the batch is from f at the other samples."""
    return at.only_sound(leave_one_out(at.fx).abs().amax(0))


def inner_products(terms: Tensor, factors: Tensor) -> Tensor:
    """The inner products of vectors `[terms, *batch, ...]`, averaged over the batch, where each is
    multiplied by its element's factor. An element with the factor 0 may be NaN."""
    batch = max(factors.numel(), 1)
    flat = terms.reshape(len(terms), batch, -1).transpose(0, 1) * factors.reshape(-1, 1, 1)
    products = flat @ flat.mT
    return torch.where(factors.reshape(-1, 1, 1) > 0, products, 0).sum(0) / batch
