"""Write the metrics of a run for TensorBoard, in addition to `metrics.jsonl`."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .runs import RunError
from .stored import numbers_of


def writer_class() -> Any:
    try:
        from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise RunError(
            "TensorBoard output needs the package tensorboardX, which is not installed: "
            "run pip install 'steingrad[tensorboard]'."
        ) from None
    return SummaryWriter


@contextlib.contextmanager
def events(
    writer: Any, path: Path, seeds: tuple[int, ...], step: int
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yields a function that writes a line of metrics into a folder for each seed.

    TensorBoard hides what an interrupted run wrote after `step`, from which the run continues.
    """
    folders = {seed: str(path / "tensorboard" / f"seed-{seed}") for seed in seeds}
    writers = {seed: writer(folder, purge_step=step + 1) for seed, folder in folders.items()}

    def write(line: dict[str, Any]) -> None:
        for name, value in numbers_of(line).items():
            writers[line["seed"]].add_scalar(name, value, line["step"])

    try:
        yield write
    finally:
        for writer in writers.values():
            writer.close()
