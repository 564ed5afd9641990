"""Rewards for each step: exactly unbiased, without noise from earlier rewards."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from marks import slow
from problems import largest_difference, normal
from sequences import (
    LENGTH,
    VOCABULARY,
    first,
    mean_over_tuples,
    parameters,
    policy,
    step,
    without_repeats,
)

MODULE = sys.modules["steingrad.policy_gradient"]


def rewards(x):
    """The reward of a step is a random number for its token and the token before, and grows with
    the number of tokens 0 so far."""
    tables = normal(7, (LENGTH, VOCABULARY, VOCABULARY))
    before = jnp.concatenate([jnp.zeros_like(x[..., :1, :]), x[..., :-1, :]], axis=-2)
    own = jnp.einsum("...ta,tab,...tb->...t", before, tables, x) + x @ normal(8, VOCABULARY)
    return own * (1 + jnp.cumsum(x[..., 0], axis=-1))


def masked(x):
    return rewards(x) * policy(end=1).mask(x)


def at(x, reward, end=None, step=step):
    """The estimate with these samples."""

    class Given(sg.Autoregressive):
        def sample(self, key, shape=()):
            assert shape == x.shape[:1]
            return x

    settings = {"length": LENGTH, "vocabulary": VOCABULARY, "end": end}
    dist = Given(step, parameters(), first, **settings)
    return sg.policy_gradient(reward, dist, len(x), key=jax.random.key(0))[1].parameters


def own_too(r):
    """With a wrong baseline, which includes the sample itself."""
    return r - jnp.mean(r, axis=0)


def only_after(r):
    """Wrong returns, which leave out the reward of the step itself."""
    return jnp.cumsum(r[..., ::-1], axis=-1)[..., ::-1] - r


WRONG = {"leave_one_out": own_too, "returns_to_go": only_after}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("reward", "kind"),
    [
        (rewards, {}),
        *slow(
            (masked, {"end": 1}),
            (rewards, {"end": 2, "step": without_repeats}),
            (rewards, {"end": 1}),
        ),
    ],
)
def test_unbiased(reward, kind, monkeypatch):
    """The sum over all pairs of samples is exact. Wrong versions, and rewards that depend on later
    tokens, are detected."""

    def estimates(x):
        out = {"right": at(x, reward, **kind)}
        for name, wrong in WRONG.items():
            with monkeypatch.context() as patch:
                patch.setattr(MODULE, name, wrong)
                out[name] = at(x, reward, **kind)
        return out | {"ahead": at(x, lambda x: reward(x)[..., ::-1], **kind)}

    dist = policy(**kind)
    means = mean_over_tuples(estimates, dist)
    exact = jax.jit(lambda p: total_gradient(reward, dist.with_parameters(p)))(dist.parameters)
    bias = {name: largest_difference(mean, exact) for name, mean in means.items()}
    assert bias.pop("right") < 1e-10
    assert len(bias) == 3
    assert min(bias.values()) > 1e-3


def total_gradient(reward, dist):
    return sg.exact_gradient(lambda x: jnp.sum(reward(x), axis=-1), dist)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_less_variance_than_with_the_sum():
    """Compares the exact variances, which are equal if there is a reward at the end only."""
    dist = policy(end=1)
    total = lambda x: jnp.sum(masked(x), axis=-1)
    last = lambda x: jnp.zeros(x.shape[:-1]).at[..., -1].set(total(x))
    squared = lambda g: sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(g))

    def traces(x):
        rloo = sg.RLOO(2).estimate(None, dist, x, total(x))
        ours, at_the_end = at(x, masked, end=1), at(x, last, end=1)
        difference = jax.tree.map(jnp.subtract, rloo, at_the_end)
        return squared(rloo), squared(ours), squared(difference)

    rloo, ours, difference = mean_over_tuples(traces, dist)
    assert float(difference) < 1e-20
    mean = squared(total_gradient(masked, dist))
    assert 0 < ours - mean < 0.9 * (rloo - mean)


def test_batch_arguments_and_keys():
    """It works with a batch of conditions, further arguments and a random reward, under jit."""
    weights = jax.tree.map(lambda p: p.astype(jnp.float32), parameters())

    def reward(x, scale, key):
        noise = jax.random.normal(key, x.shape[:-1])
        return scale[:, None] * x[..., 0] + 0 * noise

    @jax.jit
    def estimate(weights, conditions, scale, key):
        dist = sg.Autoregressive(
            step,
            weights,
            lambda weights, c: (weights["first"] + c, jnp.zeros((), jnp.int32)),
            length=LENGTH,
            vocabulary=VOCABULARY,
            conditions=conditions,
        )
        value, grads = sg.policy_gradient(reward, dist, 4, key=key, args=(scale,))
        return value, grads, dist.sample(jax.random.split(key, 3)[0], (4,))

    conditions = normal(5, (3, 2)).astype(jnp.float32)
    scale = jnp.array([1.0, 2.0, 0.0])
    value, grads, x = estimate(weights, conditions, scale, jax.random.key(0))
    counts = np.asarray(x[..., 0].sum(-1))
    np.testing.assert_allclose(value, (counts * np.asarray(scale)).mean(), rtol=1e-6)
    np.testing.assert_allclose(grads.args[0], counts.sum(0) / 12, rtol=1e-6)
    assert jax.tree.map(jnp.shape, grads.parameters) == jax.tree.map(jnp.shape, weights)
    assert grads.cv is None


def test_inputs_are_checked():
    dist, key = policy(), jax.random.key(0)

    def estimate(dist, reward=rewards, num_samples=2):
        call = lambda key: sg.policy_gradient(reward, dist, num_samples, key=key)
        return jax.eval_shape(call, key)

    with pytest.raises(TypeError, match=r"takes an Autoregressive, .* but was given Bernoulli"):
        estimate(sg.Bernoulli(jnp.zeros(3)))
    with pytest.raises(ValueError, match="whole num_samples of 2 or more"):
        estimate(dist, num_samples=1)
    total = lambda x: jnp.sum(x[..., 0], axis=-1)
    with pytest.raises(ValueError, match=r"number for each token, of shape \(2, 3\), .* \(2,\)"):
        estimate(dist, total)
    with pytest.raises(TypeError, match="must return real numbers, but returned complex64"):
        estimate(dist, lambda x: x[..., 0].astype(jnp.complex64))
    value = lambda p: sg.policy_gradient(rewards, dist.with_parameters(p), 2, key=key)[0]
    with pytest.raises(TypeError, match="differentiated by the parameters of its distribution"):
        jax.eval_shape(jax.grad(value), dist.parameters)
