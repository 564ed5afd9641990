"""Show the examples in docstrings, which are doctests, as blocks of code."""

import re

import griffe

BLOCK = re.compile(r"^>>> .*?(?=^\s*$|\Z)", re.MULTILINE | re.DOTALL)


class Doctests(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_) -> None:
        if obj.docstring is not None:
            fence = lambda block: f"```pycon\n{block.group().rstrip()}\n```\n"
            obj.docstring.value = BLOCK.sub(fence, obj.docstring.value)
