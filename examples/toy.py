"""A classical toy problem: maximise E[(x − t)²] over the logits of ten bits.

    python examples/toy.py

The exact gradient is known. So the script can show the bias and variance of each estimator, and
compare gradient ascent with estimated and exact gradients. It writes `toy.png`.
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import optax

import steingrad as sg
from steingrad.diagnostics import compare

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BITS, TARGET = 10, 0.45


def f(x):
    return jnp.sum((x - TARGET) ** 2, axis=-1)


def estimators() -> dict[str, sg.Estimator]:
    """Returns estimators with about the same number of evaluations, where this can be chosen."""
    return {
        "REINFORCE": sg.Reinforce(4),
        "RLOO": sg.RLOO(4),
        "DisARM": sg.DisARM(4),
        "ARMS": sg.ARMS(4),
        "REBAR": sg.Rebar(1),
        "RELAX": sg.Relax(1),
        "Double CV": sg.DoubleCV(4),
        "RODEO": sg.Rodeo(4),
        "local expectation": sg.LocalExpectation(1),
    }


def path(estimator, steps: int, learning_rate: float = 0.5):
    """Returns E[f] during gradient ascent. Without an estimator the gradient is exact."""
    optimizer = sg.cv_optimizer(estimator or sg.RLOO(), learning_rate=1e-2)
    cv: Any = estimator and estimator.init(jax.random.key(0), sg.Bernoulli(jnp.zeros(BITS)))

    def step(carry, key):
        logits, cv, state = carry
        dist = sg.Bernoulli(logits)
        if estimator is None:
            gradient = sg.exact_gradient(f, dist)
        else:
            _, grads = estimator.value_and_grad(f, dist, cv, key=key)
            gradient = grads.parameters
            updates, state = optimizer.update(grads.cv, state, cv)
            cv = optax.apply_updates(cv, updates)
        return (logits + learning_rate * gradient, cv, state), sg.exact_expectation(f, dist)

    keys = jax.random.split(jax.random.key(1), steps)
    start = jnp.zeros(BITS), cv, optimizer.init(cv)
    return jax.jit(lambda start: jax.lax.scan(step, start, keys))(start)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000, help="steps of gradient ascent")
    parser.add_argument("--draws", type=int, default=20_000, help="draws for each variance")
    parser.add_argument("--out", type=Path, default=Path("toy.png"))
    arguments = parser.parse_args()

    dist = sg.Bernoulli(jnp.zeros(BITS))
    print("Exact gradient:", sg.exact_gradient(f, dist))
    table = compare(
        f, dist, estimators(), key=jax.random.key(2), draws=arguments.draws, learning_rate=1e-2
    )
    print(table)

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    rows = [row for row in table.rows if row.variance > 0]
    left.barh([row.name for row in rows], [row.variance for row in rows], color="0.6")
    left.set(xscale="log", xlabel="variance of the gradient (trace)")
    left.invert_yaxis()
    styles = ["-", "--", ":", "-."]
    for number, (name, estimator) in enumerate({"exact": None, **estimators()}.items()):
        right.plot(path(estimator, arguments.steps), styles[number % 4], label=name)
    right.set(xlabel="steps", ylabel="E[f]")
    right.legend(fontsize="small")
    figure.savefig(arguments.out, dpi=120)
    print(f"Variances and paths: {arguments.out}")


if __name__ == "__main__":
    main()
