"""A progress bar on standard error, if this is a terminal."""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(total: int | float) -> Iterator[Callable[[str, int | float], None]]:
    """Yields a function to call with a description and the amount that is done. There is no bar if
    standard error is not a terminal, or if `rich` is not installed."""
    shown = sys.stderr is not None and sys.stderr.isatty()  # it is None if it was closed
    rich = _rich() if shown else None
    if rich is None:
        yield lambda description, completed: None
        return
    console = importlib.import_module("rich.console").Console(stderr=True)
    with rich.Progress(console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda description, completed: bar.update(
            task, description=description, completed=completed
        )


def _rich():
    try:
        return importlib.import_module("rich.progress")
    except ImportError:
        return None
