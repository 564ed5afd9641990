"""Policy gradients on sequences: how common advantages affect bias and variance.

    python examples/gallery/advantages.py

The policy generates up to five tokens, so its exact gradient is a sum over all sequences. A group
of samples shares a prompt. Each kind of advantage turns the rewards of a group into weights of the
score. The mean of the weighted scores should be the gradient. The script writes `advantages.png`.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from rich.console import Console
from rich.table import Table

import steingrad as sg

matplotlib.use("Agg")
import matplotlib.pyplot as plt

LENGTH, VOCABULARY, END = 5, 3, 2


def policy(seed: int) -> sg.Autoregressive:
    """Returns a Markov chain of tokens that ends with token 2."""
    table = 0.7 * jax.random.normal(jax.random.key(seed), (1 + VOCABULARY, VOCABULARY))
    step = lambda table, carry, token: (carry, table[0] + token @ table[1:])
    return sg.Autoregressive(step, table, (), length=LENGTH, vocabulary=VOCABULARY, end=END)


def reward(q: sg.Autoregressive, x):
    """Returns 1 if there are three tokens 1 or more, as for a right answer, and else 0."""
    return jnp.where(jnp.sum(x[..., 1] * q.mask(x), axis=-1) >= 3, 1.0, 0.0)


def kinds() -> dict[str, Callable]:
    """Returns functions that map the rewards and lengths of a group to advantages."""
    group = lambda r, l: r - jnp.mean(r)
    return {
        "none": lambda r, l: r,
        "group mean (own sample in it)": group,
        "group mean / standard deviation": lambda r, l: group(r, l) / (jnp.std(r) + 1e-4),
        "leave-one-out": lambda r, l: sg.advantages(r),
        "length-weighted, own sample in it": lambda r, l: r - jnp.sum(l * r) / jnp.sum(l),
        "length-weighted, leave-one-out": lambda r, l: sg.advantages(
            r, kind="length_weighted", lengths=l
        ),
    }


def measure(q: sg.Autoregressive, samples: int, draws: int) -> tuple[jax.Array, dict]:
    """Returns the exact gradient, and the estimates with each kind of advantage."""
    exact = sg.exact_gradient(lambda x: reward(q, x), q)

    def estimates(key):
        x = q.sample(key, (samples,))
        r, lengths = reward(q, x), q.lengths(x).astype(jnp.float32)
        weigh = lambda advantage: q.weighted_score(advantage(r, lengths) / samples, x)
        return {name: weigh(advantage) for name, advantage in kinds().items()}

    keys = jax.random.split(jax.random.key(1), draws)
    return exact, jax.jit(lambda keys: jax.lax.map(estimates, keys, batch_size=500))(keys)


def summary(exact, g) -> tuple[float, float, float, float]:
    """Returns the mean along and orthogonal to the gradient, its error, and the variance."""
    mean, true = np.mean(g, axis=0).ravel(), np.ravel(exact)
    along = mean @ true / (true @ true)
    off = np.linalg.norm(mean - along * true) / np.linalg.norm(true)
    error = np.sqrt(np.sum(np.var(g, axis=0)) / len(g)) / np.linalg.norm(true)
    return float(along), float(off), float(error), float(np.sum(np.var(g, axis=0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=4, help="samples in a group")
    parser.add_argument("--draws", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=Path("advantages.png"))
    options = parser.parse_args()
    q = policy(0)
    exact, found = measure(q, options.samples, options.draws)
    rows = {name: summary(exact, np.asarray(found[name])) for name in kinds()}
    success = float(sg.exact_expectation(lambda x: reward(q, x), q))
    table = Table(title=f"{options.samples} samples of a prompt, success {success:.2f}")
    for column in ("advantage", "along ∇", "off ∇", "± error", "variance"):
        table.add_column(column)
    for name, (along, off, error, variance) in rows.items():
        table.add_row(name, f"{along:.3f}", f"{off:.3f}", f"{error:.3f}", f"{variance:.3g}")
    console = Console()
    console.print(table)
    console.print(
        "The mean of the estimates has a part along the gradient and a part orthogonal to it, both "
        "in units of the gradient's length. Without bias these are 1 and 0, up to the error."
    )
    figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
    for number, (name, (along, off, error, variance)) in enumerate(rows.items()):
        unbiased = abs(along - 1) + off < 5 * error
        axes.barh(number, variance / along**2, color="black" if unbiased else "0.7")
        label = f"{name}: {along:.2f} ∇" + ("" if off < 5 * error else f", {off:.2f} off it")
        axes.text(variance / along**2, number, "  " + label, va="center", fontsize=8)
    axes.set_yticks([])
    axes.set(xlabel="variance where the mean has the gradient's length (black: unbiased)")
    axes.margins(x=0.6)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(options.out, dpi=130)
    console.print(str(options.out))


if __name__ == "__main__":
    main()
