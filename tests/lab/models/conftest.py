"""Set-up of the tests of models."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _standard_promotion():
    """Models use no optimiser: the strict rules stay."""
