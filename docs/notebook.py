"""MkDocs hook: a notebook beside each page of `PAGES`, made of its text and its code."""

import json
import re

from mkdocs.structure.files import File

PAGES = ("tutorial.md",)
CODE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def notebook(markdown: str) -> dict:
    """Text and blocks of Python, in turn, as the cells of a notebook (nbformat 4.5)."""
    cells = []
    for number, piece in enumerate(CODE.split(markdown)):
        if not piece.strip():
            continue
        cell = {"id": f"cell-{number}", "metadata": {}, "source": piece.strip()}
        if number % 2:
            cell |= {"cell_type": "code", "execution_count": None, "outputs": []}
        else:
            cell |= {"cell_type": "markdown"}
        cells.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def on_files(files, config):
    for name in PAGES:
        text = json.dumps(notebook(files.get_file_from_path(name).content_string), indent=1)
        generated = File.generated(config, name.replace(".md", ".ipynb"), content=text)
        files.append(generated)
    return files
