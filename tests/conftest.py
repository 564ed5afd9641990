import jax
import jaxtyping
import pytest


@pytest.fixture
def x64():
    """Double precision, for proofs."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def unchecked_types(monkeypatch):
    """Annotations are not checked, as for users: what they see is the library's own sentence."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A small run from beginning to end: to be looked at, or copied."""
    from small_runs import SCHEDULE, SMALL
    from steingrad_lab.training import train

    with jax.numpy_dtype_promotion("standard"):
        return train(
            SMALL, tmp_path_factory.mktemp("runs") / "small", schedule=SCHEDULE, quiet=True
        )


@pytest.fixture(scope="module")
def standard_promotion():
    """optax mixes integers and floats, which the strict rules of the other tests forbid."""
    with jax.numpy_dtype_promotion("standard"):
        yield
