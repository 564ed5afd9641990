"""Start a run or continue an existing one, and check that its settings and data are the same."""

import warnings
from pathlib import Path
from typing import Any

from ..data import is_own
from .config import differences, to_json
from .runs import FORMAT, Run, RunError, Stored, environment
from .step import State
from .task import Task, check_data

# Settings that may change when a run is continued: they do not affect the steps already made.
MAY_CHANGE = ("steps", "bound_samples")


def open_run(task: Task, out: Path, resume: bool) -> tuple[Run, int, State]:
    """Creates or reopens a run folder. Returns the run, its current step and its state."""
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
            f"None of the checkpoints in {out} can be read. Delete them to restart the run from "
            "its first step, or name another folder."
        )
    if found is None and lines:
        warnings.warn(
            f"{out} has no checkpoint. The run restarts from its first step.", stacklevel=2
        )
    step, state = (0, initial) if found is None else (found.step, found.state)
    if step > config.steps:
        raise RunError(
            f"{out} has reached step {step} already, which is more than the {config.steps} steps "
            "asked for. Ask for more steps, or name another folder."
        )
    aside = run.set_aside(step)
    if aside:
        names = ", ".join(path.name for path in aside)
        warnings.warn(
            f"{out} continues from step {step}. Newer checkpoints are kept as {names}.",
            stacklevel=2,
        )
    evaluated = {line["seed"] for line in lines if line.get("final")}
    finished = run.status == "finished" and step == config.steps and {*config.seeds} <= evaluated
    if not finished or run.config != config:
        run.rewind(step, config.steps)
        run.update(status="running", config=to_json(config), **environments(run, step))
    return run, step, state


def _newest_whole(run: Run, like: State, lines: list[dict[str, Any]]) -> Stored | None:
    """Returns the newest checkpoint with complete metrics, or else the newest readable one."""
    newest = None
    for found in run.stored(like):
        there = sum(line["step"] <= found.step and not line.get("final") for line in lines)
        missing = found.lines - there
        if missing <= 0:
            return found
        if newest is None:
            newest = found
            warnings.warn(
                f"{run.path} lacks {missing} of its {found.lines} lines of metrics up to step "
                f"{found.step}. Trying the previous checkpoint.",
                stacklevel=3,
            )
    if newest is not None:
        warnings.warn(f"{run.path} continues without the missing metrics.", stacklevel=3)
    return newest


def _check_same(run: Run, task: Task) -> None:
    """Raises if the run has another format, configuration or dataset."""
    if run.record["format"] != FORMAT:
        raise RunError(
            f"{run.path} was started by an earlier version of steingrad, with format "
            f"{run.record['format']} of run folders. Only that version can continue the run. "
            "Name another folder to start a new run."
        )
    changed = differences(run.config, task.config)
    may_change = MAY_CHANGE
    if is_own(run.config.dataset) and is_own(task.config.dataset):
        may_change += ("dataset",)  # the same images under another path
    refused = {name: both for name, both in changed.items() if name not in may_change}
    if refused:
        listed = "; ".join(
            f"{name} is {stored} in the folder, but {given} is given"
            for name, (stored, given) in refused.items()
        )
        raise RunError(
            f"{run.path} contains a run with other settings: {listed}. Give the same settings, or "
            "name another folder."
        )
    check_data(run, task)


def environments(run: Run, step: int) -> dict[str, Any]:
    """Returns the changed fields of the record if a run continues in another environment."""
    now, before = environment(), run.record["environment"]
    if now == before:
        return {}
    earlier = [*run.record.get("earlier", ()), {"until_step": step, "environment": before}]
    return {"environment": now, "earlier": earlier}
