"""The reference contains every public name and explains every argument."""

import ast
import inspect
import itertools
import re
import textwrap
from pathlib import Path

import pytest

import steingrad as sg
from steingrad import diagnostics

PAGES = Path(__file__).parent.parent / "docs" / "reference"


def public(module, prefix):
    return {
        f"{prefix}.{name}": thing
        for name, thing in vars(module).items()
        if not name.startswith("_")
        and callable(thing)
        and getattr(thing, "__module__", "").startswith("steingrad")
    }


NAMES = public(sg, "steingrad") | public(diagnostics, "steingrad.diagnostics")


def text_of(thing):
    """The docstring without its examples, and the names of the fields that have docstrings."""
    lines = (inspect.getdoc(thing) or "").splitlines()
    said = [line for line in lines if not line.lstrip().startswith((">>>", "..."))]
    for base in getattr(thing, "__mro__", ()):
        if base.__module__.startswith("steingrad"):
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body
            for field, text in itertools.pairwise(body):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    said.append(field.target.id)
    return "\n".join(said)


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_explained(name):
    arguments = inspect.signature(NAMES[name]).parameters
    said = text_of(NAMES[name])
    assert [a for a in arguments if not re.search(rf"\b{a}\b", said)] == []


def test_every_name_has_its_place():
    shown = {
        line.split()[1].split(".")[-1]
        for page in PAGES.glob("*.md")
        for line in page.read_text().splitlines()
        if line.startswith(":::")
    }
    assert {name for name in NAMES if name.split(".")[-1] not in shown} == set()


def test_an_argument_that_is_not_explained_is_seen():
    def f(size, colour):
        """Of a given `size`.

        >>> f(1, colour=2)
        """

    said = text_of(f)
    assert re.search(r"\bsize\b", said)
    assert not re.search(r"\bcolour\b", said)
