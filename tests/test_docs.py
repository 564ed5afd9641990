"""The code in the documentation runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from marks import slow

ROOT = Path(__file__).parent.parent


def python_blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


pytestmark = pytest.mark.usefixtures("standard_promotion")


EXPECTED = {
    "README.md": {"grad.shape": (10,), "cv_grad.gram.shape": (10, 3, 3)},
    "docs/add-an-estimator.md": {"result['LinearBaseline(2)'].evaluations": 2},
    "docs/from-optax.md": {
        "float(difference) < 1e-5": True,
        "bool(variances[0] < variances[1] / 5)": True,
        "bool(jnp.allclose(jnp.mean(with_h, axis=0), exact, atol=0.01))": True,
        "bool(jnp.allclose(by_values, exact, atol=0.1))": True,
        "bool(jnp.allclose(by_measures, by_path, atol=0.1))": True,
    },
}


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "docs/index.md",
        "docs/add-an-estimator.md",
        *slow(
            "docs/from-optax.md",
            "docs/objectives.md",
            "docs/bounds.md",
            "docs/sequences.md",
            "docs/stochastic-programs.md",
        ),
    ],
)
def test_code_runs(name):
    blocks = python_blocks(name)
    assert len(blocks) >= 2
    scope = {}
    for block in blocks:
        exec(compile(block, name, "exec"), scope)
    expected = EXPECTED.get(name, {})
    assert {expression: eval(expression, scope) for expression in expected} == expected


@pytest.fixture
def hooks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))


def test_tutorial_is_a_notebook(hooks):
    from notebook import notebook

    text = (ROOT / "docs/tutorial.md").read_text()
    stored = json.loads(json.dumps(notebook(text)))
    kinds = {cell["cell_type"] for cell in stored["cells"]}
    assert kinds == {"code", "markdown"}
    assert len({cell["id"] for cell in stored["cells"]}) == len(stored["cells"])
    code = [cell["source"] for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert code == [block.strip() for block in python_blocks("docs/tutorial.md")]
    scope = {}
    for cell in code:
        exec(compile(cell, "tutorial", "exec"), scope)
    rows = {row.name: row for row in scope["table"].rows}
    assert "biased" in str(scope["table"])
    assert not rows["Bronco(1)"].biased
    assert rows["Bronco(1)"].variance < rows["RLOO(2)"].variance


@pytest.mark.slow
def test_control_variates_inside_modules():
    scope = {}
    for block in python_blocks("docs/modules.md"):
        exec(compile(block, "modules", "exec"), scope)
    assert scope["params"]["encoder"]["kernel"].shape == (64, 16)


def test_readme_shows_the_commands():
    readme = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for command in ("run", "test", "docs"):
        assert f"make {command}" in readme
        assert f"\n{command}:" in makefile


DEVICES = """
import jax, jax.numpy as jnp, numpy as np
for block in {blocks!r}:
    exec(block)
assert jax.device_count() == 2
assert len(grads.parameters.sharding.device_set) == 2
one = jax.device_put((logits, cv), jax.devices()[0])
_, alone = gradients(*one, jax.random.key(1))
for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(alone), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
assert logits_grad.shape == (8, 20)
assert jax.tree.all(jax.tree.map(lambda g: bool(jnp.all(jnp.isfinite(g))), cv_grad))
print("done")
"""


@pytest.mark.slow
def test_devices():
    """The code of the page runs on two devices, and its first half gives the same as on one."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    code = DEVICES.format(blocks=python_blocks("docs/devices.md"))
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.stdout == "done\n", run.stderr[-3000:]
