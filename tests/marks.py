"""Cases of a parametrised test that only `make test-all` runs."""

import pytest


def slow(*cases):
    """Mark cases as slow. A case is a value, or a tuple of values if there are several
    parameters."""
    values = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*value, marks=pytest.mark.slow) for value in values]
