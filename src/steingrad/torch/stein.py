"""The Stein control variates of RODEO with the Gibbs operator."""

from typing import Any

import torch
from torch import Tensor

from ..operators import Gibbs
from . import surrogates
from .arrays import expand, mean_of_others
from .evaluated import Evaluated


def check(name: str, operator: Any, surrogate: Any) -> None:
    """Raise if an operator or a surrogate exists in JAX only."""
    if type(operator) is not Gibbs:
        raise TypeError(
            f"{name} in PyTorch takes the operator Gibbs(), but was given a "
            f"{type(operator).__name__}: use Gibbs(), or use {name} in JAX."
        )
    if operator.num_coordinates is not None:
        raise TypeError(
            f"{name} in PyTorch visits all coordinates, but was given "
            f"Gibbs(num_coordinates={operator.num_coordinates}): use Gibbs(), or use {name} in JAX."
        )
    surrogates.check(name, surrogate)


def stein_terms(
    operator: Gibbs, surrogate: Any, cv: Any, dist: Any, at: Evaluated, score: Tensor
) -> tuple:
    """−1/(K−1) Σⱼ≠ₖ (A hⱼ)(xⱼ) s(xₖ) and (A (h*ₖ s))(xₖ), as `Terms.of` takes them."""
    if not dist.is_product:
        raise TypeError(
            f"The Stein terms of RODEO take independent coordinates in PyTorch, but were given a "
            f"{type(dist).__name__}: use Bronco or Lariat without a surrogate, or JAX."
        )
    flips = dist.flips(at.x)
    h, h_star = surrogates.evaluate(surrogate, cv, dist, flips, at)
    weights, axes = flips.conditional / dist.num_coordinates, flips.slot_axes
    below = lambda numbers: expand(numbers, numbers.ndim + axes)
    differences = weights * (h.neighbours - below(h.self))
    local = -mean_of_others(differences.flatten(-axes).sum(-1)), None
    differences = weights * (h_star.neighbours - below(h_star.self))
    if operator.scan == "own":
        weights, differences = (dist.num_coordinates * part for part in (weights, differences))
        sums = differences if axes == 1 else differences.sum(-1, keepdim=True)
    else:
        sums = below(differences.flatten(-axes).sum(-1))
    change = flips.score_change(weights * h_star.neighbours)
    return local, (torch.zeros_like(at.fx), (sums * score + change).mean(0))
