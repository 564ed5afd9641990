"""The compiled step: batches, adaptation, the measured variance."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from problems import largest_difference
from small_runs import PLAIN
from steingrad_lab.training import Task
from steingrad_lab.training.step import DECAY, Batches, grad_variance


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
