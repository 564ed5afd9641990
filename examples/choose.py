"""The measurements behind `docs/how-to-choose.md`: three problems, every estimator that fits.

python examples/choose.py
"""

import jax
import jax.numpy as jnp

import steingrad as sg
from steingrad.diagnostics import Comparison, compare


def smooth(bits: int = 50) -> tuple:
    """Smooth: a small network of 50 bits, close to linear in each of them."""
    first, second = jax.random.split(jax.random.key(0))
    weights = jax.random.normal(first, (bits, 30)) / bits**0.5
    out = jax.random.normal(second, (30,))
    f = lambda x: jnp.tanh(x @ weights) @ out + 10
    return f, sg.Bernoulli(jax.random.normal(jax.random.key(1), (bits,)))


def rough(bits: int = 12) -> tuple:
    """Rough: an independent random value at each of 2^12 states; the gradient of f says nothing."""
    table = jax.random.normal(jax.random.key(2), (2**bits,)) + 10
    place = 2 ** jnp.arange(bits)
    f = lambda x: table[jnp.sum(x.astype(jnp.int32) * place, axis=-1)]
    return f, sg.Bernoulli(jax.random.normal(jax.random.key(3), (bits,)))


def categorical(coordinates: int = 6, values: int = 5) -> tuple:
    """Categorical: six coordinates of five values, a quadratic with interactions between them."""
    size = coordinates * values
    mixed = jax.random.normal(jax.random.key(4), (size, size)) / size**0.5

    def f(x):
        flat = x.reshape(*x.shape[:-2], size)
        return jnp.sum((flat @ mixed) * flat, axis=-1) + 10

    logits = jax.random.normal(jax.random.key(5), (coordinates, values))
    return f, sg.Categorical(logits)


def estimators() -> dict:
    """Those that do not fit a problem are left out there."""
    return {
        "REINFORCE": sg.Reinforce(2),
        "RLOO": sg.RLOO(2),
        "DisARM": sg.DisARM(2),
        "Double CV": sg.DoubleCV(2),
        "RODEO": sg.Rodeo(2),
        "RODEO, own scan": sg.Rodeo(2, sg.Gibbs(scan="own")),
        "RODEO, linear": sg.Rodeo(2, surrogate=sg.LinearSurrogate()),
        "Lariat": sg.Lariat(2),
        "Lariat, memory": sg.Lariat(2, memory=True),
        "Lariat, no ∇f": sg.Lariat(2, gradients=False),
        "Bronco": sg.Bronco(1, flips=1),
        "Bronco, no ∇f": sg.Bronco(1, flips=1, use_gradient=False),
        "Bronco, 2 flips": sg.Bronco(1, flips=2),
        "RLOO, K=4": sg.RLOO(4),
        "ARMS, K=4": sg.ARMS(4),
        "RODEO, K=4": sg.Rodeo(4),
        "Lariat, K=4": sg.Lariat(4),
        "Bronco, 2 × 2": sg.Bronco(2, flips=1),
        "REBAR": sg.Rebar(1),
        "RELAX": sg.Relax(1),
        "RODEO, exact": sg.Rodeo(2, surrogate=sg.ExactSurrogate()),
        "local expectation": sg.LocalExpectation(1),
    }


def main() -> None:
    problems: dict[str, tuple] = {
        "smooth": smooth(),
        "rough": rough(),
        "categorical": categorical(),
    }
    for name, (f, dist) in problems.items():
        result: Comparison = compare(
            f, dist, estimators(), key=jax.random.key(6), draws=20_000, adapt_steps=10_000
        )
        print(f"{name}\n{result}\n", flush=True)


if __name__ == "__main__":
    main()
