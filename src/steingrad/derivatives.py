"""Which derivatives of estimates are allowed, and how gradients are reduced over devices."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.extend
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad, batching, mlir

from .compatibility import vary, varying_axes

FORWARD = (
    "`expectation` has reverse-mode derivatives only: an estimator makes the whole gradient at "
    "once. Use jax.grad, jax.vjp or jax.jacrev in place of jax.jvp, jax.jacfwd or jax.linearize; "
    "for second derivatives jax.jacrev(jax.grad(...))."
)
DRAWN = (
    "An estimate was differentiated by the parameters of its distribution: a second derivative of "
    "`expectation`, or a derivative of what `value_and_grad` returns. The samples were drawn with "
    "these parameters, so a derivative at fixed samples is wrong. For first derivatives use "
    "jax.grad of `expectation`. For second derivatives use jax.grad of the gradient along v, which "
    "is the expectation of f(x) times the derivative of log q(x) along v (see `expectation`), or, "
    "on a small space, differentiate `exact_expectation`. If the parameters are constants, put "
    "jax.lax.stop_gradient around them. Derivatives by `args` and `cv` are right."
)
CONSTANT = (
    "`expectation` was differentiated by an array of its distribution that is not among its "
    "parameters, such as the conditions of a FromLogProb, or an array that its log_prob_fn closes "
    "over. Compute such an array from the parameters inside log_prob_fn: a network that reads an "
    "image belongs there, and runs once for all samples. If the array is a constant, put "
    "jax.lax.stop_gradient around it."
)

# The identity on derivatives that must not be used. It raises when a derivative is evaluated or
# transposed, but not when a derivative is formed and then dropped, as behind a stop_gradient.
_refused_p = jax.extend.core.Primitive("refused")
_refused_p.multiple_results = True


def _raise(*_, forward, **__):
    raise TypeError(forward)


def _transpose(cotangents, *_, forward, reverse):
    if reverse:
        raise TypeError(reverse)
    return cotangents


def _batch(arrays, axes, **messages):
    return _refused_p.bind(*arrays, **messages), axes


_refused_p.def_impl(_raise)
_refused_p.def_abstract_eval(lambda *avals, **_: avals)
ad.deflinear2(_refused_p, _transpose)
batching.primitive_batchers[_refused_p] = _batch
mlir.register_lowering(_refused_p, _raise, cacheable=False)


@jax.custom_jvp
def _reverse_only(leaves):
    return leaves


@partial(_reverse_only.defjvp, symbolic_zeros=True)
def _reverse_only_jvp(primals, tangents):
    # Symbolic zeros stay symbolic, so that JAX still knows which leaves are differentiated.
    moved = [t for t in tangents[0] if not isinstance(t, SymbolicZero)]
    moved = iter(_refused_p.bind(*moved, forward=FORWARD, reverse=None) if moved else [])
    out = [t if isinstance(t, SymbolicZero) else next(moved) for t in tangents[0]]
    return primals[0], out


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _drawn_with(leaves, parameters, message):
    return leaves


@partial(_drawn_with.defjvp, symbolic_zeros=True)
def _drawn_with_jvp(message, primals, tangents):
    leaves, parameters = primals
    is_zero = lambda tangent: isinstance(tangent, SymbolicZero)
    moved = [t for t in jax.tree.leaves(tangents[1], is_leaf=is_zero) if not is_zero(t)]
    out = tangents[0]
    if moved:
        # The numbers are never used. They only need the right shape and a dependence on `moved`.
        total = lambda leaf: sum(jnp.sum(t).astype(leaf.dtype) for t in moved)
        made = [jnp.broadcast_to(total(leaf), leaf.shape) for leaf in leaves]
        refused = _refused_p.bind(*made, forward=message, reverse=message)
        out = [r if is_zero(t) else t + r for t, r in zip(out, refused, strict=True)]
    return _drawn_with(leaves, parameters, message), out


def reverse_only(tree: Any) -> Any:
    """The same arrays, but differentiable in reverse mode only."""
    leaves, others = eqx.partition(tree, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(leaves)
    return eqx.combine(jax.tree.unflatten(structure, _reverse_only(leaves)), others)


def drawn_with(parameters: Any, estimates: Any, message: str = DRAWN) -> Any:
    """The same estimates, but an error with this message is raised if they are differentiated with
    respect to `parameters`, with which their samples were drawn."""
    arrays, others = eqx.partition(estimates, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(arrays)
    leaves = _drawn_with(leaves, eqx.filter(parameters, eqx.is_inexact_array), message)
    return eqx.combine(jax.tree.unflatten(structure, leaves), others)


def stop_gradient(tree: Any) -> Any:
    """The same tree, with its arrays as constants."""
    constant = lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_inexact_array(leaf) else leaf
    return jax.tree.map(constant, tree)


class RawKey(eqx.Module):
    """A random key (`jax.random.key`) as the array of its integers."""

    data: Any
    kind: Any = eqx.field(static=True)


def raw_keys(tree: Any) -> Any:
    """The same tree, with its random keys as integers. In an eager derivative of `jax.lax.cond`,
    the inputs of a function with a derivative of its own must not be keys, because JAX has no zeros
    of their type for the branch that was not taken."""

    def raw(leaf):
        is_key = eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return RawKey(jax.random.key_data(leaf), jax.random.key_impl(leaf)) if is_key else leaf

    return jax.tree.map(raw, tree)


def typed_keys(tree: Any) -> Any:
    """The inverse of `raw_keys`."""
    is_raw = lambda leaf: isinstance(leaf, RawKey)
    typed = lambda leaf: jax.random.wrap_key_data(leaf.data, impl=leaf.kind)
    return jax.tree.map(lambda leaf: typed(leaf) if is_raw(leaf) else leaf, tree, is_leaf=is_raw)


def device_axes(tree: Any) -> frozenset[str]:
    """The mesh axes along which any of the arrays differs, inside `jax.shard_map`."""
    return frozenset().union(*map(varying_axes, filter(eqx.is_array, jax.tree.leaves(tree))))


def on_each_device(tree: Any, like: Any = None) -> Any:
    """The same arrays, but a copy for each device if any array here or in `like` is not shared.

    The derivative with respect to a shared array would be summed over the devices. The derivative
    with respect to a copy stays on its device, where an estimator needs it.
    """
    axes = device_axes((tree, like))

    def own(leaf):
        missing = axes - device_axes(leaf) if eqx.is_array(leaf) else None
        return vary(leaf, tuple(missing)) if missing else leaf

    return jax.tree.map(own, tree) if axes else tree


def over_devices(reduce: Callable, gradients: Any, like: Any) -> Any:
    """Reduce each gradient over the devices that share the array to which it belongs."""

    def shared(gradient, array):
        if gradient is None:
            return None
        axes = tuple(device_axes(gradient) - device_axes(array))
        return reduce(gradient, axes) if axes else gradient

    return jax.tree.map(shared, gradients, like, is_leaf=lambda leaf: leaf is None)


def check_shared(moving: Any, everything: Any) -> None:
    """Raise if f closes over a differentiated array that devices share. Its gradient would be
    summed over devices before it can be multiplied by each device's own factor."""
    axes = device_axes(everything)
    if any(axes - device_axes(leaf) for leaf in jax.tree.leaves(moving)):
        raise TypeError(
            "Inside jax.shard_map, f closes over an array that all devices share and that is "
            "differentiated. Pass it to f through args=(...) of `expectation`."
        )
