"""Fixtures for the tests of `steingrad_lab`."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _standard_promotion(standard_promotion):
    """Allows implicit dtype promotion, because optax relies on it in training steps."""
