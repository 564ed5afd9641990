"""The objective f: how it is called, and the results that an estimator gets."""

import functools
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .arrays import compute_dtype, expand
from .distributions.base import Distribution
from .fast import mean

# Changes of f are at most twice as large as its values, and its mean is no larger than they are.
OUTGROWN = 1e3


class Evaluated(eqx.Module):
    r"""The samples, the evaluations of f, and the other inputs of an estimate.

    All floating-point arrays have one dtype, which is also the dtype of the distribution and of the
    control variates that an estimator gets with them.
    """

    x: Float[Array, "samples ..."]
    """The samples, of shape `[K, *batch, *event]`."""
    fx: Float[Array, "samples ..."]
    """f at the samples, of shape `[K, *batch]`."""
    dfx: Float[Array, "samples ..."] | None = None
    r"""$\nabla f$ at the samples, shaped like `x`."""
    fy: Float[Array, "points samples ..."] | None = None
    """f at the further points that the estimator proposed, of shape `[n, K, *batch]`."""
    f: Callable[[Array], Array] | None = None
    """f itself. A random f draws the same numbers whenever it is called with the shape of `x`."""
    key: PRNGKeyArray | None = None
    """The key for the random numbers of the estimate."""
    context: Array | None = None
    """A further input of the control variates, of shape `[*batch, c]`."""
    memo: Any = None
    """The memo that `Estimator.propose` returned with the further points."""
    sound: Bool[Array, "..."] | None = None
    """Which elements of the batch count in what is learned, of shape `[*batch]`: those where f and
    its gradient are finite, and whose factor is not 0. The others have f = 0 and a gradient of 0
    here. `None`: all count."""
    factors: Float[Array, "..."] | None = None
    """How much each element's estimate counts in the gradient that is passed on, relative to the
    largest: one number for all, or an array of shape `[*batch]`. `None`: all count the same."""

    def only_sound(self, array: Float[Array, "..."]) -> Float[Array, "..."]:
        """An array `[..., *batch]` with 0 at the elements of the batch that do not count."""
        return array if self.sound is None else jnp.where(self.sound, array, 0)

    @property
    def sound_share(self) -> Float[Array, ""]:
        """The share of the batch that counts in what is learned."""
        return mean(self.only_sound(jnp.ones(self.fx.shape[1:], self.fx.dtype)))

    def has_outgrown(self, size: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether a typical size of f, or of its changes, is far too large for the present values:
        f has become smaller since, or had an accident. What was learned is then of no use."""
        largest = jnp.max(jnp.abs(self.only_sound(self.fx)))
        return (largest > 0) & (jnp.abs(size) > OUTGROWN * largest)

    @property
    def event_ndim(self) -> int:
        """The number of axes of a state."""
        return self.x.ndim - self.fx.ndim


def bind(
    f: Callable[..., Any], dist: Distribution, *, relaxed: bool = False, has_aux: bool = False
) -> Callable[..., Any]:
    """`f` as a function of a key, of states as one array, and of further arguments. It returns a
    pair: checked values, and aux (`None` without `has_aux`). `relaxed` means that the estimate
    would be wrong if the gradient of f were 0 everywhere."""
    if isinstance(f, (Callback, PerExample)):
        call = f.on(dist)
    elif takes_key(f):
        call = lambda key, x, *args: f(dist.view(x), *args, key=key)
    else:
        call = lambda key, x, *args: f(dist.view(x), *args)

    def objective(key, x, *args):
        out, aux = call(key, x, *args), None
        if has_aux:
            if not isinstance(out, tuple) or len(out) != 2:
                raise TypeError(
                    "With has_aux=True f must return a pair, its values and anything else, but it "
                    f"returned a {type(out).__name__}. Return (values, aux)."
                )
            out, aux = out
        elif isinstance(out, (tuple, list, dict)):
            raise TypeError(
                f"f must return an array of values, but returned a {type(out).__name__}. To "
                "return something else too, return (values, aux) and pass has_aux=True."
            )
        fx = jnp.asarray(out)
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
        if relaxed and not jnp.issubdtype(fx.dtype, jnp.floating):
            raise TypeError(
                "The result of this estimator depends on the gradient of f, so f must be "
                f"continuous between the states, but f returned {fx.dtype}, whose gradient is 0. "
                "Use RLOO or Rodeo, or pass a continuous relaxation=... to Rebar or Relax."
            )
        # The same dtype for values and gradients, whatever the estimator.
        double = jnp.float64 in (fx.dtype, x.dtype)
        return fx.astype(jnp.float64 if double else jnp.float32), aux

    return objective


class PerExample:
    """See `per_example`."""

    def __init__(self, f: Callable, in_axes: Sequence[int | None] | None):
        given = [] if in_axes is None else in_axes
        if not isinstance(given, Sequence) or any(axis not in (0, None) for axis in given):
            raise ValueError(
                "in_axes needs one entry for each of args, 0 where it begins with the axes of the "
                f"batch, None where all examples share it, but was given {in_axes}."
            )
        self.f = f
        self.in_axes = in_axes

    def __call__(self, x: Any, *args: Any, **keywords: Any) -> Any:
        return self.f(x, *args, **keywords)

    def on(self, dist: Distribution) -> Callable:
        """f mapped over all states, as a function of a key, of states and of further arguments."""

        def on_all(key, x, *args):
            in_axes = (None,) * len(args) if self.in_axes is None else tuple(self.in_axes)
            if len(in_axes) != len(args):
                raise ValueError(
                    f"in_axes has {len(in_axes)} entries, but f is given {len(args)} args: it "
                    "needs one for each."
                )
            lead = x.shape[: x.ndim - dist.event_ndim]
            before = len(lead) - len(dist.batch_shape)
            _check_batch(dist, args, in_axes)
            if isinstance(self.f, Callback):
                loop = _OneByOne(self.f.f, len(dist.batch_shape), in_axes)
                return loop.on(dist)(key, x, *args)
            keyed = takes_key(self.f)
            keys = jax.random.split(key, lead) if keyed and key is not None else None

            def one(x, key, *args):
                return self.f(dist.view(x), *args, **({"key": key} if keyed else {}))

            for axis in reversed(range(len(lead))):
                mapped = in_axes if axis >= before else (None,) * len(args)
                one = jax.vmap(one, in_axes=(0, None if keys is None else 0, *mapped))
            return one(x, keys, *args)

        return on_all


def per_example(f: Callable[..., Any], in_axes: Sequence[int | None] | None = None) -> PerExample:
    """Map an `f(x, *args)` that takes one state `[*event]` and returns one number over samples and
    batch. The result can be used wherever an f is expected.

    `in_axes` has an entry for each of `args`: `None` (the default) if all examples share the
    argument, 0 if its arrays begin with the axes of the batch and each example gets its own entry.
    If f has an argument named `key`, each state gets a key of its own. Calling `expectation` or
    `value_and_grad` with `batched=False` does the same.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> f = lambda x, target, weight: weight * (x @ x - target) ** 2
    >>> q, targets = sg.Bernoulli(jnp.zeros((4, 3))), jnp.arange(4.0)
    >>> value, grads = sg.value_and_grad(sg.per_example(f, in_axes=(0, None)), q, sg.RLOO(2),
    ...                                  key=jax.random.key(0), args=(targets, 2.0))
    >>> grads.parameters.shape, grads.args[0].shape
    ((4, 3), (4,))
    """
    return PerExample(f, in_axes)


def _check_batch(dist, args, in_axes):
    for arg, axis in zip(args, in_axes, strict=True):
        for leaf in jax.tree.leaves(arg) if axis == 0 else ():
            if jnp.shape(leaf)[: len(dist.batch_shape)] != dist.batch_shape:
                raise ValueError(
                    f"in_axes says that an argument of f begins with the axes of the batch, "
                    f"{dist.batch_shape}, but it has shape {jnp.shape(leaf)}."
                )


class Callback:
    """See `callback`."""

    def __init__(self, f: Callable):
        self.f = f

    def __call__(self, x: Any, *args: Any) -> Any:
        return self.f(x, *args)

    def on(self, dist: Distribution) -> Callable:
        """f outside JAX, as a function of a key (not used), of states and of further arguments."""

        @jax.custom_jvp
        def call(x, args):
            struct = jax.ShapeDtypeStruct(x.shape[: x.ndim - dist.event_ndim], compute_dtype(x))
            shown = dist.view(x)
            ndims = [leaf.ndim for leaf in jax.tree.leaves(shown)]

            def host(shown, args):
                shown, args = jax.tree.map(np.asarray, (shown, args))
                # jax.vmap adds axes in front, of length 1 if an array was not mapped.
                added = jax.tree.leaves(shown)[0].ndim - ndims[0]
                leaves = jax.tree.leaves((shown, args))
                lead = np.broadcast_shapes(*(leaf.shape[:added] for leaf in leaves))
                cut = lambda leaf: leaf.reshape(leaf.shape[added:])
                if all(leaf.shape[:added] == (1,) * added for leaf in jax.tree.leaves(args)):
                    return self._values(shown, jax.tree.map(cut, args), (*lead, *struct.shape))
                whole = lambda leaf: np.broadcast_to(leaf, (*lead, *leaf.shape[added:]))
                shown, args = jax.tree.map(whole, (shown, args))
                rows = [
                    self._values(*jax.tree.map(lambda a, at=at: a[at], (shown, args)), struct.shape)
                    for at in np.ndindex(lead)
                ]
                return np.stack(rows).reshape(*lead, *struct.shape)

            host_typed = lambda *inputs: host(*inputs).astype(struct.dtype)
            return jax.pure_callback(host_typed, struct, shown, args, vmap_method="expand_dims")

        @partial(call.defjvp, symbolic_zeros=True)
        def _(primals, tangents):
            is_zero = lambda tangent: isinstance(tangent, SymbolicZero)
            if not all(map(is_zero, jax.tree.leaves(tangents, is_leaf=is_zero))):
                raise TypeError(NO_GRADIENT)
            fx = call(*primals)
            return fx, jnp.zeros_like(fx)

        return lambda _, x, *args: call(x, as_jax_arrays(args))

    def _values(self, shown, args, expected) -> np.ndarray:
        values = real(self.f(shown, *args))
        if values.shape != expected:
            raise ValueError(
                f"The NumPy f must return one number for each state, of shape {expected}, but "
                f"returned shape {values.shape}."
            )
        return values


class _OneByOne(Callback):
    """A NumPy f of one state, called for each state."""

    def __init__(self, f: Callable, batch_ndim: int, in_axes: tuple[int | None, ...]):
        super().__init__(f)
        self.batch_ndim = batch_ndim
        self.in_axes = in_axes

    def _values(self, shown, args, expected):
        values = np.empty(expected)
        for at in np.ndindex(expected):
            element = at[len(at) - self.batch_ndim :]
            of_element = lambda arg, element=element: jax.tree.map(lambda a: a[element], arg)
            own = [
                arg if axis is None else of_element(arg)
                for arg, axis in zip(args, self.in_axes, strict=True)
            ]
            state = jax.tree.map(lambda a, at=at: a[at], shown)
            values[at] = real(self.f(state, *own))
        return values


def real(values: Any) -> np.ndarray:
    """The values of a NumPy f as an array. Raises if they are complex."""
    values = np.asarray(values)
    if np.iscomplexobj(values):
        raise TypeError(
            f"The NumPy f must return real numbers, but returned {values.dtype}. Return np.real("
            "...), np.imag(...) or np.abs(...) of it, or estimate two expectations."
        )
    return values


def callback(f: Callable[..., np.ndarray]) -> Callback:
    """Wrap an `f(x, *args)` that runs in NumPy, outside JAX: a simulator, a table, another library.

    `f` takes NumPy arrays of states `[..., *event]` and returns values `[...]` (with
    `batched=False` or `per_example`, one state and one number). It must return the same values for
    the same inputs, because `jax.pure_callback` may call it more or less often than the program
    does. It has no gradient: estimators that need one, and derivatives by `args`, raise.

    >>> import jax, jax.numpy as jnp, numpy as np, steingrad as sg
    >>> f = sg.callback(lambda x: np.max(np.cumsum(x, axis=-1), axis=-1))
    >>> logits = jnp.zeros(3)
    >>> jax.grad(lambda logits: sg.expectation(
    ...     f, sg.Bernoulli(logits), sg.LocalExpectation(), key=jax.random.key(0)))(logits)
    Array([0.25, 0.25, 0.25], dtype=float32)
    """
    return Callback(f)


NO_GRADIENT = (
    "An f made by `callback` runs in NumPy: it has no gradient, neither by its states nor by its "
    "args. Estimators without a gradient of f are RLOO, Reinforce, LocalExpectation, "
    "Bronco(use_gradient=False), Rodeo(surrogate=ExactSurrogate()) and Lariat(gradients=False). "
    "To differentiate by args, write f with jax.numpy."
)


def has_gradient(f: Callable) -> bool:
    """Whether f can be differentiated."""
    return has_gradient(f.f) if isinstance(f, PerExample) else not isinstance(f, Callback)


def takes_key(f: Callable) -> bool:
    """Whether `f` has an argument named `key` that is not bound yet."""
    if isinstance(f, PerExample):
        return takes_key(f.f)
    try:
        if "key" not in inspect.signature(f).parameters:
            return False
    except (TypeError, ValueError):
        return False
    # The signature may be that of a wrapped function (`jax.jit`, `functools.wraps`), and a key that
    # a partial has bound is listed with a default. So each layer of wrapping is inspected.
    layer: Any = f
    while layer is not None:
        if isinstance(layer, functools.partial):
            if "key" in layer.keywords:
                return False
            layer = layer.func
            continue
        inner = getattr(layer, "__wrapped__", None)
        if inner is not None and inspect.isfunction(layer):
            own = inspect.signature(layer, follow_wrapped=False).parameters
            if "key" in own:
                return True
            if not any(p.kind is p.VAR_KEYWORD for p in own.values()):
                return False
        layer = inner
    return True


def needs_key(f: Callable) -> bool:
    """Whether `f` cannot be called without a key."""
    if not takes_key(f):
        return False
    inner: Any = f.f if isinstance(f, PerExample) else f
    return inspect.signature(inner).parameters["key"].default is inspect.Parameter.empty


def as_jax_arrays(tree: Any) -> Any:
    """The same tree with its NumPy arrays converted to JAX arrays, which are differentiated."""
    numpy = (np.ndarray, np.generic)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, numpy) else leaf, tree)


class Values(eqx.Module):
    """f at the samples, and the backward pass through f, which is not done yet."""

    fx: Float[Array, "samples ..."]
    """f at the samples, of shape `[K, *batch]`."""
    pull_back: Any
    """Takes one number for each value of f, and returns the gradients of their weighted sum."""
    needs_gradient: bool = eqx.field(static=True)
    """Whether the backward pass goes to the samples."""
    moves: bool = eqx.field(static=True)
    """Whether f has arguments with respect to which it is differentiated."""

    def gradients(
        self, cotangents: Float[Array, "samples ..."], *, two_passes: bool = False
    ) -> tuple[Float[Array, "samples ..."] | None, Any]:
        r"""Returns $\nabla f$ at the samples (`None` if it is not needed), and the gradient of
        $\sum_k c_k f(x_k)$ with respect to the arguments, where $c_k$ are the `cotangents`.

        One backward pass gives both: f acts on each state alone, so that the gradient with respect
        to $x_k$, divided by $c_k$, is $\nabla f(x_k)$. If $c_k = 0$, then $\nabla f(x_k)$ is not
        known, and the result has 0 there. `two_passes` finds it nevertheless.

        The cotangents are those of the whole loss, because f may have an expectation inside, and
        the control variates of that expectation are not linear in its cotangent.
        """
        if not self.needs_gradient:
            (of_arguments,) = self.pull_back(cotangents)
            return None, of_arguments
        if self.moves and not two_passes:
            dx, of_arguments = self.pull_back(cotangents)
            factor = expand(cotangents, dx.ndim)
            known = factor != 0
            dfx = dx.astype(factor.dtype) / jnp.where(known, factor, 1)
            return jnp.where(known, dfx, 0), of_arguments
        dfx, of_arguments = self.pull_back(jnp.ones_like(self.fx))
        if self.moves:
            _, of_arguments = self.pull_back(cotangents)
        return dfx.astype(self.fx.dtype), of_arguments


def evaluate(
    objective: Callable[..., Any],
    x: Float[Array, "samples ..."],
    args: tuple,
    *,
    needs_gradient: bool = False,
    differentiable: bool = True,
) -> tuple[Values, Any]:
    """Returns f at the samples, with its backward pass, and the aux of f.

    `objective` returns a pair, values and aux. It is differentiated with respect to the
    floating-point arrays in `args`, unless it is not `differentiable`.
    """
    floating = lambda leaf: differentiable and eqx.is_inexact_array(leaf)
    dynamic, static = eqx.partition(args, floating)
    at = lambda x, dynamic: objective(x, *eqx.combine(dynamic, static))
    vjp: Any = partial(jax.vjp, has_aux=True)
    if needs_gradient:
        fx, pull_back, aux = vjp(at, x, dynamic)
    else:
        fx, pull_back, aux = vjp(lambda dynamic: at(x, dynamic), dynamic)
    return Values(fx, pull_back, needs_gradient, bool(jax.tree.leaves(dynamic))), aux
