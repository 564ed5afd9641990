"""The Ising example, with a tiny budget."""

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import ising  # pyright: ignore[reportMissingImports]


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.slow
def test_the_example_agrees_with_what_is_exact():
    rows = ising.main(["--sweeps", "40", "--chains", "400", "--side", "8", "--steps", "15"])
    by_name = {name: (estimate - exact) / error for name, estimate, error, exact in rows}
    assert len(by_name) == 7
    assert max(abs(z) for name, z in by_name.items() if "coupling 0" not in name) < 4
    # An 8 × 8 lattice is a little more ordered than an infinite one.
    for name, estimate, _, exact in rows[-3:]:
        assert abs(estimate - exact) < 0.1 * abs(exact), name


def test_the_infinite_lattice():
    """The values are right near the critical coupling, on both sides, and in a series expansion."""
    for coupling in (ising.CRITICAL - 1e-7, ising.CRITICAL + 1e-7):
        assert ising.infinite_lattice(coupling)[0] == pytest.approx(-math.sqrt(2), abs=1e-5)
    assert ising.infinite_lattice(0.01)[0] == pytest.approx(-2 * math.tanh(0.01), rel=1e-3)
    energy, magnetisation = ising.infinite_lattice(1.0)
    assert energy == pytest.approx(-2, abs=0.01)
    assert magnetisation == pytest.approx(1 - 2 * math.exp(-8), abs=1e-4)
