"""The gallery's problems run, with a small budget."""

import runpy
import sys
from pathlib import Path

import pytest

GALLERY = Path(__file__).parent.parent / "examples" / "gallery"
SMALL = {
    "addition": ["--steps", "50", "--seeds", "1"],
    "advantages": ["--draws", "1000"],
    "black_box": ["--steps", "20", "--seeds", "1"],
    "free_energy": ["--steps", "20"],
    "subsets": ["--steps", "5", "--seeds", "1"],
}
pytestmark = pytest.mark.usefixtures("standard_promotion")


def test_all_are_here():
    assert {path.stem for path in GALLERY.glob("*.py")} == SMALL.keys()
    assert all(len(path.read_text().splitlines()) <= 150 for path in GALLERY.glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_runs(name, tmp_path, monkeypatch, capsys):
    picture = tmp_path / "picture.png"
    monkeypatch.setattr(sys, "argv", [name, *SMALL[name], "--out", str(picture)])
    runpy.run_path(str(GALLERY / f"{name}.py"), run_name="__main__")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "│" in capsys.readouterr().out
