"""Progress: a live bar in a terminal, plain lines elsewhere."""

import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .config import Config


class Display:
    """Shows step, rate, remaining time, ELBO and variance while a run goes on."""

    def __init__(self, config: Config, step: int = 0, quiet: bool = False):
        self.config = config
        self.console = Console(stderr=True, quiet=quiet)
        self.live = self.console.is_terminal and not quiet
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps"),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.live,
        )
        self.name = f"{config.dataset} {config.estimator} K={config.samples}"
        self.task = self.progress.add_task(
            self.name, total=config.steps, completed=step, numbers=""
        )

    def __enter__(self) -> "Display":
        self.progress.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.progress.__exit__(*exc)
        sys.stderr.flush()

    def message(self, text: str) -> None:
        if self.live:
            self.progress.update(self.task, numbers=text)
        else:
            self.console.print(f"{self.name}: {text}", highlight=False, soft_wrap=True)

    def advance(self, step: int) -> None:
        self.progress.update(self.task, completed=step)

    def report(self, lines: list[dict[str, Any]]) -> None:
        count = len(lines)
        mean = {
            name: sum(line[name] for line in lines) / count
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
        text = "  ".join(
            f"{name} {value:.2f}"
            for name, value in line.items()
            if name not in ("step", "seed", "final")
        )
        self.console.print(
            f"{self.name} seed {line['seed']}: {text}", highlight=False, soft_wrap=True
        )
