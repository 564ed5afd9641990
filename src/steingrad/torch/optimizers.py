"""The optimisers of `steingrad.estimators.optimizers`, for one vector of all control variates.

The buffer `cv_numbers` holds the control variates, then the state of their optimiser.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ..estimators.optimizers import LARGEST, RECENT_DECAY, SMALLER
from .arrays import leaves


class Optimizer:
    """Plain gradient descent with a fixed rate, for sums and averages."""

    counts = 0
    """The number of integers in the state."""

    def __init__(self, cv: Any, rate: Any = 1.0):
        self.rate = rate
        self.size = sum(leaf.numel() for leaf in leaves(cv))
        """The number of control variates."""

    @property
    def total(self) -> int:
        """The number of control variates and of the floating-point numbers in the state."""
        return self.size

    def step(self, numbers: Tensor, counts: Tensor, grad: Tensor) -> None:
        """Change both buffers in place."""
        numbers[: self.size].sub_(self.rate * grad)


class Adam(Optimizer):
    """Adam for gradients of any size; see `steingrad.estimators.optimizers.adam`. The rest of the
    control variates, before or after those that are `learned`, are averages with rate 1."""

    def __init__(self, cv: Any, rate: Any, b1: float = 0.9, learned: Any = None):
        super().__init__(cv, rate)
        self.b1 = b1
        learned = cv if learned is None else learned
        parts = leaves(learned)
        own = {id(part) for part in parts}
        before = 0
        for leaf in leaves(cv):
            if id(leaf) in own:
                break
            before += leaf.numel()
        self.start, self.length = before, sum(part.numel() for part in parts)
        self.networks = list(_networks(learned, 0))
        self.counts = 2 if callable(rate) else 1

    @property
    def total(self):
        return self.size + 2 * self.length + 1

    def step(self, numbers, counts, grad):
        size, start, length = self.size, self.start, self.length
        before, after = slice(0, start), slice(start + length, size)
        for part in (before, after):
            if part.stop > part.start:
                numbers[part].sub_(grad[part])
        if not length:
            return
        grad = grad[start : start + length]
        mean, root = numbers[size : size + length], numbers[size + length : size + 2 * length]
        recent, count = numbers[size + 2 * length], counts[0]
        update = self._update(grad, mean, root, recent, count)
        finite, step, mean_, root_, recent_, count_ = update
        rate = self.rate(counts[1]) if callable(self.rate) else self.rate
        numbers[start : start + length].sub_(rate * torch.where(finite, step, 0))
        mean.copy_(torch.where(finite, mean_, mean))
        root.copy_(torch.where(finite, root_, root))
        recent.copy_(torch.where(finite, recent_, recent))
        count.copy_(torch.where(finite, count_, count))
        if callable(self.rate):
            counts[1].add_(1)

    def _update(self, grad, mean, root, recent, count):
        b1, b2 = self.b1, 0.999
        steps = count.to(grad.dtype)  # a power of a whole number would be in single precision
        now = grad.abs().amax()
        finite = now.isfinite()
        scale = root.abs().amax() / (1 - b2 ** steps.clamp(min=1)).sqrt()
        anew = (recent * SMALLER < scale) & (now > 0)
        steps, mean, root = (torch.where(anew, 0, part) for part in (steps, mean, root))
        too_large = (now > LARGEST * scale) & (scale > 0)
        shrink = torch.where(too_large & ~anew, LARGEST * scale / now, 1)
        grad = grad * shrink
        steps = steps + 1
        mean = b1 * mean + (1 - b1) * grad
        root = torch.hypot(math.sqrt(b2) * root, math.sqrt(1 - b2) * grad)
        decayed = torch.where(now > 0, RECENT_DECAY * recent, recent)
        recent = torch.maximum(torch.where(anew, 0, decayed), shrink * now)
        correction = (1 - b2**steps).sqrt()
        floor = 1e-8 * root.abs().amax() / correction
        size = root / correction + floor
        step = torch.where(size > 0, mean / (1 - b1**steps) / torch.where(size > 0, size, 1), 0)
        for biases, weights in self.networks:
            step = with_small_biases(step, root, biases, weights)
        return finite, step, mean, root, recent, steps.to(torch.int32)


def _networks(tree: Any, start: int):
    """Where the biases and the weights of each network are, as slices."""
    if isinstance(tree, dict):
        if "b_in" in tree:
            biases = sum(leaf.numel() for name, leaf in tree.items() if name.startswith("b"))
            total = sum(leaf.numel() for leaf in tree.values())
            yield slice(start, start + biases), slice(start + biases, start + total)
        return
    if isinstance(tree, tuple):
        for part in tree:
            yield from _networks(part, start)
            start += sum(leaf.numel() for leaf in leaves(part))


def with_small_biases(steps: Tensor, root: Tensor, biases: slice, weights: slice) -> Tensor:
    """The steps of a network, with those of the biases in units of the network's inputs and
    outputs, if these are below 1."""
    of_weights, of_biases = root[weights].abs().amax(), root[biases].abs().amax()
    ratio = of_weights / torch.where(of_biases > 0, of_biases, 1)
    unit = torch.where(of_weights < of_biases, ratio, 1)
    scaled = steps[biases] * unit
    return torch.cat([steps[: biases.start], scaled, steps[biases.stop :]])
