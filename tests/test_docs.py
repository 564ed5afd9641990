"""The code in the documentation runs."""

import re
from pathlib import Path

import jax.numpy as jnp
import pytest

ROOT = Path(__file__).parent.parent


def python_blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


pytestmark = pytest.mark.usefixtures("standard_promotion")


@pytest.mark.parametrize(
    "name", ["README.md", "docs/add-an-estimator.md", "docs/objectives.md", "docs/sequences.md"]
)
def test_code_runs(name):
    blocks = python_blocks(name)
    assert len(blocks) >= 2
    scope = {}
    for block in blocks:
        exec(compile(block, name, "exec"), scope)
    if name == "README.md":
        assert scope["grad"].shape == (10,)
        assert jnp.shape(scope["cv_grad"].alpha) == ()
    elif name == "docs/add-an-estimator.md":
        assert scope["result"]["LinearBaseline(2)"].evaluations == 2


def test_readme_shows_the_commands():
    readme = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for command in ("run", "test", "docs"):
        assert f"make {command}" in readme
        assert f"\n{command}:" in makefile
