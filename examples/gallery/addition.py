"""Digit addition by weak supervision: train a classifier of digits from sums only.

    python examples/gallery/addition.py

An example is two of scikit-learn's digits and their sum; which digits they are is unknown. The
network gives probabilities for each digit, from which two digits are drawn, and f is 1 if their sum
is right. f has no gradient and no relaxation. A small multiple of the entropy is added to E[f];
without it the network soon predicts only two digits, such as 4 and 5 for 9. The script measures the
accuracy on single digits and writes `addition.png`.
"""

import argparse
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits

import steingrad as sg

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BATCH, EVERY, ENTROPY = 64, 50, 0.2
ESTIMATORS = {
    "REINFORCE, 16 samples": sg.Reinforce(16),
    "RLOO, 4 samples": sg.RLOO(4),
    "RLOO, 16 samples": sg.RLOO(16),
    "DisARM-IW, 16 samples": sg.DisARMIW(16),
    "without replacement, 8 samples": sg.UnorderedSet(8),
    "local expectation, 19 evaluations": sg.LocalExpectation(1),
}


def digits():
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = jnp.asarray(images[order] / 16, jnp.float32)
    labels = jnp.asarray(labels[order], jnp.int32)
    return (images[:1400], labels[:1400]), (images[1400:], labels[1400:])


def f(x, sums):  # x: [K, batch, 2, 10], one-hot
    drawn = jnp.sum(x * jnp.arange(10, dtype=x.dtype), axis=(-2, -1))
    return (drawn == sums).astype(x.dtype)


def exactly(logits, sums):
    """Returns E[f] as a sum over all hundred pairs of digits."""
    p = jax.nn.softmax(logits)
    pairs = p[:, 0, :, None] * p[:, 1, None, :]
    right = jnp.add.outer(jnp.arange(10), jnp.arange(10)) == sums[:, None, None]
    return jnp.mean(jnp.sum(pairs * right, axis=(1, 2)))


def train(estimator, data, test, steps, seed):
    """Returns the accuracy on single digits during training."""
    images, labels = data
    model_key, cv_key, key = jax.random.split(jax.random.key(seed), 3)
    model = eqx.nn.MLP(64, 10, 64, 1, key=model_key)
    params, rest = eqx.partition(model, eqx.is_inexact_array)
    dist = sg.Categorical(jnp.zeros((BATCH, 2, 10)))
    cv = None if estimator is None else estimator.init(cv_key, dist)
    optimizer = optax.adam(2e-3)

    def step(carry, key):
        params, state = carry
        pick_key, f_key = jax.random.split(key)
        picked = jax.random.randint(pick_key, (BATCH, 2), 0, len(labels))
        sums = jnp.sum(labels[picked], axis=-1)

        def loss(params):
            logits = jax.vmap(jax.vmap(eqx.combine(params, rest)))(images[picked])
            log_p = jax.nn.log_softmax(logits)
            entropy = -jnp.mean(jnp.sum(jnp.exp(log_p) * log_p, axis=(-2, -1)))
            if estimator is None:
                return -exactly(logits, sums) - ENTROPY * entropy
            q, args = sg.Categorical(logits), (sums.astype(logits.dtype),)
            right = sg.expectation(f, q, estimator, cv, key=f_key, args=args)
            return -right - ENTROPY * entropy

        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return (optax.apply_updates(params, updates), state), None

    @jax.jit
    def some(carry, keys):
        carry, _ = jax.lax.scan(step, carry, keys)
        model: Any = eqx.combine(carry[0], rest)
        guessed = jnp.argmax(jax.vmap(model)(test[0]), axis=-1)
        return carry, jnp.mean(guessed == test[1])

    carry, accuracy = (params, optimizer.init(params)), []
    for keys in jax.random.split(key, (max(steps // EVERY, 1), EVERY)):
        carry, now = some(carry, keys)
        accuracy.append(float(now))
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("addition.png"))
    options = parser.parse_args()
    data, test = digits()
    table = Table(title=f"Single digits read right, {options.steps} steps with sums alone")
    for column in ("gradient", "accuracy, mean over seeds", "worst seed", "steps to 90 %"):
        table.add_column(column)
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for name, estimator in {**ESTIMATORS, "exact, all 100 pairs": None}.items():
        seeds = range(options.seeds)
        curves = np.asarray([train(estimator, data, test, options.steps, s) for s in seeds])
        mean, ends = (
            curves.mean(axis=0),
            curves[:, -10:].mean(axis=1),
        )  # the mean of the last 500 steps
        reached = np.flatnonzero(mean >= 0.9)
        first = f"{(reached[0] + 1) * EVERY}" if len(reached) else "not reached"
        table.add_row(name, f"{ends.mean():.3f}", f"{ends.min():.3f}", first)
        axes.plot(EVERY * np.arange(1, len(mean) + 1), mean, label=name)
    Console().print(table)
    axes.set(xlabel="step", ylabel="digits read right")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(options.out, dpi=130)
    print(options.out)


if __name__ == "__main__":
    main()
