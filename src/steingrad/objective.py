"""The objective f: how it is called, and what its evaluation leaves for an estimator."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .arrays import compute_dtype
from .distributions.base import Distribution


class Evaluated(eqx.Module):
    r"""The samples, what was evaluated at them, and what else an estimate may look at."""

    x: Float[Array, "samples ..."]
    """The samples, of shape `[K, *batch, *event]`."""
    fx: Float[Array, "samples ..."]
    """f there, of shape `[K, *batch]`."""
    dfx: Float[Array, "samples ..."] | None = None
    r"""$\nabla f$ there, shaped like `x`."""
    fy: Float[Array, "points samples ..."] | None = None
    """f at the estimator's `further_points`, of shape `[n, K, *batch]`."""
    f: Callable[[Array], Array] | None = None
    """f itself. A random f draws the same numbers whenever it is called with the shape of `x`."""
    key: PRNGKeyArray | None = None
    """For what the estimate draws."""
    context: Array | None = None
    """What the control variates may know beside the samples, of shape `[*batch, c]`."""


def bind(
    f: Callable[..., Float[Array, "..."]],
    dist: Distribution,
    key: PRNGKeyArray | None,
    *,
    relaxed: bool = False,
) -> Callable[..., Float[Array, "..."]]:
    """`f` with its key, if it takes one, and with a check of what it returns; `relaxed` if it is
    to be differentiated between the states."""
    if takes_key(f):
        f = _with_key(f, key)

    def objective(x, *args):
        fx = jnp.asarray(f(x, *args))
        expected = x.shape[: x.ndim - dist.event_ndim]
        if fx.shape != expected:
            raise ValueError(
                f"f was given states of shape {x.shape} and must return one number for each, of "
                f"shape {expected}, but returned shape {fx.shape}. Sum over the last "
                f"{dist.event_ndim} axes only."
            )
        if jnp.issubdtype(fx.dtype, jnp.complexfloating):
            raise TypeError(
                f"f must return real numbers, but returned {fx.dtype}. Return jnp.real(...), "
                "jnp.imag(...) or jnp.abs(...) of it, or estimate two expectations."
            )
        if not jnp.issubdtype(fx.dtype, jnp.floating):
            if relaxed:
                raise TypeError(
                    "Rebar and Relax differentiate f between the states, where it must be "
                    f"continuous, but it returned {fx.dtype}: such an f jumps, and its gradient "
                    "is 0. Pass a continuous stand-in as relaxation=..., or use RLOO or Rodeo."
                )
            fx = fx.astype(compute_dtype(x))
        return fx

    return objective


def _with_key(f, key):
    return lambda x, *args: f(x, *args, key=key)


def takes_key(f: Callable) -> bool:
    """Whether `f` has an argument named `key` that is not bound yet."""
    if isinstance(f, functools.partial) and "key" in f.keywords:
        return False
    try:
        return "key" in inspect.signature(f).parameters
    except (TypeError, ValueError):
        return False


def as_jax_arrays(tree: Any) -> Any:
    """NumPy arrays as JAX arrays, which are differentiated; other leaves as they are."""
    numpy = (np.ndarray, np.generic)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, numpy) else leaf, tree)


def evaluate(
    objective: Callable[..., Float[Array, "..."]],
    x: Float[Array, "samples ..."],
    args: tuple,
    needs_gradient: bool,
) -> tuple[Float[Array, "samples ..."], Float[Array, "samples ..."] | None, tuple]:
    """f(x), ∇f(x) (if needed) and the gradient of mean f with respect to `args`, in one pass."""
    dynamic, static = eqx.partition(as_jax_arrays(args), eqx.is_inexact_array)

    def at(x, dynamic):
        return objective(x, *eqx.combine(dynamic, static))

    if needs_gradient:
        fx, pull_back = jax.vjp(at, x, dynamic)
        # f acts on each state alone, so one backward pass gives each its own gradient.
        dfx, args_grad = pull_back(jnp.ones_like(fx))
        dfx = dfx.astype(compute_dtype(fx, dfx))
    else:
        fx, pull_back = jax.vjp(lambda dynamic: at(x, dynamic), dynamic)
        dfx, (args_grad,) = None, pull_back(jnp.ones_like(fx))
    args_grad = jax.tree.map(lambda g: g / max(fx.size, 1), args_grad)
    return (
        fx.astype(compute_dtype(fx, dfx) if dfx is not None else compute_dtype(fx)),
        dfx,
        args_grad,
    )
