import os
from pathlib import Path

# Nearly all the time of the tests is compilation: what was compiled before, in another test, by a
# process that a test starts or in an earlier session, is taken from disk. To be set before JAX is
# imported.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "jax")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax
import pytest


@pytest.fixture
def x64():
    """Double precision, for proofs."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A small run from beginning to end: to be looked at, or copied."""
    from small_runs import SCHEDULE, SMALL
    from steingrad.experiments import train

    with jax.numpy_dtype_promotion("standard"):
        return train(
            SMALL, tmp_path_factory.mktemp("runs") / "small", schedule=SCHEDULE, quiet=True
        )


@pytest.fixture(scope="module")
def standard_promotion():
    """optax mixes integers and floats, which the strict rules of the other tests forbid."""
    with jax.numpy_dtype_promotion("standard"):
        yield
