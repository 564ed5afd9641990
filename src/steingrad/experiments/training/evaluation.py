"""Bounds of a trained model on a whole split."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8

from ...models import VAE

IMAGES_AT_A_TIME = 100
SAMPLES_AT_A_TIME = 20


class Bounds(NamedTuple):
    """Means over a split."""

    elbo: float
    """The ELBO."""
    bound: float
    """The importance-weighted bound (Burda et al. 2016); with one sample, the ELBO."""


def evaluate(
    model: VAE,
    images: UInt8[np.ndarray, "images pixels"],
    samples: int,
    key: PRNGKeyArray,
    watch: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> Bounds:
    r"""ELBO and $E[\log \frac1S \sum_s p(y, x_s) / q(x_s \mid y)]$ over images, $S$ = `samples`.

    Images and samples are taken a few at a time, so that any number of either fits in memory;
    `watch` is given the pieces and passes them on, one by one, as they are begun.
    """
    pieces = []
    for number, start in enumerate(watch(range(0, len(images), IMAGES_AT_A_TIME))):
        piece = images[start : start + IMAGES_AT_A_TIME]
        # The last piece has the size of the others, for which the program is compiled.
        piece = np.pad(piece, ((0, IMAGES_AT_A_TIME - len(piece)), (0, 0)))
        bounds = _bounds(model, piece, samples, jax.random.fold_in(key, number))
        pieces.append(np.asarray(bounds, np.float64))
    per_image = np.concatenate(pieces, axis=1)
    elbo, bound = np.mean(per_image[:, : len(images)], axis=1)
    return Bounds(float(elbo), float(bound))


def _bounds(
    model: VAE, images: UInt8[np.ndarray, "images pixels"], samples: int, key: PRNGKeyArray
) -> Float[Array, "2 images"]:
    """ELBO and bound of each image."""
    sums = jnp.stack([jnp.zeros(len(images)), jnp.full(len(images), -jnp.inf)])
    for number, start in enumerate(range(0, samples, SAMPLES_AT_A_TIME)):
        count = min(SAMPLES_AT_A_TIME, samples - start)
        key_number = jnp.asarray(number, jnp.int32)
        sums = _add_samples(model, jnp.asarray(images), sums, count, key, key_number)
    return jnp.stack([sums[0] / samples, sums[1] - math.log(samples)])


@eqx.filter_jit
def _add_samples(
    model: VAE,
    images: UInt8[Array, "images pixels"],
    sums: Float[Array, "2 images"],
    samples: int,
    key: PRNGKeyArray,
    number: Int[Array, ""],
) -> Float[Array, "2 images"]:
    """Add samples to the sum of log-weights and to the logarithm of the sum of weights."""
    observe_key, weight_key = jax.random.split(key)
    y = model.likelihood.observe(observe_key, images)
    key = jax.random.fold_in(weight_key, number)
    weights = model.log_weights(y, samples=samples, key=key)
    log_sum = jax.nn.logsumexp(weights, axis=0)
    return jnp.stack([sums[0] + jnp.sum(weights, axis=0), jnp.logaddexp(sums[1], log_sum)])
