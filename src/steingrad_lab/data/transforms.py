"""Turn stored pixels (uint8) into the input of a likelihood, inside the compiled step."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key, UInt8


def _check(images: Array | np.ndarray) -> None:
    if images.dtype != jnp.uint8:
        raise TypeError(f"Images must be uint8 pixels from 0 to 255, but are {images.dtype}.")


def binarize(
    key: Key[Array, ""], images: UInt8[Array | np.ndarray, "*shape"], dtype: DTypeLike = jnp.float32
) -> Float[Array, "*shape"]:
    """Draws each pixel as 0 or 1, with P(1) = value / 255. Use a new key each time.

    >>> binarize(jax.random.key(0), jnp.array([0, 255, 255, 0], jnp.uint8)).tolist()
    [0.0, 1.0, 1.0, 0.0]
    """
    _check(images)
    # The probabilities are float32 whatever the dtype of the result: bfloat16 would round them.
    return jax.random.bernoulli(key, jnp.asarray(images, jnp.float32) / 255).astype(dtype)


def to_unit(
    images: UInt8[Array | np.ndarray, "*shape"], dtype: DTypeLike = jnp.float32
) -> Float[Array, "*shape"]:
    """Maps pixels to [0, 1]: value / 255.

    >>> to_unit(jnp.array([0, 51, 255], jnp.uint8)).round(3).tolist()
    [0.0, 0.200..., 1.0]
    """
    _check(images)
    return (jnp.asarray(images, jnp.float32) / 255).astype(dtype)


def rescale(
    images: UInt8[Array | np.ndarray, "*shape"], dtype: DTypeLike = jnp.float32
) -> Float[Array, "*shape"]:
    """Maps pixels to [-1, 1] for a Gaussian likelihood: 2 · value / 255 − 1.

    >>> rescale(jnp.array([0, 51, 255], jnp.uint8)).round(3).tolist()
    [-1.0, -0.600..., 1.0]
    """
    _check(images)
    return (jnp.asarray(images, jnp.float32) / 127.5 - 1).astype(dtype)
