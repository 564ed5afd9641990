"""Bounds of a trained model on a whole split."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt8

from ..models import VAE

IMAGES_AT_A_TIME = 100
SAMPLES_AT_A_TIME = 100


class Bounds(NamedTuple):
    """Means over a split."""

    elbo: float
    """The ELBO."""
    bound: float
    """The importance-weighted bound (Burda et al. 2016); with one sample, the ELBO."""


def evaluate(
    model: VAE, images: UInt8[np.ndarray, "images pixels"], samples: int, key: PRNGKeyArray
) -> Bounds:
    r"""ELBO and $E[\log \frac1S \sum_s p(y, x_s) / q(x_s \mid y)]$ over images, $S$ = `samples`.

    Images and samples are taken a few at a time, so that any number of either fits in memory.
    """
    whole, rest = divmod(len(images), IMAGES_AT_A_TIME)
    split = whole * IMAGES_AT_A_TIME
    pieces = [images[:split].reshape(whole, IMAGES_AT_A_TIME, -1)] if whole else []
    pieces += [images[None, split:]] if rest else []
    totals = [
        _sum_of_bounds(model, jnp.asarray(piece), samples, jax.random.fold_in(key, number))
        for number, piece in enumerate(pieces)
    ]
    elbo, bound = np.sum(np.asarray(totals, np.float64), axis=0) / len(images)
    return Bounds(float(elbo), float(bound))


@eqx.filter_jit
def _sum_of_bounds(
    model: VAE, pieces: UInt8[Array, "pieces images pixels"], samples: int, key: PRNGKeyArray
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    def bounds(piece):
        number, images = piece
        observe_key, weight_key = jax.random.split(jax.random.fold_in(key, number))
        y = model.likelihood.observe(observe_key, images)

        def more(carry, size, key):
            """Add `size` samples to the sums of log-weights and of weights."""
            total, log_total = carry
            weights = model.log_weights(y, samples=size, key=key)
            log_sum = jnp.logaddexp(log_total, jax.nn.logsumexp(weights, axis=0))
            return total + jnp.sum(weights, axis=0), log_sum

        whole, rest = divmod(samples, SAMPLES_AT_A_TIME)
        carry = jnp.zeros(len(images)), jnp.full(len(images), -jnp.inf)
        keys = jax.random.split(weight_key, whole + 1)
        if whole:
            step = lambda carry, key: (more(carry, SAMPLES_AT_A_TIME, key), None)
            carry, _ = jax.lax.scan(step, carry, keys[:whole])
        if rest:
            carry = more(carry, rest, keys[-1])
        total, log_total = carry
        return jnp.sum(total / samples), jnp.sum(log_total - jnp.log(samples))

    numbers = jnp.arange(len(pieces), dtype=jnp.int32)
    elbo, bound = jax.lax.map(bounds, (numbers, pieces))
    return jnp.sum(elbo), jnp.sum(bound)
