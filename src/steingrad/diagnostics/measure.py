"""Run one estimator many times: the moments of its estimates, and the cost of one."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..arrays import compute_dtype
from ..cv_optimizer import cv_optimizer
from ..distributions import Distribution
from ..estimators import Estimator

CHUNK_BYTES = 2**26
TIMED_CALLS, TIMED_SECONDS = 10, 0.1  # at least
GROUPS = 20  # of draws: their means give the errors of nonlinear functions of the mean


def check_not_empty(what: str, dist: Distribution) -> None:
    if 0 in dist.batch_shape:
        raise ValueError(
            f"{what} has nothing to measure in an empty batch: the batch_shape is "
            f"{dist.batch_shape}. Pass a distribution with at least one element."
        )


class Problem(NamedTuple):
    """The problem on which estimators are measured, and the settings of their adaptation."""

    f: Callable
    dist: Distribution
    settings: dict  # args, context and relaxation
    adapt_steps: int
    learning_rate: float

    def estimate(self, estimator: Estimator) -> Callable:
        return eqx.Partial(estimator.value_and_grad, self.f, self.dist, **self.settings)

    def refusal(self, estimator: Estimator, key: PRNGKeyArray) -> Exception | None:
        """The error that the estimator raises on this problem, if any. It is traced, not run."""
        try:
            cv = eqx.filter_eval_shape(estimator.init, key, self.dist)
            eqx.filter_eval_shape(self.estimate(estimator), cv, key=key)
        except (ValueError, TypeError) as error:
            return error
        return None

    def adapted(self, estimator: Estimator, key: PRNGKeyArray) -> Callable:
        """One estimate as a function of its key, with adapted control variates."""
        init_key, adapt_key = jax.random.split(key)
        estimate, cv = self.estimate(estimator), estimator.init(init_key, self.dist)
        if self.adapt_steps and jax.tree.leaves(cv):
            optimizer = cv_optimizer(estimator, self.learning_rate)
            cv = adapt(estimate, cv, optimizer, adapt_key, self.adapt_steps)
        return eqx.Partial(estimate, cv)


@eqx.filter_jit
def adapt(estimate: Callable, cv: Any, optimizer: Any, key: PRNGKeyArray, steps: int) -> Any:
    """The control variates after `steps` steps."""

    def step(carry, key):
        cv, state = carry
        _, grads = estimate(cv, key=key)
        updates, state = optimizer.update(grads.cv, state, cv)
        return (eqx.apply_updates(cv, updates), state), None

    (cv, _), _ = jax.lax.scan(step, (cv, optimizer.init(cv)), jax.random.split(key, steps))
    return cv


def cost(estimate: Callable, key: PRNGKeyArray) -> tuple[float, int]:
    """Returns the seconds and the bytes that one estimate takes."""
    dynamic, static = eqx.partition(estimate, eqx.is_array)
    call = jax.jit(lambda dynamic, key: eqx.combine(dynamic, static)(key=key))
    call = call.lower(dynamic, key).compile()
    output, seconds = jax.block_until_ready(call(dynamic, key)), []
    while len(seconds) < TIMED_CALLS or sum(seconds) < TIMED_SECONDS:
        start = time.perf_counter()
        jax.block_until_ready(call(dynamic, key))
        seconds.append(time.perf_counter() - start)
    # The compiler knows the memory of f and of the control variates, but may not report it.
    known = getattr(call.memory_analysis(), "temp_size_in_bytes", 0)
    least = 16 * sum(leaf.nbytes for leaf in jax.tree.leaves(output))
    return float(np.median(seconds)), max(known, least)


class Moments(NamedTuple):
    mean: Any  # of the flattened gradient
    variance: Any
    largest: Any  # deviation from the mean
    value: Any  # the root mean square of the draws' mean f
    groups: Any  # the means of GROUPS runs of draws
    cosine: Any  # with `direction`, averaged over the draws


@eqx.filter_jit
def moments(
    estimate: Callable, key: PRNGKeyArray, draws: int, chunk: int, direction: Any = None
) -> Moments:
    """The moments of `draws` estimates. Each chunk is centred at its own mean before squaring, so
    that float32 keeps a small variance beside a large mean (Chan, Golub, LeVeque 1979)."""

    def draw(index):
        value, grads = estimate(key=jax.random.fold_in(key, index))
        g = flatten((grads.parameters, value))
        return g, jnp.zeros((), g.dtype) if direction is None else cosine(g[:-1], direction)

    def step(carry, start):
        count, mean, squares, largest, sums, counts, along = carry
        index = start + jnp.arange(chunk)
        g, cosines = jax.vmap(draw)(index)
        inside = (index < draws).astype(g.dtype)[:, None]  # the last chunk may be shorter
        added = jnp.sum(inside)
        here = g[0] + jnp.sum(inside * (g - g[0]), axis=0) / added  # exact if all are the same
        deviation = inside * (g - here)
        total, change = count + added, here - mean
        squares += jnp.sum(deviation**2, axis=0) + change**2 * (count * added / total)
        group = start // -(-draws // GROUPS)
        sums = sums.at[group].add(added * here[:-1])
        counts = counts.at[group].add(added)
        along += jnp.sum(inside[:, 0] * cosines)
        mean += change * (added / total)
        # Relative to the mean so far, because a chunk may be a single draw, its own mean.
        largest = jnp.maximum(largest, jnp.max(jnp.abs(inside * (g - mean))[:, :-1], axis=0))
        return (total, mean, squares, largest, sums, counts, along), None

    struct, _ = jax.eval_shape(draw, 0)
    zeros = lambda *shape: jnp.zeros(shape, struct.dtype)
    n = struct.shape[0]
    sums = zeros(n - 1), zeros(GROUPS, n - 1), zeros(GROUPS), zeros()
    start = (zeros(), zeros(n), zeros(n), *sums)
    end, _ = jax.lax.scan(step, start, jnp.arange(0, draws, chunk))
    _, mean, squares, largest, sums, counts, along = end
    variance = squares / (draws - 1)
    value = jnp.sqrt(mean[-1] ** 2 + variance[-1])
    groups = sums / counts[:, None]  # NaN for a group without draws
    return Moments(mean[:-1], variance[:-1], largest, value, groups, along / draws)


def cosine(a: Float[Array, "n"], b: Float[Array, "n"]) -> Float[Array, ""]:
    """The cosine of the angle between two vectors; 0 if one of them is 0."""
    norm = jnp.sqrt(jnp.sum(a**2) * jnp.sum(b**2))
    return jnp.where(norm > 0, jnp.sum(a * b) / jnp.where(norm > 0, norm, 1), 0)


def flatten(tree: Any) -> Float[Array, "n"]:
    leaves = jax.tree.leaves(tree)
    dtype = compute_dtype(*leaves)
    return jnp.concatenate([leaf.astype(dtype).ravel() for leaf in leaves])
