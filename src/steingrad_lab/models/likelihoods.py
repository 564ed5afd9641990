"""Likelihoods: the distribution of an image given the output of the decoder."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, UInt8

from steingrad.fast import sum_of_events

from ..data import binarize, rescale, to_unit


class BernoulliLikelihood(eqx.Module):
    """Binary pixels, drawn from the grey values each time an image is used.

    With `grey`, nothing is drawn: the pixels keep their grey values between 0 and 1. The
    cross-entropy with grey values is the mean of the cross-entropies with drawn pixels.

    >>> import jax.numpy as jnp
    >>> float(BernoulliLikelihood().log_prob(jnp.array([0.0, 0.0]), jnp.array([1.0, 0.0])).round(3))
    -1.386...
    """

    grey: bool = eqx.field(static=True, default=False)
    """Whether the grey values are used as they are."""

    def observe(self, key: PRNGKeyArray, images: UInt8[Array, "... pixels"]):
        """Returns the input of the model for stored images: binary pixels, drawn at random, or
        grey values between 0 and 1."""
        return to_unit(images) if self.grey else binarize(key, images)

    def log_prob(
        self, outputs: Float[Array, "... pixels"], y: Float[Array, "... pixels"]
    ) -> Float[Array, "..."]:
        r"""Returns $\log p(y \mid x)$, where `outputs` are the logits."""
        return sum_of_events(y * outputs - jax.nn.softplus(outputs))

    def mean(self, outputs: Float[Array, "... pixels"]) -> Float[Array, "... pixels"]:
        """Returns the mean image, with values between 0 and 1."""
        return jax.nn.sigmoid(outputs)


class GaussianLikelihood(eqx.Module):
    """Pixels in [-1, 1], each with a learned variance max(softplus(v), 1e-3). Initially v = -0.5.

    >>> import jax.numpy as jnp
    >>> likelihood = GaussianLikelihood(2)
    >>> likelihood.log_prob(jnp.zeros(2), jnp.zeros(2)).shape
    ()
    """

    raw_variance: Float[Array, " pixels"]

    def __init__(self, pixels: int):
        self.raw_variance = jnp.full(pixels, -0.5)

    def observe(self, key: PRNGKeyArray, images: UInt8[Array, "... pixels"]):
        """Returns the input of the model for stored images: pixels in [-1, 1]."""
        return rescale(images)

    def log_prob(
        self, outputs: Float[Array, "... pixels"], y: Float[Array, "... pixels"]
    ) -> Float[Array, "..."]:
        r"""Returns $\log p(y \mid x)$, where `outputs` are the means."""
        variance = jnp.maximum(jax.nn.softplus(self.raw_variance), 1e-3)
        constant = -0.5 * jnp.sum(jnp.log(variance) + math.log(2 * math.pi))
        return constant - sum_of_events((0.5 / variance) * (y - outputs) ** 2)

    def mean(self, outputs: Float[Array, "... pixels"]) -> Float[Array, "... pixels"]:
        """Returns the mean image, with values between 0 and 1."""
        return (jnp.clip(outputs, -1, 1) + 1) / 2


Likelihood = BernoulliLikelihood | GaussianLikelihood
