"""A recurrent policy with `FromLogProb`: compare RLOO by hand with our RLOO, Rodeo and Lariat.

    python benchmarks/policy.py                          # writes benchmarks/results/policy.json

The policy is a GRU with 0.03, 0.4 or 1.6 million weights that writes 20 tokens from a vocabulary of
50; there are 64 samples. Times are compared within rounds, in which every contestant runs in turn.
Memory is what the compiler reserves for one gradient in addition to the inputs (`memory_analysis`).
The goal is at most 1.2 times the time and 1.3 times the memory of RLOO by hand.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
from timing import race, save, show, summarise

import steingrad as sg

TOKENS, VOCABULARY, SAMPLES = 20, 50, 64
WIDTHS = (64, 256, 512)
TARGET = jnp.sin(jnp.arange(float(TOKENS))) * 20 + 25


def init(key: Any, width: int) -> dict[str, Any]:
    shapes = {
        "embedding": (VOCABULARY + 1, width),
        "inputs": (width, 3 * width),
        "hidden": (width, 3 * width),
        "bias": (3 * width,),
        "out": (width, VOCABULARY),
    }
    keys = jax.random.split(key, len(shapes))
    scale = width**-0.5
    return {
        n: scale * jax.random.normal(k, s) for k, (n, s) in zip(keys, shapes.items(), strict=True)
    }


def cell(weights, hidden, token):
    """Returns the hidden state of a GRU and the log-probabilities of the next token."""
    inputs = weights["embedding"][token] @ weights["inputs"] + weights["bias"]
    reset, update, new = jnp.split(inputs, 3)
    of_reset, of_update, of_new = jnp.split(hidden @ weights["hidden"], 3)
    update = jax.nn.sigmoid(update + of_update)
    new = jnp.tanh(new + jax.nn.sigmoid(reset + of_reset) * of_new)
    hidden = update * hidden + (1 - update) * new
    return hidden, jax.nn.log_softmax(hidden @ weights["out"])


def start(weights):
    return jnp.zeros(weights["hidden"].shape[0]), jnp.asarray(VOCABULARY, jnp.int32)


def log_prob(weights, x):
    def step(carry, token):
        hidden, log_probs = cell(weights, *carry)
        return (hidden, token), log_probs[token]

    return jnp.sum(jax.lax.scan(step, start(weights), x.astype(jnp.int32))[1])


def sample(key, weights):
    def step(carry, key):
        hidden, log_probs = cell(weights, *carry)
        token = jax.random.categorical(key, log_probs).astype(jnp.int32)
        return (hidden, token), token

    return jax.lax.scan(step, start(weights), jax.random.split(key, TOKENS))[1]


def reward(x):
    return -jnp.mean((x - TARGET) ** 2, axis=-1)


def by_hand(weights, key):
    """RLOO as it is usually written: one loss, differentiated once."""
    x = jax.vmap(sample, (0, None))(jax.random.split(key, SAMPLES), weights)
    fx = reward(x.astype(jnp.float32))
    advantage = fx - (jnp.sum(fx) - fx) / (SAMPLES - 1)

    def loss(weights):
        return jnp.mean(advantage * jax.vmap(log_prob, (None, 0))(weights, x))

    return jnp.mean(fx), jax.grad(loss)(weights)


def with_steingrad(estimator):
    def run(weights, cv, key):
        q = sg.FromLogProb(
            log_prob,
            weights,
            num_coordinates=TOKENS,
            values=range(VOCABULARY),
            sampler=sample,
            normalized=True,
        )
        value, grads = estimator.value_and_grad(reward, q, cv, key=key)
        return value, grads.parameters, grads.cv

    return run


ESTIMATORS = {
    "RLOO": sg.RLOO(SAMPLES),
    "Lariat, values": sg.Lariat(SAMPLES, gradients=False, memory=False),
    "Rodeo, 2 neighbours": sg.Rodeo(SAMPLES, sg.Barker(neighbourhood="sparse", num_coordinates=1)),
    "Rodeo, 2 neighbours, least squares": sg.Rodeo(
        SAMPLES, sg.Barker(neighbourhood="sparse", num_coordinates=1), coefficients="least_squares"
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="A recurrent policy, by hand and by estimator.")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    results = {}
    for width in options.widths:
        weights, key = init(jax.random.key(0), width), jax.random.key(1)
        count = sum(leaf.size for leaf in jax.tree.leaves(weights))
        compiled: dict[str, Any] = {
            "RLOO by hand": (jax.jit(by_hand).lower(weights, key).compile(), (weights, key))
        }
        for name, estimator in ESTIMATORS.items():
            inputs = (weights, estimator.init(jax.random.key(2)), key)
            compiled[name] = jax.jit(with_steingrad(estimator)).lower(*inputs).compile(), inputs
        memory = {}
        for name, (program, _) in compiled.items():
            analysis: Any = program.memory_analysis()
            memory[name] = analysis.temp_size_in_bytes + analysis.output_size_in_bytes
        calls = {name: (lambda p=p, i=i: p(*i)) for name, (p, i) in compiled.items()}
        summary = summarise(race(calls, options.rounds), "RLOO by hand")
        hand = memory["RLOO by hand"]
        for name, numbers in summary.items():
            numbers["megabytes"] = memory[name] / 1e6
            numbers["memory_ratio"] = memory[name] / hand
        notes = {n: f"{memory[n] / 1e6:.1f} MB, {memory[n] / hand:.2f} ×" for n in summary}
        show(f"{count / 1e6:.2f} million weights", summary, notes)
        results[str(count)] = summary
    save("policy", {"samples": SAMPLES, "weights": results})


if __name__ == "__main__":
    main()
