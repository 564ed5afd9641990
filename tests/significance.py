"""A statistical proof of unbiasedness: z-scores of many draws against the exact gradient."""

from statistics import NormalDist

import jax
import jax.numpy as jnp

import steingrad as sg

DRAWS, CHUNK = 400_000, 4_000


def z_scores(draw, exact, seed=0):
    """(mean − exact) / standard error for each number that `draw(key)` returns, DRAWS times."""

    @jax.jit
    def run(key):
        def chunk(sums, key):
            error = jax.vmap(draw)(jax.random.split(key, CHUNK)) - exact
            return (sums[0] + jnp.sum(error, axis=0), sums[1] + jnp.sum(error**2, axis=0)), None

        zeros = jnp.zeros_like(exact)
        keys = jax.random.split(key, DRAWS // CHUNK)
        (total, square), _ = jax.lax.scan(chunk, (zeros, zeros), keys)
        mean = total / DRAWS
        return mean / jnp.sqrt((square / DRAWS - mean**2) / DRAWS)

    return run(jax.random.key(seed))


def gradient_z_scores(estimator, cv, dist, f, context=None, seed=0):
    def draw(key):
        _, grads = estimator.value_and_grad(f, dist, cv, key=key, context=context)
        return grads.parameters

    return z_scores(draw, sg.exact_gradient(f, dist), seed)


def bound(scores, level=1e-3):
    """The bound that the largest of as many |z| exceeds with probability `level` (Šidák)."""
    return NormalDist().inv_cdf((1 + (1 - level) ** (1 / scores.size)) / 2)


def passes(scores):
    return bool(jnp.max(jnp.abs(scores)) < bound(scores))
