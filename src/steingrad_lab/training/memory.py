"""Memory: refuse what cannot fit before it is tried, and say so if memory runs out after all."""

import contextlib
import os
from collections.abc import Iterator

import jax

from .stored import RunError

ADVICE = "Choose smaller numbers: of images at a time, samples, bits or hidden units."


def there() -> int | None:
    """Returns the bytes of memory of the first device, or `None` if nobody knows."""
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        return (device.memory_stats() or {}).get("bytes_limit")
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None


def check_memory(needed: int, what: str) -> None:
    """Raises if `what` needs more bytes than there are. A system that tries may kill the process.

    >>> check_memory(10**18, "This model")
    Traceback (most recent call last):
    steingrad_lab.training.stored.RunError: This model needs at least 931322574.6 GB of memory, ...
    """
    memory = there()
    if memory is not None and needed > memory:
        raise RunError(
            f"{what} needs at least {needed / 2**30:.1f} GB of memory, but the device has "
            f"{memory / 2**30:.1f} GB. {ADVICE}"
        )


@contextlib.contextmanager
def enough_memory() -> Iterator[None]:
    """Turns an error about too little memory, or about too large an array, into a RunError."""
    try:
        yield
    except (MemoryError, OverflowError, jax.errors.JaxRuntimeError) as error:
        why = str(error).partition("\n")[0] or "Python found no more"
        told = ("RESOURCE_EXHAUSTED", "Out of memory", "jitted computation")
        if not (isinstance(error, MemoryError) or any(words in why for words in told)):
            raise
        if isinstance(error, OverflowError):
            why = "an array would have more numbers than JAX can count"
        raise RunError(f"There is not enough memory ({why}). {ADVICE}") from error
