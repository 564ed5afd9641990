"""Begin a run, or go on with one that is there: what may change, and what must be the same."""

import warnings
from pathlib import Path
from typing import Any

from ..data import is_own
from .config import differences, to_json
from .runs import FORMAT, Run, RunError, Stored, environment
from .step import State
from .task import Task, check_data

# Settings that may change when a run goes on: they leave the steps already made as they are.
MAY_CHANGE = ("steps", "bound_samples")


def open_run(task: Task, out: Path, resume: bool) -> tuple[Run, int, State]:
    """The run folder, the step it has come to and its state."""
    config = task.config
    if not (resume and Run.there(out)):
        run = Run.create(out, config, task.dataset.files, task.dataset.published)
        return run, 0, task.initial_state()
    run = Run(out)
    _check_same(run, task)
    initial, lines = task.initial_state(), list(run.metrics())
    found = _newest_whole(run, initial, lines)
    if found is None and run.checkpoints():
        raise RunError(
            f"None of the checkpoints in {out} can be read. Delete them to start the run again "
            "from its first step, or name another folder."
        )
    if found is None and lines:
        warnings.warn(
            f"{out} has no checkpoint: it begins again with its first step.", stacklevel=2
        )
    step, state = (0, initial) if found is None else (found.step, found.state)
    if step > config.steps:
        raise RunError(
            f"{out} has come to step {step} already, beyond the {config.steps} steps asked for."
        )
    aside = run.set_aside(step)
    if aside:
        names = ", ".join(path.name for path in aside)
        warnings.warn(
            f"{out} goes on from step {step}. What was newer is kept as {names}.", stacklevel=2
        )
    evaluated = {line["seed"] for line in lines if line.get("final")}
    finished = run.status == "finished" and step == config.steps and {*config.seeds} <= evaluated
    if not finished or run.config != config:
        run.rewind(step, config.steps)
        run.update(status="running", config=to_json(config), **environments(run, step))
    return run, step, state


def _newest_whole(run: Run, like: State, lines: list[dict[str, Any]]) -> Stored | None:
    """The newest checkpoint up to which no metrics are missing; else the newest good one."""
    newest = None
    for found in run.stored(like):
        there = sum(line["step"] <= found.step and not line.get("final") for line in lines)
        missing = found.lines - there
        if missing <= 0:
            return found
        if newest is None:
            newest = found
            said = (
                f"{run.path} lacks {missing} of its {found.lines} metrics up to step {found.step}"
            )
            warnings.warn(f"{said}. Trying the checkpoint before.", stacklevel=3)
    if newest is not None:
        warnings.warn(f"{run.path} goes on without the metrics that are missing.", stacklevel=3)
    return newest


def _check_same(run: Run, task: Task) -> None:
    """Raise if the run is of another configuration, version or dataset."""
    if run.record["format"] != FORMAT:
        raise RunError(
            f"{run.path} was begun by an earlier version of steingrad (format "
            f"{run.record['format']} of run folders), and only that version can go on with it. "
            "Name another folder to begin anew."
        )
    changed = differences(run.config, task.config)
    may_change = MAY_CHANGE
    if is_own(run.config.dataset) and is_own(task.config.dataset):
        may_change += ("dataset",)  # the same images under another path
    refused = {name: both for name, both in changed.items() if name not in may_change}
    if refused:
        listed = "; ".join(
            f"{name} is {stored} there and {given} here"
            for name, (stored, given) in refused.items()
        )
        raise RunError(
            f"{run.path} holds a run of another configuration: {listed}. Give the same settings, "
            "or name another folder."
        )
    check_data(run, task)


def environments(run: Run, step: int) -> dict[str, Any]:
    """Where the run goes on and, if that is another place or version, where it has been."""
    now, before = environment(), run.record["environment"]
    if now == before:
        return {}
    earlier = [*run.record.get("earlier", ()), {"until_step": step, "environment": before}]
    return {"environment": now, "earlier": earlier}
