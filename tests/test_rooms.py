"""A room imports only from rooms to its left, and the library needs no experiments."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import steingrad

PACKAGE = Path(steingrad.__file__).parent
# From left to right; rooms in one line do not know each other.
ORDER = [
    ("arrays", "derivatives"),
    ("distributions",),
    ("objective",),
    ("operators",),
    ("surrogates",),
    ("estimators",),
    ("advantages", "cv_optimizer", "exact", "expectation", "policy_gradient"),
    ("diagnostics", "torch"),
    ("data",),
    ("models",),
    ("experiments",),
    ("cli",),
    ("__init__", "__main__"),
]
PLACE = {room: place for place, rooms in enumerate(ORDER) for room in rooms}
LIBRARY = {"jax", "jaxtyping", "equinox", "optax", "numpy", *sys.stdlib_module_names}


def room(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The absolute names of all modules that a file imports, wherever in it."""
    package = ["steingrad", *path.relative_to(PACKAGE).parts[:-1]]
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            whole = ".".join([*base, *([node.module] if node.module else [])])
            # `from .. import data` names a room, `from ..data import load` says it before.
            names.update([whole] if node.module else [f"{whole}.{a.name}" for a in node.names])
    return names


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_come_from_the_left(path):
    here = room(path)
    assert here in PLACE, f"{here} is a room that ORDER does not know"
    # `import steingrad` itself names no room.
    names = [[*name.split("."), here] for name in imports(path)]
    rooms = {parts[1] for parts in names if parts[0] == "steingrad"} - {here, "__version__"}
    assert {room for room in rooms if PLACE[room] >= PLACE[here]} == set()


def test_the_library_needs_four_packages():
    inside = [path for path in FILES if PLACE[room(path)] <= PLACE["expectation"]]
    assert len(inside) > 20
    for path in inside:
        outside = {name.split(".")[0] for name in imports(path)} - {"steingrad"}
        assert outside <= LIBRARY, f"{path} imports {outside - LIBRARY}"


def test_importing_the_library_imports_no_experiments():
    code = "import sys, steingrad; print(*[m for m in sys.modules if m.startswith('steingrad.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[1] for name in done.stdout.split()}
    assert "estimators" in loaded
    assert not loaded & {"models", "data", "experiments", "cli", "diagnostics", "torch"}
