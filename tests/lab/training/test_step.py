"""The compiled step: batches, adaptation, the measured variance."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from marks import slow
from problems import largest_difference
from small_runs import PLAIN
from steingrad_lab.training import Task
from steingrad_lab.training.evaluation import report_lines
from steingrad_lab.training.step import DECAY, Batches, State, add, average, grad_variance


@pytest.mark.slow
def test_adapt_every():
    """Control variates change only at every third step, both in a loop and in single steps."""
    task = Task.load(dataclasses.replace(PLAIN, estimator="double_cv", adapt_every=3))
    images, seed = jnp.asarray(task.dataset.train), jnp.asarray(1, jnp.int32)
    number = lambda n: jnp.asarray(n, jnp.int32)
    loop, single = (
        jax.jit(task.trainer._replace(max_steps=most).run) for most in (task.trainer.max_steps, 1)
    )
    states = [task.initial_state()]
    for step in range(5):
        states.append(single(states[-1], seed, images, number(step), number(step + 1)))
    moved = [
        not bool(jnp.array_equal(before.cv[0].alpha, after.cv[0].alpha))
        for before, after in itertools.pairwise(states)
    ]
    assert moved == [True, False, False, True, False]
    at_once = loop(states[0], seed, images, number(0), number(5))
    assert largest_difference(at_once, states[-1]) < 1e-5


def test_grad_variance_is_the_definition():
    """Compares with moving averages that the test computes from the same gradients."""
    task = Task.load(dataclasses.replace(PLAIN, seeds=(3,)))
    state, seed = task.initial_state(), jnp.asarray(3, jnp.int32)
    images = jnp.asarray(task.dataset.train)
    step_fn = jax.jit(task.trainer.run)
    mean = square = 0.0
    previous = ravel_pytree(state.grad_mean)[0]
    for step in range(5):
        state = step_fn(state, seed, images, jnp.asarray(step, jnp.int32),
                        jnp.asarray(step + 1, jnp.int32))  # fmt: skip
        now = ravel_pytree(state.grad_mean)[0]
        gradient = (now - DECAY * previous) / (1 - DECAY)
        mean = DECAY * mean + (1 - DECAY) * np.asarray(gradient, np.float64)
        square = DECAY * square + (1 - DECAY) * np.asarray(gradient, np.float64) ** 2
        previous = now
    correction = 1 - DECAY**5
    by_hand = np.mean(square / correction - (mean / correction) ** 2)
    np.testing.assert_allclose(grad_variance(state, 5), by_hand, rtol=1e-3)


@pytest.mark.parametrize("seeds", [(3,), *slow(((3, 4),))], ids=str)
def test_the_objective_is_exact_after_a_million_steps(seeds):
    """Compares 200 steps after a million others with a sum in float64."""
    task = Task.load(dataclasses.replace(PLAIN, seeds=seeds))
    run, begun, given = task.trainer.run, task.initial_state(), jnp.asarray(seeds, jnp.int32)
    if len(seeds) == 1:
        given = given[0]
    else:
        run = jax.vmap(run, in_axes=(0, 0, None, None, None))
    compiled, images = jax.jit(run), jnp.asarray(task.dataset.train)
    steps = lambda state, start, stop: compiled(
        state, given, images, jnp.asarray(start, jnp.int32), jnp.asarray(stop, jnp.int32)
    )
    zeros = 0 * begun.elbo_sum
    each, single = [], begun
    for step in range(200):
        single = steps(single._replace(elbo_sum=zeros, elbo_rest=zeros), step, step + 1)
        each.append(np.asarray(single.elbo_sum, np.float64))
    # A sum that a million steps could have arrived at.
    before = zeros - 43_590_124
    late = begun._replace(elbo_sum=before, elbo_steps=begun.elbo_steps + 1_000_000)
    expected = (np.asarray(before, np.float64) + np.sum(each, axis=0)) / 1_000_200
    lines = report_lines(task, steps(late, 0, 200), 1_000_200, 0, 1.0)
    found = [line["objective"] for line in lines]
    np.testing.assert_allclose(found, np.ravel(expected), rtol=1e-10)


@pytest.mark.parametrize("scale", [1.0, -43.59, 1e30])
def test_sums_of_a_million_numbers(scale):
    x = np.random.default_rng(0).normal(1.0, 0.3, 1_000_000).astype(np.float32) * np.float32(scale)
    both = jax.jit(
        lambda x: jax.lax.scan(lambda sums, x: (add(*sums, x), None), (0 * x[0],) * 2, x)[0]
    )
    high, low = (float(part) for part in both(jnp.asarray(x)))
    exact = math.fsum(x.tolist())
    assert abs(high + low - exact) < 1e-10 * abs(exact)
    assert abs(float(np.cumsum(x)[-1]) - exact) > 1e-8 * abs(exact)  # the test can fail


@pytest.mark.parametrize("steps", [1, 3, 1_000_000])
def test_the_variance_of_gradients_with_a_large_mean(steps):
    """Compares with float64. The gradient's mean is ten times its standard deviation."""
    gradients = np.random.default_rng(1).normal(10.0, 1.0, (steps, 4)).astype(np.float32)

    @jax.jit
    def averages(gradients):
        one = lambda both, gradient: (average(both, (gradient, gradient**2)), None)
        return jax.lax.scan(one, (jnp.zeros(4), jnp.zeros(4)), gradients)[0]

    weights = DECAY ** np.arange(steps - 1.0, -1.0, -1.0)
    weights /= np.sum(weights)
    mean, square = (weights @ gradients.astype(np.float64) ** power for power in (1, 2))
    grad_mean, grad_square = averages(jnp.asarray(gradients))
    unused = dict.fromkeys(State._fields)
    state = State(**{**unused, "grad_mean": grad_mean, "grad_square": grad_square})  # pyright: ignore
    assert abs(float(grad_variance(state, steps)) - np.mean(square - mean**2)) < 2e-4


def test_every_image_is_seen_once_an_epoch():
    n, size = 57, 10
    seed = jnp.asarray(1, jnp.int32)
    for start in (0, 3, 7):
        batches = Batches.between(seed, jnp.asarray(start, jnp.int32), 12, n, size)
        whole = Batches.between(seed, jnp.asarray(0, jnp.int32), 30, n, size)
        for step in range(start, start + 12):
            step = jnp.asarray(step, jnp.int32)
            np.testing.assert_array_equal(batches.at(step), whole.at(step))
    epoch = np.concatenate([whole.at(jnp.asarray(s, jnp.int32)) for s in range(5)])
    assert len(set(epoch.tolist())) == 50
    assert epoch.max() < n
    assert not np.array_equal(whole.at(jnp.asarray(0)), whole.at(jnp.asarray(5)))
