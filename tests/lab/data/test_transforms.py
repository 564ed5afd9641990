"""The transformations of pixels inside the compiled step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steingrad_lab import data


def test_binarize_draws_every_grey_with_its_probability():
    n = 40_000
    greys = jnp.tile(jnp.arange(256, dtype=jnp.uint8), (n, 1))
    drawn = jax.jit(data.binarize)(jax.random.key(0), greys)
    assert drawn.dtype == jnp.float32
    assert set(np.unique(drawn)) == {0.0, 1.0}
    p = np.arange(256) / 255
    mean = np.asarray(drawn, np.float64).mean(0)
    assert mean[0] == 0
    assert mean[255] == 1
    z = (mean - p)[1:-1] / np.sqrt(p * (1 - p) / n)[1:-1]
    assert np.abs(z).max() < 4.5  # of 254 z-scores one exceeds 4.5 in 600 seeds
    assert abs((z**2).mean() - 1) < 4 * np.sqrt(2 / 254)


def test_binarize_anew_with_every_key():
    grey = jnp.full((100, 64), 128, jnp.uint8)
    first, second = (data.binarize(jax.random.key(seed), grey) for seed in (0, 1))
    assert 0.4 < float((first != second).mean()) < 0.6
    np.testing.assert_array_equal(first, data.binarize(jax.random.key(0), grey))


def test_binary_data_stay_as_they_are():
    bits = np.array([[0, 255, 255], [255, 0, 0]], np.uint8)
    for seed in range(5):
        drawn = data.binarize(jax.random.key(seed), bits)
        np.testing.assert_array_equal(drawn, bits / 255)


def test_rescale_maps_bytes_to_minus_one_to_one():
    greys = jnp.arange(256, dtype=jnp.uint8)
    scaled = jax.jit(data.rescale)(greys)
    assert scaled.dtype == jnp.float32
    np.testing.assert_allclose(scaled, 2 * np.arange(256) / 255 - 1, atol=2e-7)


def test_other_dtypes_are_rounded_once():
    greys = jnp.arange(256, dtype=jnp.uint8)
    assert data.binarize(jax.random.key(0), greys, dtype=jnp.bfloat16).dtype == jnp.bfloat16
    np.testing.assert_array_equal(
        data.rescale(greys, dtype=jnp.bfloat16), data.rescale(greys).astype(jnp.bfloat16)
    )


@pytest.mark.parametrize("images", [jnp.ones(3), jnp.ones(3, jnp.int32)])
def test_only_bytes_are_pixels(images):
    from steingrad_lab.data import transforms

    # Called without the jaxtyping wrapper, which would raise its own error first.
    with pytest.raises(TypeError, match="uint8"):
        transforms.binarize.__wrapped__(jax.random.key(0), images)
    with pytest.raises(TypeError, match="uint8"):
        transforms.rescale.__wrapped__(images)
