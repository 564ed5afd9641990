"""A black box: a simulator in NumPy that only returns the cost of a choice.

    python examples/gallery/black_box.py

Depots can be opened at 60 places. The simulator sends 300 customers to the nearest open depot and
adds up their distances and the rents. There is no gradient, and JAX cannot trace the simulator.
Bits are drawn from independent Bernoulli distributions, whose logits are trained to maximise
E[−cost]. The estimators need only values: REINFORCE, RLOO, and Lariat, which learns from past
estimates of the same f. They are compared with random search with as many simulations. The script
writes `black_box.png`.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

import steingrad as sg

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PLACES, CUSTOMERS, SAMPLES = 60, 300, 4
ESTIMATORS = {
    "REINFORCE": sg.Reinforce(SAMPLES),
    "REINFORCE, moving average": sg.Reinforce(SAMPLES, baseline="moving_average"),
    "RLOO": sg.RLOO(SAMPLES),
    "Lariat with memory": sg.Lariat(SAMPLES, gradients=False),
}


class Simulator:
    """Returns minus the cost of opening these places, for any number of choices at once."""

    def __init__(self, seed=0):
        random = np.random.default_rng(seed)
        places, customers = random.random((PLACES, 2)), random.random((CUSTOMERS, 2))
        self.distance = np.linalg.norm(customers[:, None] - places, axis=-1)
        self.rent = random.uniform(1.0, 3.0, PLACES)

    def __call__(self, x):  # [..., PLACES] -> [...]
        chosen = np.asarray(x) > 0.5
        way = np.where(chosen[..., None, :], self.distance, 2.0).min(axis=-1).sum(axis=-1)
        return -(way + chosen @ self.rent).astype(np.float32)


def local_search(simulator):
    """Makes the best single change, starting from no depot, as long as it helps."""
    x = np.zeros(PLACES, np.float32)
    while True:
        values = simulator(np.abs(x - np.eye(PLACES, dtype=np.float32)))
        if values.max() <= simulator(x):
            return x
        x[values.argmax()] = 1 - x[values.argmax()]


def random_search(simulator, count, seed):
    """Returns the best value so far among random choices."""
    random = np.random.default_rng(seed)
    x = random.random((count, PLACES)) < random.uniform(0.05, 0.5, (count, 1))
    return np.maximum.accumulate(simulator(x))


def climb(simulator, estimator, steps, seed):
    """Returns E[f] during training, and f of the most likely choice at the end."""
    f = sg.callback(simulator)
    logits = jnp.full(PLACES, -1.0)
    cv = estimator.init(jax.random.key(seed), sg.Bernoulli(logits))
    optimizer, cv_optimizer = optax.adam(0.05), sg.cv_optimizer(estimator)

    def step(carry, key):
        logits, state, cv, cv_state = carry
        value, grads = sg.value_and_grad(f, sg.Bernoulli(logits), estimator, cv, key=key)
        updates, state = optimizer.update(-grads.parameters, state)
        if cv is not None:
            cv_updates, cv_state = cv_optimizer.update(grads.cv, cv_state, cv)
            cv = optax.apply_updates(cv, cv_updates)
        return (optax.apply_updates(logits, updates), state, cv, cv_state), value

    carry = (logits, optimizer.init(logits), cv, cv_optimizer.init(cv))
    keys = jax.random.split(jax.random.key(seed), steps)
    (logits, *_), values = jax.jit(lambda c: jax.lax.scan(step, c, keys))(carry)
    return np.asarray(values), float(simulator(np.asarray(logits > 0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("black_box.png"))
    options = parser.parse_args()
    simulator, seeds = Simulator(), range(options.seeds)
    evaluations = options.steps * SAMPLES
    table = Table(title=f"{PLACES} places, {evaluations} simulations, {options.seeds} seeds")
    for column in ("method", "cost of its choice, mean", "worst seed"):
        table.add_column(column)
    known = -float(simulator(local_search(simulator)))
    table.add_row("local search with every single change tried", f"{known:.2f}", "")
    found = np.asarray([random_search(simulator, evaluations, s) for s in seeds])
    table.add_row("random search", f"{-found[:, -1].mean():.2f}", f"{-found[:, -1].min():.2f}")
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    axes.plot(
        np.arange(1, evaluations + 1), -found.mean(axis=0), label="random search, best so far"
    )
    for name, estimator in ESTIMATORS.items():
        runs = [climb(simulator, estimator, options.steps, s) for s in seeds]
        ends = np.asarray([end for _, end in runs])
        table.add_row(name, f"{-ends.mean():.2f}", f"{-ends.min():.2f}")
        curve = -np.mean([values for values, _ in runs], axis=0)
        axes.plot(SAMPLES * np.arange(1, len(curve) + 1), curve, label=name, linewidth=0.9)
    Console().print(table)
    axes.axhline(known, color="0.6", linestyle=":", label="local search")
    axes.set(xlabel="simulations", ylabel="cost", ylim=(0.9 * known, 1.7 * known))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(options.out, dpi=130)
    print(options.out)


if __name__ == "__main__":
    main()
