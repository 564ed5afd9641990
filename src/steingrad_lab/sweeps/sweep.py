"""Train many runs with an engine. A run that fails is tried once more."""

import dataclasses
import os
import time
from collections import deque
from pathlib import Path

from .. import data
from ..training.display import SweepDisplay
from ..training.schedule import Schedule
from .costs import Costs, last_lines, measured_ms
from .engines import Engine
from .plan import Planned, plan, seconds_left
from .worker import Job

POLL_SECONDS = 0.1
REFRESH_SECONDS = 1.0


def sweep(
    planned: list[Planned],
    out: Path,
    engine: Engine,
    *,
    schedule: Schedule | None = None,
    data_dir: Path | None = None,
    quiet: bool = False,
) -> dict[str, str]:
    """Trains the runs that are left. Returns the error messages of failed runs by their names.

    The engine is always stopped at the end, even after an exception.
    """
    todo = [run for run in planned if run.left]
    try:
        # Loaded before the workers start, so that missing data are downloaded only once.
        for dataset in dict.fromkeys(run.config.dataset for run in todo):
            data.load(dataset, data_dir)
        jobs = [_job(run, out, schedule or Schedule(), data_dir) for run in todo]
        steps = sum(run.config.steps for run in todo)
        with SweepDisplay(sum(run.step for run in todo), steps, quiet) as display:
            return _Sweep(todo, jobs, out, engine, display).carry_out()
    finally:
        engine.stop()


def _job(run: Planned, out: Path, schedule: Schedule, data_dir: Path | None) -> Job:
    """Returns a job with absolute paths: a worker may have another directory and environment."""
    place = data_dir or os.environ.get("STEINGRAD_DATA_DIR")
    where = Path(place).expanduser().absolute() if place else None
    return Job(run.config, (out / run.name).absolute(), schedule, where)


class _Sweep:
    """The waiting, active and failed runs of a sweep."""

    def __init__(self, todo, jobs: list[Job], out: Path, engine: Engine, display: SweepDisplay):
        self.runs: dict[str, Planned] = {run.name: run for run in todo}
        self.waiting = deque(jobs)
        self.active: set[str] = set()
        self.retried: set[str] = set()
        self.broken: dict[str, str] = {}
        self.out, self.engine, self.display = out, engine, display
        self.costs = Costs.read(out)

    def carry_out(self) -> dict[str, str]:
        refreshed = 0.0
        while self.waiting or self.active:
            while self.waiting and len(self.active) < self.engine.slots:
                self._start(self.waiting.popleft())
            for job, problem in self.engine.finished():
                self._end(job, problem)
            if time.monotonic() - refreshed > REFRESH_SECONDS:
                self._refresh()
                refreshed = time.monotonic()
            if self.active:
                time.sleep(POLL_SECONDS)
        self._refresh()
        return self.broken

    def _start(self, job: Job) -> None:
        name = job.folder.name
        self.active.add(name)
        self.display.start(name, self.runs[name].step, job.config.steps)
        self.engine.start(job)

    def _end(self, job: Job, problem: str | None) -> None:
        name = job.folder.name
        self.active.remove(name)
        self.display.stop(name)
        self.runs[name] = plan({name: job.config}, self.out)[0]
        if problem is None:
            self.display.message(f"{name}: finished")
        elif name not in self.retried:
            self.retried.add(name)
            self.waiting.append(job)
            self.display.message(f"{name}: broken, will be tried once more. {problem}")
        else:
            self.broken[name] = problem
            self.display.message(f"{name}: broken. {problem}")

    def _refresh(self) -> None:
        """Updates the display with the progress of the active runs, read from their metrics."""
        for name in self.active:
            lines = last_lines(self.out / name)
            step, ms = max((line["step"] for line in lines), default=0), measured_ms(lines)
            self.runs[name] = dataclasses.replace(self.runs[name], step=step)
            self.costs = self.costs.learn(self.runs[name].config, ms)
            self.display.run(name, step, ms)
        left = [run for name, run in self.runs.items() if name not in self.broken]
        seconds = seconds_left(left, self.costs, self.engine.slots)
        self.display.overall(sum(run.step for run in self.runs.values()), seconds)
