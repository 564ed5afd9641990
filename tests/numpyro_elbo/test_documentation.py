"""The code in "With numpyro" runs."""

import pytest

numpyro = pytest.importorskip("numpyro", reason="numpyro is missing: run `make test-numpyro`")

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "numpyro.md"


def test_code_runs():
    scope = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(block, PAGE.name, "exec"), scope)
    assert scope["accuracy"] > 0.9
    assert scope["result"].losses[-100:].mean() < scope["result"].losses[:10].mean()
