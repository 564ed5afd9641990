"""Functions of tensors that several estimators use."""

import contextlib
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

TINY = 1e-30
"""The least pivot of `factorise`: a feature that is always 0 then has the coefficient 0."""
# PyTorch has one generator for all threads. It is reset while f is called again.
GENERATORS = threading.RLock()


def compute_dtype(*tensors: Tensor) -> Any:
    """The dtype to compute in: float64 if one of the tensors has it, otherwise float32."""
    double = any(tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if double else torch.float32


def expand(tensor: Tensor, ndim: int) -> Tensor:
    """`tensor` with axes of length one appended, up to `ndim` axes."""
    return tensor.reshape(tensor.shape + (1,) * (ndim - tensor.ndim))


def inner(a: Tensor, b: Tensor, axes: int) -> Tensor:
    """The sum of a · b over the last `axes` axes."""
    return (a * b).flatten(-axes).sum(-1) if axes else a * b


def mean_of_others(values: Tensor) -> Tensor:
    """The mean over j ≠ k of vⱼ, for each k."""
    if len(values) == 2:
        return values.flip(0)
    return (values.sum(0) - values) / (len(values) - 1)


def mean_of_samples(values: Tensor) -> Tensor:
    """The mean over the samples, without an operation if there is one."""
    return values[0] if len(values) == 1 else values.mean(0)


def leave_one_out(values: Tensor) -> Tensor:
    """Each value minus the mean of the others. All are taken relative to the first, so that a large
    constant in all values costs no digits."""
    relative = values if len(values) == 2 else values - values[:1]
    return relative - mean_of_others(relative)


def others(values: Tensor) -> Tensor:
    """For each k the values of the other samples, v₍ₖ₊₁₎, v₍ₖ₊₂₎, ... (mod K), on a new axis."""
    return torch.stack([values.roll(-shift, 0) for shift in range(1, len(values))])


def safe_divide(above: Tensor, below: Tensor) -> Tensor:
    """above / below, and above itself where `below` is not positive."""
    return above / torch.where(below > 0, below, 1)


def largest(parts: Sequence[Tensor]) -> Tensor:
    """The largest absolute value in several tensors; NaN if a number is NaN."""
    sizes = [part.abs().amax() for part in parts if part.numel()]
    return torch.stack(sizes).amax() if len(sizes) > 1 else sizes[0]


def power_of_two(size: Tensor) -> Tensor:
    """The least power of two above `size`; 1 if it is 0 or not finite."""
    usable = (size > 0) & size.isfinite()
    return torch.where(usable, torch.exp2(torch.where(usable, size, 1).log2().floor() + 1), 1)


def factorise(gram: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Cholesky's factors of many small matrices `[..., n, n]`: their diagonal, and for each column
    what is below it. A library's routine would take the matrices one by one, and report to the host
    whether it succeeded."""
    n = gram.shape[-1]
    # The bound is the rounding error of a feature that depends linearly on the others.
    least = 1e-6 * gram.diagonal(dim1=-2, dim2=-1) + TINY
    pivots, lowers = [], []
    for j in range(n):
        pivots.append(torch.maximum(gram[..., 0, 0], least[..., j]).sqrt())
        lowers.append(gram[..., 1:, 0] / pivots[j][..., None])
        if j < n - 1:
            gram = gram[..., 1:, 1:] - lowers[j][..., :, None] * lowers[j][..., None, :]
    return pivots, lowers


def substitute(pivots: list[Tensor], lowers: list[Tensor], right: Tensor) -> Tensor:
    """The solutions of the systems whose factors these are."""
    y: list[Tensor] = []
    for pivot, lower in zip(pivots, lowers, strict=True):
        y.append(right[..., 0] / pivot)
        right = right[..., 1:] - lower * y[-1][..., None]
    for i in reversed(range(len(y))):
        left = y[i]
        for k in range(i + 1, len(y)):
            left = left - lowers[i][..., k - i - 1] * y[k]
        y[i] = left / pivots[i]
    return torch.stack(y, -1)


# Control variates are trees, as in JAX: named tuples, dictionaries (sorted by their keys) and
# tensors, where `None` stands for nothing.


def leaves(tree: Any) -> list[Any]:
    """The tensors of a tree, in the order in which JAX flattens the same tree."""
    if tree is None:
        return []
    if isinstance(tree, dict):
        return [leaf for name in sorted(tree) for leaf in leaves(tree[name])]
    if isinstance(tree, tuple) and not isinstance(tree, torch.Size):
        return [leaf for part in tree for leaf in leaves(part)]
    return [tree]


def tree_map(function: Any, *trees: Any) -> Any:
    """`function` of the tensors in the same place of several trees."""
    first = trees[0]
    if first is None:
        return None
    if isinstance(first, dict):
        return {name: tree_map(function, *(t[name] for t in trees)) for name in first}
    if isinstance(first, tuple) and not isinstance(first, torch.Size):
        parts = [tree_map(function, *rest) for rest in zip(*trees, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return function(*trees)


def pack(tree: Any) -> Tensor:
    """All numbers of a tree, one after the other."""
    return torch.cat([leaf.reshape(-1) for leaf in leaves(tree)])


def unpack(shapes: Any, numbers: Tensor) -> Any:
    """The inverse of `pack`, as views: a tree of tensors, given a tree of their shapes."""
    sizes = [shape.numel() for shape in leaves(shapes)]
    parts = iter(numbers.split(sizes))
    return _fill(shapes, parts)


def _fill(shapes: Any, parts: Any) -> Any:
    if shapes is None:
        return None
    if isinstance(shapes, torch.Size):
        return next(parts).reshape(shapes)
    if isinstance(shapes, dict):
        return {name: _fill(shapes[name], parts) for name in sorted(shapes)}
    found = [_fill(shape, parts) for shape in shapes]
    return type(shapes)(*found) if hasattr(shapes, "_fields") else tuple(found)


class Seed:
    """Random numbers for initial weights, the same for the same number."""

    def __init__(self, number: int):
        self.number, self.generator = number, None

    def glorot(self, inputs: int, outputs: int) -> Tensor:
        """Glorot uniform weights."""
        if self.generator is None:
            self.generator = torch.Generator("cpu").manual_seed(self.number)
        bound = (6 / (inputs + outputs)) ** 0.5
        return torch.rand(inputs, outputs, generator=self.generator) * 2 * bound - bound


class Surroundings(NamedTuple):
    """The states of the random number generators that a call of f depends on."""

    device: Any
    cpu: Tensor
    own: Tensor | None
    """The state of the device's own generator; `None` on the CPU."""

    @classmethod
    def here(cls, device: Any) -> "Surroundings":
        own = None if device.type == "cpu" else _module(device).get_rng_state(*_which(device))
        return cls(device, torch.get_rng_state(), own)

    @contextlib.contextmanager
    def again(self):
        """A context with the same random numbers as in `here`. Afterwards the generators continue
        from their present state."""
        with GENERATORS:
            now = Surroundings.here(self.device)
            self._set()
            try:
                yield
            finally:
                now._set()

    def _set(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.own is not None:
            _module(self.device).set_rng_state(self.own, *_which(self.device))


def _module(device: Any) -> Any:
    """`torch.cuda`, `torch.mps` or `torch.xpu`."""
    return torch.get_device_module(device)


def _which(device: Any) -> tuple:
    """The device as an argument: there is only one of MPS."""
    return () if device.type == "mps" else (device,)
