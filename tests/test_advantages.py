"""Advantages: values by hand, and unbiasedness by the sum over all tuples of samples."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from problems import normal

STEPS, END = 3, 2  # two tokens and the end token; at most three tokens


def sequences():
    """All sequences of the policy, which stops at the end token or after three tokens."""
    tokens = range(END + 1)
    out = {
        tuple(s[: s.index(END) + 1]) if END in s else s
        for s in itertools.product(tokens, repeat=STEPS)
    }
    return sorted(out)


def log_prob(parameters, sequence):
    """The log-probability, where each token depends on the token before it and on its position."""
    total, before = 0.0, END
    for step, token in enumerate(sequence):
        total += jax.nn.log_softmax(parameters[step, before])[token]
        before = token
    return total


def including_its_own(rewards, lengths=None):
    weights = jnp.ones_like(rewards) if lengths is None else lengths
    return rewards - jnp.sum(weights * rewards) / jnp.sum(weights)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("num_samples", [2, 3])
@pytest.mark.parametrize("kind", ["leave_one_out", "length_weighted"])
def test_unbiased(kind, num_samples):
    parameters, every = normal(0, (STEPS, END + 1, END + 1)), sequences()
    lengths = jnp.asarray([float(len(s)) for s in every])
    assert set(lengths.tolist()) == {1.0, 2.0, 3.0}
    rewards = normal(1, len(every)) + lengths
    probs = jnp.exp(jnp.stack([log_prob(parameters, s) for s in every]))
    np.testing.assert_allclose(jnp.sum(probs), 1)
    scores = jnp.stack([jax.grad(log_prob)(parameters, s) for s in every])
    exact = jnp.einsum("s,s,s...->...", probs, rewards, scores)

    def mean(advantage):
        """The exact mean over all tuples of samples."""
        tuples = jnp.asarray(list(itertools.product(range(len(every)), repeat=num_samples)))
        weighted = [lengths[tuples]] if kind == "length_weighted" else []
        a = jax.vmap(advantage)(rewards[tuples], *weighted)
        # Σ over tuples of their probability and of A_k, for each sequence that sample k may be.
        chance = jnp.prod(probs[tuples], axis=1)[:, None] * a / num_samples
        of_sequence = jnp.zeros(len(every)).at[tuples].add(chance)
        return jnp.einsum("s,s...->...", of_sequence, scores)

    ours = mean(lambda r, *l: sg.advantages(r, kind=kind, lengths=l[0] if l else None))
    np.testing.assert_allclose(ours, exact, atol=1e-10)
    assert np.abs(mean(including_its_own) - exact).max() > 1e-3


def test_groups():
    """Groups may be in any order, and under jit. Each gives the same result as on its own."""
    rewards = np.random.default_rng(0).normal(size=12).astype(np.float32)
    groups = np.random.default_rng(1).permutation(np.repeat([5, -3, 10**6], 4))
    lengths = np.arange(1, 13)
    for kind, extra in (("leave_one_out", {}), ("length_weighted", {"lengths": lengths})):
        ours = jax.jit(lambda r, g, k=kind, e=extra: sg.advantages(r, g, k, **e))(rewards, groups)
        for k in range(12):
            others = (groups == groups[k]) & (np.arange(12) != k)
            baseline = np.average(rewards[others], weights=lengths[others] if extra else None)
            np.testing.assert_allclose(ours[k], rewards[k] - baseline, atol=1e-5)


def test_groups_of_64_bits():
    ours = sg.advantages(np.array([1.0, 2.0, 3.0, 5.0]), np.array([2**32, 0, 2**32, 0]))
    np.testing.assert_allclose(ours, [-2, -3, 2, 3])


def test_an_infinite_reward_is_its_own_groups_affair():
    ours = sg.advantages(np.array([1.0, 2.0, np.inf, 5.0]), np.array([1, 1, 0, 0]))
    np.testing.assert_allclose(ours[:2], [-1, 1])
    assert not np.isfinite(ours[2:]).any()


def test_groups_of_different_scale():
    ours = sg.advantages([1e8, 1e8, 1.001, 0.999], groups=[0, 0, 1, 1])
    np.testing.assert_allclose(ours, [0, 0, 0.002, -0.002], rtol=1e-4)
    np.testing.assert_array_equal(sg.advantages(np.array([0.0, 8.0, 16.0]) + 1e8), [-12, 0, 12])


def test_one_length_may_be_much_larger_than_the_others():
    ours = sg.advantages([1.0, 3.0, 5.0], kind="length_weighted", lengths=[1e9, 1, 1])
    np.testing.assert_allclose(ours, [-3, 2, 4], rtol=1e-6)


def test_a_group_of_a_million():
    rewards = np.random.default_rng(0).uniform(size=10**6).astype(np.float32)
    exact = (rewards - np.mean(rewards, dtype=np.float64)) * (1 + 1 / (10**6 - 1))
    np.testing.assert_allclose(sg.advantages(rewards), exact, atol=1e-6)


def test_rewards_are_constants():
    grad = jax.grad(lambda r: jnp.sum(sg.advantages(r) ** 2))(jnp.arange(3.0))
    np.testing.assert_array_equal(grad, 0)
    assert sg.advantages(jnp.zeros(0)).shape == (0,)
    np.testing.assert_allclose(sg.advantages(jnp.array([1e4, 1e4 + 1])), [-1, 1])


def test_inputs_are_checked():
    r = jnp.zeros(4)
    with pytest.raises(ValueError, match=r"rewards of shape \[n\].*given shape \(2, 2\)"):
        sg.advantages(r.reshape(2, 2))
    with pytest.raises(ValueError, match="kind='leave_one_out' or 'length_weighted'"):
        sg.advantages(r, kind="grpo")
    with pytest.raises(ValueError, match="takes lengths with kind='length_weighted', and only"):
        sg.advantages(r, kind="length_weighted")
    with pytest.raises(ValueError, match="and only with it"):
        sg.advantages(r, lengths=r)
    with pytest.raises(ValueError, match=r"groups of the shape of rewards, \(4,\), but .*\(3,\)"):
        sg.advantages(r, jnp.zeros(3, int))
    with pytest.raises(ValueError, match=r"lengths of the shape of rewards"):
        sg.advantages(r, kind="length_weighted", lengths=jnp.ones(3))
    with pytest.raises(TypeError, match="whole numbers, but was given float32"):
        sg.advantages(r, jnp.zeros(4))
    with pytest.raises(TypeError, match="real rewards, but was given complex64"):
        sg.advantages(r.astype(jnp.complex64))
