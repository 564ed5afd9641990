"""The code in "From PyTorch" runs."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: run `make test-torch`")

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "from-pytorch.md"


def test_code_runs():
    scope = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(block, PAGE.name, "exec"), scope)
    assert scope["selected"] == [3, 11, 20]
    assert all(p.grad is not None for p in scope["vae"].parameters())
