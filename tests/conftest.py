import jax
import jaxtyping
import pytest


@pytest.fixture
def x64():
    """Double precision, for exact proofs."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def unchecked_types(monkeypatch):
    """Turn off the checks of annotations, so that the library's own errors are raised, as for
    users."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A small finished run, to be read or copied."""
    from small_runs import SCHEDULE, SMALL
    from steingrad_lab.training import train

    with jax.numpy_dtype_promotion("standard"):
        return train(
            SMALL, tmp_path_factory.mktemp("runs") / "small", schedule=SCHEDULE, quiet=True
        )


@pytest.fixture(scope="module")
def standard_promotion():
    """Standard promotion, because optax mixes integers and floats."""
    with jax.numpy_dtype_promotion("standard"):
        yield
