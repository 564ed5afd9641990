"""A package imports only from packages to its left, and the library never the laboratory."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import steingrad

SOURCE = Path(steingrad.__file__).parent.parent
# From left to right; packages in one line do not import each other.
LIBRARY = [
    ("compatibility",),
    ("arrays", "derivatives", "fast"),
    ("draws",),
    ("distributions",),
    ("objective",),
    ("operators",),
    ("surrogates",),
    ("estimators",),
    ("advantages", "cv_optimizer", "exact", "expectation", "policy_gradient", "sample"),
    ("bounds",),
    ("diagnostics", "numpyro", "torch"),
    ("__init__",),
]
LABORATORY = [
    ("__init__", "data"),
    ("models",),
    ("estimators",),
    ("settings",),
    ("training",),
    ("paper",),
    ("sweeps", "report"),
    ("cli",),
    ("__main__",),
]
PLACE = {
    f"{package}.{room}": place
    for package, order, first in (("steingrad", LIBRARY, 0), ("steingrad_lab", LABORATORY, 100))
    for place, rooms in enumerate(order, first)
    for room in rooms
}
NEEDED = {"jax", "jaxtyping", "equinox", "optax", "numpy", *sys.stdlib_module_names}


def room(path: Path) -> str:
    package, first, *_ = path.relative_to(SOURCE).parts
    return f"{package}.{first.removesuffix('.py')}"


def imports(path: Path) -> set[str]:
    """The absolute names of all modules that a file imports, anywhere in the file."""
    package = path.relative_to(SOURCE).parts[:-1]
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            whole = ".".join([*base, *([node.module] if node.module else [])])
            # In `from .. import data` the name is the package, in `from ..data import load` the
            # module is.
            inside = not node.module or whole in ("steingrad", "steingrad_lab")
            names.update([f"{whole}.{a.name}" for a in node.names] if inside else [whole])
    return names


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_come_from_the_left(path):
    here = room(path)
    assert here in PLACE, f"{here} is a room that the orders above do not know"
    rooms = {".".join(name.split(".")[:2]) for name in imports(path)} & set(PLACE) - {here}
    assert {room for room in rooms if PLACE[room] >= PLACE[here]} == set()


def test_the_library_needs_five_packages():
    inside = [path for path in FILES if PLACE[room(path)] <= PLACE["steingrad.expectation"]]
    assert len(inside) > 20
    for path in inside:
        outside = {name.split(".")[0] for name in imports(path)} - {"steingrad"}
        assert outside <= NEEDED, f"{path} imports {outside - NEEDED}"


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_library_imports_no_laboratory():
    loaded = loaded_by("import steingrad")
    assert "steingrad.estimators" in loaded
    assert not loaded & {"steingrad_lab", "steingrad.diagnostics", "steingrad.torch"}
    assert not loaded & {"steingrad.numpyro", "numpyro"}


def test_without_numpyro_the_error_says_what_to_install():
    code = "import sys; sys.modules['numpyro'] = None; import steingrad; steingrad.numpyro"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError: steingrad.numpyro needs numpyro" in done.stderr
    assert "pip install 'steingrad[numpyro]'" in done.stderr


def test_importing_the_laboratory_imports_no_jax():
    """The command must be able to handle Ctrl-C while JAX is being imported."""
    loaded = loaded_by("import steingrad_lab.__main__")
    assert "steingrad_lab" in loaded
    assert not loaded & {"jax", "numpy", "steingrad"}


def kinds_asked_for(path: Path) -> list[str]:
    """The classes of distributions that a file asks for with `isinstance`."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            names = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
            found += sorted(names & DISTRIBUTIONS)
    return found


DISTRIBUTIONS = {
    name
    for name, kind in vars(steingrad.distributions).items()
    if isinstance(kind, type) and issubclass(kind, steingrad.Distribution)
}
# Where an argument of a user is checked at a door.
DOORS = {
    "steingrad/estimators/base.py": ["Distribution"],
    "steingrad/estimators/checks.py": ["Distribution"],
    "steingrad/policy_gradient.py": ["Autoregressive"],
}


def test_only_doors_ask_for_the_kind_of_a_distribution():
    outside = [path for path in FILES if room(path) != "steingrad.distributions"]
    asked = {str(path.relative_to(SOURCE)): kinds_asked_for(path) for path in outside}
    assert {path: kinds for path, kinds in asked.items() if kinds} == DOORS
    assert "Joint" in DISTRIBUTIONS


def test_no_estimator_operator_or_surrogate_knows_a_joint():
    rooms = {"steingrad.estimators", "steingrad.operators", "steingrad.surrogates"}
    for path in FILES:
        if room(path) in rooms:
            names = {n.id for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Name)}
            assert "Joint" not in names, path


def test_no_estimator_imports_another():
    """What estimators share has files of its own."""
    folder = SOURCE / "steingrad" / "estimators"
    public = {kind.__module__ for kind in vars(steingrad).values() if _is_estimator(kind)}
    for path in folder.glob("*.py"):
        here = f"steingrad.estimators.{path.stem}"
        if path.stem != "__init__":
            others = public - {here, "steingrad.estimators.base"}
            assert not imports(path) & others, path


def _is_estimator(kind) -> bool:
    return isinstance(kind, type) and issubclass(kind, steingrad.Estimator)
