"""Derivatives inside an estimate, which also work inside `torch.compile` and `torch.func`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .arrays import leaves, tree_map


def learns_here() -> bool:
    """Whether control variates can be adapted: not inside a transform of `torch.func`, where a
    buffer must not change."""
    if torch.compiler.is_compiling():
        return True
    return torch._C._functorch.maybe_current_level() is None


def derivative(function: Callable[[Any], tuple[Tensor, Any]], tree: Any) -> tuple[Any, Any]:
    """Returns the derivative with respect to a tree, and the second result of the function."""
    flat = leaves(tree)

    def of_leaves(*flat):
        parts = iter(flat)
        return function(tree_map(lambda _: next(parts), tree))

    if torch.compiler.is_compiling() or not learns_here():
        found, aux = torch.func.grad(of_leaves, tuple(range(len(flat))), has_aux=True)(*flat)
    else:
        with torch.enable_grad():
            inside = [leaf.detach().requires_grad_() for leaf in flat]
            value, aux = of_leaves(*inside)
            found = torch.autograd.grad(value, inside, materialize_grads=True)
        aux = tree_map(torch.Tensor.detach, aux)
    parts = iter(found)
    return tree_map(lambda _: next(parts), tree), aux


def slope_of(function: Callable[[Tensor], tuple[Tensor, Tensor]], at: Tensor) -> Any:
    """Returns the derivative at a tensor and the second result of the function. Both can be
    differentiated by what the function closes over."""
    if torch.compiler.is_compiling() or not learns_here():
        return torch.func.grad(function, has_aux=True)(at)
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        at = at.detach().requires_grad_()
        value, aux = function(at)
        (found,) = torch.autograd.grad(value, at, create_graph=again, materialize_grads=True)
    return found, aux if again else aux.detach()
