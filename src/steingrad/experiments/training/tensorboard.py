"""The metrics of a run for TensorBoard, beside `metrics.jsonl`."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .runs import RunError
from .summary import numbers_of


@contextlib.contextmanager
def tensorboard(path: Path, seeds: tuple[int, ...]) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that writes a line of metrics, to a folder for each seed."""
    try:
        from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise RunError(
            "TensorBoard needs an extra: pip install 'steingrad[tensorboard]'."
        ) from None
    writers = {seed: SummaryWriter(str(path / "tensorboard" / f"seed-{seed}")) for seed in seeds}

    def write(line: dict[str, Any]) -> None:
        for name, value in numbers_of(line).items():
            writers[line["seed"]].add_scalar(name, value, line["step"])

    try:
        yield write
    finally:
        for writer in writers.values():
            writer.close()
