"""An Ising model on a square lattice: a distribution known up to a constant, sampled by Gibbs.

    python examples/ising.py

1. On 4 × 4 spins (65,536 states), energy and magnetisation agree with the sum over all states, and
   the gradient d E[m²] / d coupling by RLOO and Rodeo agrees with the exact gradient. The
   normalising constant is not needed, because it cancels.
2. On 32 × 32 spins, away from the critical coupling, energy and magnetisation agree with the
   infinite lattice (Onsager 1944, Yang 1952).

The samples come from Markov chains, so the agreement depends on how well the chains have converged
after `--sweeps` sweeps. They start from random spins (disordered) or from aligned spins (ordered).
This takes about a minute on two cores.
"""

import argparse
import math
from typing import Any

import jax
import jax.numpy as jnp

import steingrad as sg

CRITICAL = math.log(1 + math.sqrt(2)) / 2  # 0.4407


def neighbours(x: Any) -> Any:
    """Returns the sum of the four neighbours of each spin, on a periodic lattice."""
    return sum(jnp.roll(x, step, axis) for step in (-1, 1) for axis in (-2, -1))


def energy(x: Any) -> Any:
    """Returns the energy per spin of `[..., d]`: −1 for each aligned pair, +1 for each other."""
    side = math.isqrt(x.shape[-1])
    spins = x.reshape(*x.shape[:-1], side, side)
    return -jnp.mean(spins * neighbours(spins), axis=(-2, -1)) / 2


def magnetisation(x: Any) -> Any:
    return jnp.abs(jnp.mean(x, axis=-1))


def ising(coupling: Any, side: int) -> sg.FromLogProb:
    """q(x) ∝ exp(−coupling · energy)."""

    def log_prob(coupling, x):
        return -coupling * x.size * energy(x)

    def log_ratio(coupling, x):
        """Returns the change of log q if a spin becomes −1 or 1, for each spin."""
        change = jnp.array([-1.0, 1.0]) - x[:, None]
        return coupling * change * neighbours(x.reshape(side, side)).reshape(-1, 1)

    return sg.FromLogProb(
        log_prob,
        jnp.asarray(coupling),
        num_coordinates=side * side,
        values=(-1, 1),
        log_ratio_fn=log_ratio,
    )


def chessboard(side: int) -> list[Any]:
    """Returns a chessboard colouring: spins of one colour are independent given the other."""
    colour = jnp.sum(jnp.indices((side, side)), axis=0).reshape(-1) % 2
    return [jnp.flatnonzero(colour == c) for c in (0, 1)]


def infinite_lattice(coupling: float) -> tuple[float, float]:
    """Returns the exact energy and magnetisation per spin of the infinite lattice."""
    sinh, cosh = math.sinh(2 * coupling), math.cosh(2 * coupling)
    # The arithmetic-geometric mean gives the complete elliptic integral of the first kind.
    a, b = 1.0, math.sqrt(1 - (2 * sinh / cosh**2) ** 2)
    while abs(a - b) > 1e-12:
        a, b = (a + b) / 2, math.sqrt(a * b)
    integral = math.pi / (2 * a)
    tanh = sinh / cosh
    energy = -(1 + 2 / math.pi * (2 * tanh**2 - 1) * integral) / tanh
    return energy, (1 - sinh**-4) ** 0.125 if coupling > CRITICAL else 0.0


def settled(q, sampler, *, num_chains, start=None, seed=0):
    """Returns the states of the chains after all sweeps of the sampler."""
    chains = sampler.init(jax.random.key(seed), q, num_chains, start)
    return jax.jit(sampler)(jax.random.key(seed + 1), q, chains)[0]


def mean_and_error(values: Any) -> tuple[float, float]:
    return float(jnp.mean(values)), float(jnp.std(values)) / math.sqrt(len(values))


def small(sweeps: int, num_chains: int, steps: int, coupling: float = 0.35) -> list[tuple]:
    """Returns rows (name, estimate, standard error, exact) for 4 × 4 spins."""
    q = ising(coupling, 4)
    sampler = sg.GibbsSampler(sweeps, chessboard(4))
    x = settled(q, sampler, num_chains=num_chains)
    rows = []
    for name, f in (("energy", energy), ("magnetisation", magnetisation)):
        exact = float(jax.jit(lambda f=f: sg.exact_expectation(f, q))())
        rows.append((name, *mean_and_error(f(x)), exact))

    # The gradient of E[m²] from 4 chains at a time, which needs only f and ∇f at the samples.
    square = lambda x: magnetisation(x) ** 2
    exact = float(jax.jit(lambda q: sg.exact_gradient(square, q))(q))
    groups = num_chains // 4
    each = sg.FromLogProb(
        q.log_prob_fn,
        jnp.full(groups, coupling),
        num_coordinates=16,
        values=(-1, 1),
        batch_shape=(groups,),
        log_ratio_fn=q.log_ratio_fn,
    )

    def evaluated(estimator, cv, x):
        x = x[: 4 * groups].reshape(4, groups, 16)
        fx, pull_back = jax.vjp(square, x)
        return estimator.evaluated(cv, each, x, fx, pull_back(jnp.ones_like(fx))[0])

    # Control variates learn from other chains, because an estimate is biased if they depend on its
    # own samples.
    others = settled(q, sampler, num_chains=num_chains, seed=10)
    for estimator in (sg.RLOO(4), sg.Rodeo(4, coefficients="least_squares")):
        cv = estimator.init(jax.random.key(2))
        if cv is not None:
            cv = jax.jit(lambda x, e=estimator: learned(e, each, evaluated, x, steps))(others)
        estimate = jax.jit(lambda cv, x, e=estimator: e.gradient(cv, each, evaluated(e, cv, x)))(
            cv, x
        )
        name = f"d E[m²] / d coupling, {type(estimator).__name__}"
        rows.append((name, *mean_and_error(estimate), exact))
    return rows


def learned(estimator, dist, evaluated, x, steps):
    """Returns the control variates after learning from these samples."""
    optimizer = sg.cv_optimizer(estimator, 1e-3)

    def step(carry, _):
        cv, state = carry
        at = evaluated(estimator, cv, x)
        _, cv_grad = estimator.adapt(cv, dist, at)
        updates, state = optimizer.update(cv_grad, state, cv)
        return (jax.tree.map(jnp.add, cv, updates), state), None

    cv = estimator.init(jax.random.key(2))
    return jax.lax.scan(step, (cv, optimizer.init(cv)), length=steps)[0][0]


def large(side: int, sweeps: int, num_chains: int) -> list[tuple]:
    """Returns rows (name, estimate, standard error, exact) for a lattice too large for sums."""
    sampler, rows = sg.GibbsSampler(sweeps, chessboard(side)), []
    for coupling in (0.3, 0.5):
        q = ising(coupling, side)
        aligned = jnp.ones(side * side) if coupling > CRITICAL else None
        x = settled(q, sampler, num_chains=num_chains, start=aligned)
        exact_energy, exact_magnetisation = infinite_lattice(coupling)
        rows.append((f"energy, coupling {coupling}", *mean_and_error(energy(x)), exact_energy))
        if coupling > CRITICAL:
            name = f"magnetisation, coupling {coupling}"
            rows.append((name, *mean_and_error(magnetisation(x)), exact_magnetisation))
    return rows


def main(arguments: list[str] | None = None) -> list[tuple]:
    parser = argparse.ArgumentParser(description="An Ising model, against what is exact.")
    parser.add_argument("--sweeps", type=int, default=300)
    parser.add_argument("--chains", type=int, default=4000)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--steps", type=int, default=100, help="steps in which Rodeo learns")
    options = parser.parse_args(arguments)
    rows = small(min(options.sweeps, 100), options.chains, options.steps)
    big = large(options.side, options.sweeps, max(options.chains // 20, 2))
    print(f"{'':38}{'estimate':>10}{'± error':>10}{'exact':>10}")
    for title, part in (("4 × 4, all states", rows), ("against the infinite lattice", big)):
        print(title)
        for name, estimate, error, exact in part:
            print(f"  {name:36}{estimate:10.4f}{error:10.4f}{exact:10.4f}")
    return rows + big


if __name__ == "__main__":
    main()
