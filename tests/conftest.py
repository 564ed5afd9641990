import jax
import pytest


@pytest.fixture
def x64():
    """Double precision, for proofs."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def standard_promotion():
    """optax mixes integers and floats, which the strict rules of the other tests forbid."""
    with jax.numpy_dtype_promotion("standard"):
        yield
