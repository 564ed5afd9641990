"""Optimisers for control variates."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from ..arrays import brief


def adam(learning_rate: Any, b1: float = 0.9) -> optax.GradientTransformation:
    """Adam for gradients of any size. Gradients of control variates grow with the square of f and
    shrink with the square of the batch size, so ε is relative to the largest gradient. (Without any
    ε the rounding errors of a zero gradient would become full steps.)"""
    inner: Any = optax.scale_by_adam(b1=b1)

    def update(updates: Any, state: Any, params: Any = None):
        _, state = inner.update(updates, state, params)
        mean, square = (
            optax.tree.bias_correction(moment, decay, state.count)
            for moment, decay in ((state.mu, b1), (state.nu, 0.999))
        )
        root = jax.tree.map(jnp.sqrt, square)
        largest = [jnp.max(leaf).astype(float) for leaf in jax.tree.leaves(root) if leaf.size]
        floor = 1e-8 * functools.reduce(jnp.maximum, largest, jnp.zeros((), float))
        step = lambda m, r: jnp.where(r > 0, m / (r + floor.astype(r.dtype)), 0)
        return jax.tree.map(step, mean, root), state

    scale = optax.GradientTransformation(inner.init, update)
    return optax.chain(scale, optax.scale_by_learning_rate(learning_rate))


def slow_adam(learning_rate: Any) -> optax.GradientTransformation:
    """Adam with the long memory that the authors of RELAX use for control variates."""
    return adam(learning_rate, b1=0.999)


def average_step(old: Any, new: Any, decay: float) -> Any:
    """Moving averages minus their new values, which plain gradient descent subtracts."""
    return jax.tree.map(lambda o, n: (1 - decay) * (o - n), old, new)


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
