"""Settings for the tests and the doctests."""

import importlib.metadata
import importlib.util
import os
from pathlib import Path

# Most of the time of the tests is compilation, so compiled programs are cached on disk for other
# tests, subprocesses and later sessions. This must be set before JAX is imported.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides messages of XLA about the cache
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Less optimisation and the older code generator halve the compilation time. Set XLA_FLAGS yourself
# to test what users get; `make test-all` sets it to nothing.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_parallel_codegen_split_count=1"
    + (
        " --xla_cpu_use_fusion_emitters=false"
        # Later versions end the process at this flag: they have only the newer code generator.
        if tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2])) < (0, 11)
        else ""
    ),
)

import jax
import jax.experimental
import numpy as np
import pytest

# `steingrad.torch` cannot be imported without PyTorch; `make test-torch` tests it. The same holds
# for `steingrad.numpyro` and `make test-numpyro`.
collect_ignore = [
    f"src/steingrad/{name}"
    for name in ("torch", "numpyro")
    if importlib.util.find_spec(name) is None
]

# Tests and pages use the name that this context has since JAX 0.8.
if not hasattr(jax, "enable_x64"):
    jax.enable_x64 = jax.experimental.enable_x64

# The library must not rely on implicit dtype promotion.
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(autouse=True)
def _short_numbers():
    """Makes the arrays in doctests print three digits."""
    with np.printoptions(precision=3, suppress=True):
        yield


@pytest.fixture(autouse=True)
def _numpyro_promotes(request):
    """numpyro relies on implicit dtype promotion."""
    needed = any(part.startswith("numpyro") for part in request.path.parts)
    with jax.numpy_dtype_promotion("standard" if needed else jax.config.jax_numpy_dtype_promotion):
        yield
