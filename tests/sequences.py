"""A small recurrent policy with few sequences, for the exact proofs."""

import itertools

import jax
import jax.numpy as jnp

import steingrad as sg
from problems import normal

LENGTH, VOCABULARY, HIDDEN = 3, 3, 2


def parameters():
    shapes = {
        "hidden": (HIDDEN, HIDDEN),
        "token": (HIDDEN, VOCABULARY),
        "out": (VOCABULARY, HIDDEN),
    }
    weights = {name: normal(i, shape) for i, (name, shape) in enumerate(shapes.items())}
    return weights | {"bias": 0.5 * normal(9, VOCABULARY), "first": normal(10, HIDDEN)}


def step(weights, carry, token):
    """A recurrent cell whose carry also counts the steps."""
    hidden, count = carry
    hidden = jnp.tanh(weights["hidden"] @ hidden + weights["token"] @ token)
    return (hidden, count + 1), weights["out"] @ hidden + weights["bias"]


def without_repeats(weights, carry, token):
    """The same step, but a token never follows itself."""
    carry, logits = step(weights, carry, token)
    return carry, jnp.where(token > 0.5, -jnp.inf, logits)


def first(weights):
    return weights["first"], jnp.zeros((), jnp.int32)


def policy(end=None, step=step):
    settings = {"length": LENGTH, "vocabulary": VOCABULARY, "end": end}
    return sg.Autoregressive(step, parameters(), first, **settings)


def tokens_by_hand(end=None):
    """All sequences of tokens in order, without those that continue after the end."""
    every = itertools.product(range(VOCABULARY), repeat=LENGTH)
    ends = lambda s: end not in s or set(s[s.index(end) :]) == {end}
    return [s for s in every if ends(s)]


def log_probs_by_hand(weights, tokens, step=step, end=None):
    """The log-probability of each token, without a scan."""

    def one(tokens):
        carry, token, out = first(weights), jnp.zeros(VOCABULARY), []
        for t in range(LENGTH):
            carry, logits = step(weights, carry, token)
            ended = end is not None and jnp.any(tokens[:t] == end)
            out.append(jnp.where(ended, 0, jax.nn.log_softmax(logits)[tokens[t]]))
            token = jnp.eye(VOCABULARY)[tokens[t]]
        return jnp.stack(out)

    return jax.vmap(one)(jnp.asarray(tokens))


def mean_over_tuples(estimate, dist, num_samples=2):
    """The exact mean of `estimate(x)`, a gradient, over all tuples of samples."""
    possible = dist.probabilities() > 0
    states, probs = dist.enumerate()[possible], dist.probabilities()[possible]
    index = jnp.asarray(list(itertools.product(range(len(states)), repeat=num_samples)))
    chance = jnp.prod(probs[index], axis=1)
    grads = jax.jit(jax.vmap(estimate))(states[index])
    return jax.tree.map(lambda g: jnp.tensordot(chance, g, axes=1), grads)
