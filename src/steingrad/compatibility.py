"""Functions of JAX that have other names in some of the versions that `pyproject.toml` allows."""

from typing import Any

import jax
import jax.experimental


def enable_x64(enabled: bool) -> Any:
    """A context with or without double precision, as `jax.enable_x64` of JAX 0.8 and later."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(enabled)
    return jax.experimental.enable_x64(enabled)  # pyright: ignore[reportAttributeAccessIssue]


def varying_axes(array: Any) -> frozenset[str]:
    """The mesh axes along which the array differs between devices, inside `jax.shard_map`."""
    kind: Any = jax.typeof(array)
    return kind.mat.varying if hasattr(kind, "mat") else kind.vma


def vary(array: Any, axes: tuple[str, ...]) -> Any:
    """A copy of a shared array for each device along these mesh axes, inside `jax.shard_map`."""
    if hasattr(jax.lax, "pcast"):  # since JAX 0.8.2
        return jax.lax.pcast(array, axes, to="varying")
    return jax.lax.pvary(array, axes)  # pyright: ignore[reportAttributeAccessIssue]
