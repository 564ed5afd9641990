"""Optimisers for control variates."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from ..arrays import brief

# One step can multiply Adam's scale of gradients by at most √(1 − β₂) LARGEST, which is 3. A step
# whose gradient is larger, because f had an accident, is scaled down.
LARGEST = 100.0
# If the gradients of the last ninety steps or so are all smaller than the scale by this factor, f
# has become smaller, and Adam begins anew.
SMALLER, RECENT_DECAY = 1e2, 0.9


class AdamState(NamedTuple):
    """The moments of Adam."""

    count: Int[Array, ""]
    mean: Any
    """Moving averages of the gradients."""
    root: Any
    """Square roots of the moving averages of the squared gradients. The squares themselves leave
    the range of float32 if f is very small or very large."""
    recent: Float[Array, ""]
    """The largest gradient of the last steps."""


def adam(learning_rate: Any, b1: float = 0.9) -> optax.GradientTransformation:
    """Adam for gradients of any size, which recovers from steps with absurd ones.

    Gradients of control variates grow with the square of f and shrink with the square of the batch
    size, so ε is relative to the largest gradient. (Without any ε the rounding errors of a zero
    gradient would become full steps.) A gradient that is not finite changes nothing.
    """
    b2 = 0.999

    def init(params: Any) -> AdamState:
        zeros = lambda: jax.tree.map(jnp.zeros_like, params)
        return AdamState(jnp.zeros((), jnp.int32), zeros(), zeros(), jnp.zeros(()))

    def update(updates: Any, state: Any, params: Any = None):
        now = largest(updates)
        finite = jnp.isfinite(now)
        scale = largest(state.root) / jnp.sqrt(1 - b2 ** jnp.maximum(state.count, 1))
        anew = (state.recent * SMALLER < scale) & (now > 0)
        count, mean, root = jax.tree.map(
            lambda leaf: jnp.where(anew, jnp.zeros_like(leaf), leaf), state[:3]
        )
        too_large = (now > LARGEST * scale) & (scale > 0)
        shrink = jnp.where(too_large & ~anew, LARGEST * scale / now, 1)
        gradient = jax.tree.map(lambda g: g * shrink.astype(g.dtype), updates)
        count = count + 1
        mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, mean, gradient)
        root = jax.tree.map(
            lambda r, g: jnp.hypot(math.sqrt(b2) * r, math.sqrt(1 - b2) * g), root, gradient
        )
        decayed = jnp.where(now > 0, RECENT_DECAY, 1) * state.recent
        recent = jnp.maximum(jnp.where(anew, 0, decayed), shrink * now)
        floor = 1e-8 * largest(root) / jnp.sqrt(1 - b2**count)

        def step(m, r):
            r = r / jnp.sqrt(1 - b2**count).astype(r.dtype) + floor.astype(r.dtype)
            return jnp.where(r > 0, m / (1 - b1**count).astype(m.dtype) / jnp.where(r > 0, r, 1), 0)

        is_network = lambda node: isinstance(node, dict) and "b_in" in node
        steps = jax.tree.map(step, mean, root)
        steps = jax.tree.map(with_small_biases, steps, root, is_leaf=is_network)
        following = steps, AdamState(count, mean, root, recent)
        unchanged = jax.tree.map(jnp.zeros_like, updates), state
        return jax.tree.map(lambda new, old: jnp.where(finite, new, old), following, unchanged)

    scale = optax.GradientTransformation(init, update)
    return optax.chain(scale, optax.scale_by_learning_rate(learning_rate))


def with_small_biases(steps: Any, root: Any) -> Any:
    """The steps of a network, with those of the biases in units of the network's inputs and
    outputs, if these are below 1.

    Weights are pure numbers, but biases have the unit of f. The gradients tell this unit: those of
    the weights are f times those of the biases. So an f of 10⁻⁵ does not get biases of 10⁻³.
    """
    if not isinstance(steps, dict):
        return steps
    weights, biases = (
        largest([leaf for name, leaf in root.items() if name.startswith(kind)]) for kind in "wb"
    )
    unit = jnp.where(weights < biases, weights / jnp.where(biases > 0, biases, 1), 1)
    of_biases = lambda name, leaf: leaf * unit.astype(leaf.dtype) if name.startswith("b") else leaf
    return {name: of_biases(name, leaf) for name, leaf in steps.items()}


def largest(tree: Any) -> Float[Array, ""]:
    """The largest absolute value of all numbers in a tree; NaN if one of them is."""
    leaves = [jnp.max(jnp.abs(leaf)).astype(float) for leaf in jax.tree.leaves(tree) if leaf.size]
    return functools.reduce(jnp.maximum, leaves, jnp.zeros((), float))


def slow_adam(learning_rate: Any) -> optax.GradientTransformation:
    """Adam with the long memory that the authors of RELAX use for control variates."""
    return adam(learning_rate, b1=0.999)


def average_or_adam(learning_rate: Any, averages: Callable) -> optax.GradientTransformation:
    """Plain gradient descent for the `averages` among control variates, Adam for the others."""

    def labels(cv):
        try:
            averages(cv)
        except AttributeError as error:
            raise TypeError(
                "The optimiser of these control variates takes plain steps for moving averages and "
                "Adam's steps for learned parameters. It has to tell them apart by the structure "
                f"that `estimator.init` returns, but was given {brief(cv)}. Do not put a "
                "transformation around it that changes the structure, such as optax.flatten: use "
                "cv_optimizer(estimator) itself."
            ) from error
        return eqx.tree_at(averages, jax.tree.map(lambda _: "learned", cv), "average")

    return optax.partition({"average": optax.sgd(1.0), "learned": adam(learning_rate)}, labels)
