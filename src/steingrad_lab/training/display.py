"""Progress: a live bar in a terminal, and lines of text otherwise."""

import time
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from ..data import label
from .config import Config
from .stored import numbers_of

BarsT = TypeVar("BarsT", bound="_Bars")


class _Yielding(ProgressColumn):
    """A column that is shortened first when the terminal is too narrow. It has no markup."""

    def __init__(self, text: str):
        super().__init__()
        self.text = text

    def render(self, task: Task) -> Text:
        return Text(self.text.format(task=task), no_wrap=True, overflow="ellipsis")


class _Bars:
    """Progress bars, shown between enter and exit if stderr is a terminal."""

    def __init__(self, quiet: bool, *columns: ProgressColumn):
        self.console = Console(stderr=True, quiet=quiet, markup=False, emoji=False)
        self.live = self.console.is_terminal and not quiet
        self.progress = Progress(*columns, console=self.console, disable=not self.live)

    def __enter__(self: BarsT) -> BarsT:
        self.progress.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.progress.__exit__(*exc)
        self.console.file.flush()

    def message(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)


class Display(_Bars):
    """Shows step, speed, remaining time, ELBO and gradient variance of a run."""

    def __init__(self, config: Config, step: int = 0, quiet: bool = False):
        self.config = config
        super().__init__(
            quiet,
            _Yielding("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            _Yielding("{task.fields[numbers]}"),
        )
        self.name = f"{label(config.dataset)} {config.estimator} K={config.samples}"
        self.task = self.progress.add_task(
            self.name, total=config.steps, completed=step, numbers=""
        )

    def message(self, text: str) -> None:
        if self.live:
            self.progress.update(self.task, numbers=text)
        else:
            super().message(f"{self.name}: {text}")

    def advance(self, step: int) -> None:
        self.progress.update(self.task, completed=step)

    def report(self, lines: list[dict[str, Any]]) -> None:
        mean = {
            name: sum(line[name] for line in lines) / len(lines)
            for name in ("objective", "grad_variance", "ms_per_step")
        }
        numbers = (
            f"ELBO {mean['objective']:.2f}  variance {mean['grad_variance']:.3g}  "
            f"{mean['ms_per_step']:.1f} ms/step"
        )
        if self.live:
            self.progress.update(self.task, numbers=numbers)
        else:
            step = lines[0]["step"]
            left = (self.config.steps - step) * mean["ms_per_step"] / 1000
            self.message(f"step {step}/{self.config.steps}  {numbers}  {left:.0f} s left")

    def final(self, line: dict[str, Any]) -> None:
        text = "  ".join(f"{name} {value:.2f}" for name, value in numbers_of(line).items())
        super().message(f"{self.name} seed {line['seed']}: {text}")


class SweepDisplay(_Bars):
    """Shows many runs: one bar for all steps, and one for each run in progress."""

    PLAIN_SECONDS = 60
    """Seconds between two lines of text if there is no terminal."""

    def __init__(self, step: int, steps: int, quiet: bool = False):
        super().__init__(
            quiet,
            _Yielding("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed}/{task.total} steps"),
            TextColumn("{task.fields[note]}", markup=False),
        )
        self.total = self.progress.add_task("all runs", completed=step, total=steps, note="")
        self.steps = steps
        self.lines: dict[str, Any] = {}
        self.last_line = time.monotonic()

    def start(self, name: str, step: int, steps: int) -> None:
        self.lines[name] = self.progress.add_task(name, completed=step, total=steps, note="")
        if not self.live:
            self.message(f"{name}: from step {step} to {steps}")

    def stop(self, name: str) -> None:
        self.progress.remove_task(self.lines.pop(name))

    def run(self, name: str, step: int, ms: float | None) -> None:
        note = "" if ms is None else f"{ms:.1f} ms/step"
        self.progress.update(self.lines[name], completed=step, note=note)

    def overall(self, step: int, seconds: float) -> None:
        left = f"about {duration(seconds)} left"
        self.progress.update(self.total, completed=step, note=left)
        if not self.live and time.monotonic() - self.last_line > self.PLAIN_SECONDS:
            self.last_line = time.monotonic()
            self.message(f"{step}/{self.steps} steps, {len(self.lines)} runs at work, {left}")


def duration(seconds: float) -> str:
    """Formats a length of time in a suitable unit.

    >>> duration(42.0), duration(600.0), duration(30_000.0), duration(1e6)
    ('42 s', '10 min', '8.3 h', '11.6 days')
    """
    for size, unit, digits in ((86400, "days", 1), (3600, "h", 1), (60, "min", 0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds:.0f} s"
