"""The built and installed package works."""

import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def run(*command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_one_version():
    assert re.search(rf"^## \[{re.escape(VERSION)}\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, ROOT)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


@pytest.mark.slow
def test_contents(built):
    wheel, sdist = built
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    package = {str(p.relative_to(ROOT / "src")) for p in (ROOT / "src").rglob("*") if p.is_file()}
    package = {name for name in package if "__pycache__" not in name and ".egg-info" not in name}
    info = f"steingrad-{VERSION}.dist-info/"
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in inside if not name.startswith(info)} == package
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in package} <= names
    assert {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "tests/conftest.py"} <= names
    assert not {name for name in names if name.split("/")[0] in ("results", "docs", "site", ".ci")}


@pytest.mark.slow
def test_installed_alone(built, tmp_path):
    """After `pip install` of the wheel alone, the library part of the README runs, and the command
    names the extra that it needs."""
    wheel, _ = built
    venv.create(tmp_path / "env", with_pip=True)
    binaries = next(p for p in ((tmp_path / "env" / d) for d in ("bin", "Scripts")) if p.is_dir())
    python = binaries / "python"
    run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 2
    (tmp_path / "readme.py").write_text("\n".join(blocks))
    run(python, "readme.py", cwd=tmp_path)
    print_version = "import steingrad; print(steingrad.__version__)"
    assert run(python, "-c", print_version, cwd=tmp_path).strip() == VERSION
    command = subprocess.run(
        [binaries / "steingrad", "--help"], capture_output=True, text=True, cwd=tmp_path
    )
    assert command.returncode != 0
    assert "steingrad[experiments]" in command.stderr
