"""Settings shared by the tests and by the examples in docstrings."""

import importlib.util

import jax
import numpy as np
import pytest

# Without PyTorch its room cannot be imported; `make test-torch` has it.
if importlib.util.find_spec("torch") is None:
    collect_ignore = ["src/steingrad/torch"]

# No silent change of type anywhere in the library.
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(autouse=True)
def _short_numbers():
    """Examples show three digits."""
    with np.printoptions(precision=3, suppress=True):
        yield
