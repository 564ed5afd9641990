"""Settings shared by the tests and by the examples in docstrings."""

import importlib.util
import os
from pathlib import Path

# Nearly all the time of the tests is compilation: what was compiled before, in another test, by a
# process that a test starts or in an earlier session, is taken from disk. To be set before JAX is
# imported.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA's remarks on what it finds there
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# And compiled with less optimisation and the older code generator, in half the time. Set XLA_FLAGS
# yourself, to nothing for instance as `make test-all` does, to test what users get.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)

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
