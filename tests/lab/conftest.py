"""Set-up of the tests of the laboratory."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _standard_promotion(standard_promotion):
    """Training steps mix types, as optax does."""
