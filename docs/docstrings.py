"""Adjust what the reference shows: examples as code, and arguments that are listed elsewhere."""

import re

import griffe

BLOCK = re.compile(r"^>>> .*?(?=^\s*$|\Z)", re.MULTILINE | re.DOTALL)
# Functions with this decorator are called with the arguments of the function that it names.
TAKES = re.compile(r"_takes\((\w+)\)")


class Docstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_) -> None:
        """Show the examples in docstrings, which are doctests, as blocks of code."""
        if obj.docstring is not None:
            fence = lambda block: f"```pycon\n{block.group().rstrip()}\n```\n"
            obj.docstring.value = BLOCK.sub(fence, obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_) -> None:
        """Show the arguments with which a decorated function is called."""
        if pkg.name != "steingrad":
            return
        for function in pkg["expectation"].functions.values():
            for decorator in function.decorators:
                if match := TAKES.search(str(decorator.value)):
                    function.parameters = pkg["estimators.base"][match[1]].parameters
