import jax
import pytest


@pytest.fixture
def x64():
    """Double precision, for proofs."""
    with jax.enable_x64(True):
        yield
