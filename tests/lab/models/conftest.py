"""Fixtures for the tests of `steingrad_lab.models`."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _standard_promotion():
    """Keeps strict dtype promotion: models use no optimiser, so they do not need the exception."""
