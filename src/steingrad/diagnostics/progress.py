"""A bar on standard error, where somebody may be watching."""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(total: int | float) -> Iterator[Callable[[str, int | float], None]]:
    """Yields what to call with what comes next and how much is done. No bar where standard error
    is not a terminal, or `rich` is not installed."""
    rich = _rich() if sys.stderr.isatty() else None
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
