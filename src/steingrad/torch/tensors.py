"""Conversions between tensors and arrays, and PyTorch's random numbers."""

import contextlib
import functools
import threading
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

# Dtypes that NumPy lacks are converted by dlpack.
WITHOUT_NUMPY = (torch.bfloat16,)
# PyTorch has one generator for all threads. It is reset while f is called again.
GENERATORS = threading.RLock()


def to_jax(tensor: torch.Tensor) -> Any:
    """A tensor as an input of a compiled function, in the same memory if JAX can use it.

    On a CPU this is a NumPy view, which JAX takes without a copy, in a tenth of the time that
    dlpack takes in Python.
    """
    tensor = tensor.detach()
    if not (tensor.is_cuda and _jax_has_cuda()):
        tensor = tensor.cpu()
    if tensor.is_cuda or tensor.dtype in WITHOUT_NUMPY or jax.default_backend() != "cpu":
        return jax.dlpack.from_dlpack(tensor.contiguous())
    return tensor.numpy()


def to_torch(array: jax.Array, device: torch.device) -> torch.Tensor:
    """A tensor in the array's memory, or a copy on a device that JAX does not have."""
    # PyTorch reads the memory at once, and the inputs of the computation may change afterwards.
    return torch.from_dlpack(array.block_until_ready()).to(device)


@functools.cache
def _jax_has_cuda() -> bool:
    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


def compute_dtype(tensor: torch.Tensor) -> torch.dtype:
    """The dtype to compute in: that of the tensor, but at least float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def version(tensor: torch.Tensor) -> int | None:
    """The number of in-place changes of a tensor, which all its views share. `None` for tensors of
    inference mode, which do not count changes."""
    return None if tensor.is_inference() else tensor._version


def draw_seeds() -> np.ndarray:
    """63 random bits of PyTorch's generator, as two numbers for `key_of`."""
    return torch.empty(1, dtype=torch.int64).random_().numpy().view(np.uint32)


class Surroundings(NamedTuple):
    """The state that a call of f depends on besides its argument: generators and autocast."""

    device: torch.device
    states: tuple[torch.Tensor, ...]
    autocast: tuple[bool, torch.dtype]

    @classmethod
    def here(cls, device: torch.device) -> "Surroundings":
        return cls(device, _generator_states(device), _autocast(device))

    @contextlib.contextmanager
    def again(self):
        """A context with the same random numbers and precision as in `here`, and without gradients.
        Afterwards the generators continue from their present state."""
        enabled, dtype = self.autocast
        same = _autocast(self.device) == self.autocast  # reading is cheaper than setting
        cast = torch.autocast(self.device.type, dtype, enabled) if not same else None
        with GENERATORS:
            now = _generator_states(self.device)
            _set_generator_states(self.device, self.states)
            try:
                with torch.no_grad(), cast or contextlib.nullcontext():
                    yield
            finally:
                _set_generator_states(self.device, now)


def _autocast(device: torch.device) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)


def _generator_states(device: torch.device) -> tuple[torch.Tensor, ...]:
    own = (torch.cuda.get_rng_state(device),) if device.type == "cuda" else ()
    return (torch.get_rng_state(), *own)


def _set_generator_states(device: torch.device, states: tuple[torch.Tensor, ...]) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
