"""The measurements of `docs/how-to-choose.md`: estimators on five problems, and in maximisation.

Estimators that learn are adapted three times, with other random numbers each time.

python examples/choose.py                    # all parts, about 20 minutes on two cores
python examples/choose.py smooth maximise    # only these parts
"""

import argparse
import math
from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import steingrad as sg
from steingrad.diagnostics import compare

DRAWS, ADAPT_STEPS, ADAPTATIONS = 10_000, 10_000, 3
ASCENT_STEPS, ASCENT_RATE, ASCENT_SEEDS = 1_000, 0.02, 32


def smooth(bits: int = 50) -> tuple:
    """A small network of 50 bits that is almost linear in each bit."""
    first, second = jax.random.split(jax.random.key(0))
    weights = jax.random.normal(first, (bits, 30)) / bits**0.5
    out = jax.random.normal(second, (30,))
    f = lambda x: jnp.tanh(x @ weights) @ out + 10
    return f, sg.Bernoulli(jax.random.normal(jax.random.key(1), (bits,)))


def hidden(bits: int = 50) -> tuple:
    """The same network without its gradient: JAX is told that it is 0."""
    f, dist = smooth(bits)
    return lambda x: jax.lax.stop_gradient(f(x)), dist


def rough(bits: int = 12) -> tuple:
    """An independent random value at each of 2^12 states, so that neighbours tell nothing."""
    table = jax.random.normal(jax.random.key(2), (2**bits,)) + 10
    place = 2 ** jnp.arange(bits)
    f = lambda x: table[jnp.sum(x.astype(jnp.int32) * place, axis=-1)]
    return f, sg.Bernoulli(jax.random.normal(jax.random.key(3), (bits,)))


def categorical(coordinates: int = 6, values: int = 5) -> tuple:
    """A quadratic function of six coordinates with five values, with interactions."""
    size = coordinates * values
    mixed = jax.random.normal(jax.random.key(4), (size, size)) / size**0.5

    def f(x):
        flat = x.reshape(*x.shape[:-2], size)
        return jnp.sum((flat @ mixed) * flat, axis=-1) + 10

    logits = jax.random.normal(jax.random.key(5), (coordinates, values))
    return f, sg.Categorical(logits)


def few(values: int = 10) -> tuple:
    """One coordinate with ten values and a random f for each value."""
    f_values = jax.random.normal(jax.random.key(7), (values,)) + 10
    f = lambda x: jnp.sum(x * f_values, axis=(-2, -1))
    return f, sg.Categorical(jax.random.normal(jax.random.key(8), (1, values)))


# Estimators that need no gradient. Each problem leaves out those that do not support it.
VALUES = {
    "REINFORCE, moving average": sg.Reinforce(2, "moving_average"),
    "RLOO": sg.RLOO(2),
    "DisARM": sg.DisARM(2),
    "DisARM-IW": sg.DisARMIW(2),
    "Lariat, no ∇f": sg.Lariat(2, gradients=False),
    "Bronco, no ∇f": sg.Bronco(1, flips=1, use_gradient=False),
    "RLOO, K = 4": sg.RLOO(4),
    "ARMS, K = 4": sg.ARMS(4),
    "CARMS, K = 4": sg.CARMS(4),
    "local expectation": sg.LocalExpectation(1),
}
GRADIENTS = {
    "Double CV": sg.DoubleCV(2),
    "RODEO": sg.Rodeo(2),
    "Lariat": sg.Lariat(2),
    "Lariat, memory": sg.Lariat(2, memory=True),
    "Bronco": sg.Bronco(1, flips=1),
    "RODEO, K = 4": sg.Rodeo(4),
    "Bronco, default flips": sg.Bronco(),
    "Bronco, 3 flips": sg.Bronco(1, flips=3),
    "REBAR": sg.Rebar(1),
    "straight-through": sg.StraightThrough(2),
    "ReinMax": sg.ReinMax(2),
}
PROBLEMS = {
    "smooth": (smooth, VALUES | GRADIENTS),
    "hidden": (hidden, VALUES | {"RODEO": sg.Rodeo(2)}),
    "rough": (rough, VALUES | GRADIENTS),
    "categorical": (categorical, VALUES | GRADIENTS),
    "few": (
        few,
        {
            "RLOO, K = 4": sg.RLOO(4),
            "CARMS, K = 4": sg.CARMS(4),
            "unordered set, K = 4": sg.UnorderedSet(4),
            "unordered set, K = 8": sg.UnorderedSet(8),
            "local expectation": sg.LocalExpectation(1),
        },
    ),
}
# All of these use two evaluations per step.
ASCENTS = {
    "with ∇f": (smooth, ("RLOO", "DisARM", "Double CV", "RODEO", "Lariat", "Lariat, memory",
                         "Bronco", "straight-through", "ReinMax")),
    "without ∇f": (hidden, ("REINFORCE, moving average", "RLOO", "DisARM", "RODEO",
                            "Lariat, no ∇f", "Bronco, no ∇f")),
}  # fmt: skip


def measure(f: Callable, dist: sg.Distribution, estimators: dict[str, sg.Estimator]) -> None:
    """Print the first comparison, and then the variances of all adaptations in increasing order."""
    compared = partial(compare, f, dist, draws=DRAWS, adapt_steps=ADAPT_STEPS)
    result = compared(estimators, key=jax.random.key(6))
    print(f"{result}\n", flush=True)
    # What learns nothing has the same variance each time.
    learns = lambda estimator: estimator.init(jax.random.key(0), dist) is not None
    again = {name: estimator for name, estimator in estimators.items() if learns(estimator)}
    variances = {row.name: [row.variance] for row in result.rows if row.name in again}
    again = {name: again[name] for name in variances}
    for number in range(1, ADAPTATIONS if again else 1):
        for row in compared(again, key=jax.random.key(6 + number)).rows:
            variances[row.name].append(row.variance)
    for name, found in variances.items():
        print(f"  {name:<28}{', '.join(f'{v:.3g}' for v in sorted(found))}", flush=True)
    print(flush=True)


def ascend(f: Callable, dist: sg.Bernoulli, estimator: sg.Estimator, key: jax.Array) -> jax.Array:
    """Returns the mean of f after `ASCENT_STEPS` steps of Adam. Control variates learn as well."""
    init_key, steps_key, end_key = jax.random.split(key, 3)
    cv = estimator.init(init_key, dist)
    optimizer, cv_optimizer = optax.adam(ASCENT_RATE), sg.cv_optimizer(estimator)

    def step(carry, key):
        logits, state, cv, cv_state = carry
        _, grads = estimator.value_and_grad(f, dist.with_parameters(logits), cv, key=key)
        updates, state = optimizer.update(-grads.parameters, state)
        cv_updates, cv_state = cv_optimizer.update(grads.cv, cv_state, cv)
        logits, cv = optax.apply_updates(logits, updates), eqx.apply_updates(cv, cv_updates)
        return (logits, state, cv, cv_state), None

    start = jnp.zeros_like(dist.logits)
    carry = (start, optimizer.init(start), cv, cv_optimizer.init(cv))
    (logits, *_), _ = jax.lax.scan(step, carry, jax.random.split(steps_key, ASCENT_STEPS))
    return jnp.mean(f(dist.with_parameters(logits).sample(end_key, (1_000,))))


def maximise() -> None:
    print(f"Mean f after {ASCENT_STEPS} steps of Adam at {ASCENT_RATE}, two evaluations each, from")
    print(f"logits of 0; {ASCENT_SEEDS} seeds, ± standard error")
    for name, (problem, names) in ASCENTS.items():
        f, dist = problem()
        start = jnp.mean(
            f(sg.Bernoulli(jnp.zeros_like(dist.logits)).sample(jax.random.key(9), (1_000,)))
        )
        print(f"{name} (at the start {start:.2f})")
        for row in names:
            run = jax.jit(jax.vmap(partial(ascend, f, dist, (VALUES | GRADIENTS)[row])))
            ends = np.asarray(run(jax.random.split(jax.random.key(8), ASCENT_SEEDS)))
            error = np.std(ends, ddof=1) / math.sqrt(len(ends))
            print(f"  {row:<28}{np.mean(ends):7.2f} ± {error:.2f}", flush=True)


def main() -> None:
    parts = [*PROBLEMS, "maximise"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default="all", choices=[*parts, "all"])
    asked = parser.parse_args().parts
    for part in parts if "all" in asked else asked:
        if part == "maximise":
            maximise()
            continue
        problem, estimators = PROBLEMS[part]
        f, dist = problem()
        print(f"{part}: {problem.__doc__}", flush=True)
        measure(f, dist, estimators)


if __name__ == "__main__":
    main()
