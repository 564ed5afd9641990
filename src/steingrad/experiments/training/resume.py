"""Begin a run, or go on with one that is there: what may change, and what must be the same."""

from pathlib import Path
from typing import Any

from .config import differences, to_json
from .runs import FORMAT, Run, RunError, environment
from .step import State
from .task import Task

# Settings that may change when a run goes on: they leave the steps already made as they are.
MAY_CHANGE = ("steps", "bound_samples")


def open_run(task: Task, out: Path, resume: bool) -> tuple[Run, int, State]:
    """The run folder, the step it has come to and its state."""
    config, state = task.config, task.initial_state()
    if not (resume and (out / "config.json").exists()):
        return Run.create(out, config, task.dataset.files, task.dataset.published), 0, state
    run = Run(out)
    _check_same(run, task)
    found = run.load(state)
    if found is None and run.checkpoints():
        raise RunError(
            f"None of the checkpoints in {out} can be read. Delete them to start the run again "
            "from its first step, or name another folder."
        )
    step, state = (0, state) if found is None else found
    if step > config.steps:
        raise RunError(
            f"{out} has come to step {step} already, beyond the {config.steps} steps asked for."
        )
    finished = run.status == "finished" and step == config.steps
    if not finished or run.config != config:
        run.rewind(step, config.steps)
        run.update(status="running", config=to_json(config), **environments(run, step))
    return run, step, state


def _check_same(run: Run, task: Task) -> None:
    """Raise if the run is of another configuration, version or dataset."""
    if run.record["format"] != FORMAT:
        raise RunError(
            f"{run.path} was begun by an earlier version of steingrad (format "
            f"{run.record['format']} of run folders), and only that version can go on with it. "
            "Name another folder to begin anew."
        )
    changed = differences(run.config, task.config)
    refused = {name: both for name, both in changed.items() if name not in MAY_CHANGE}
    if refused:
        listed = "; ".join(
            f"{name} is {stored} there and {given} here"
            for name, (stored, given) in refused.items()
        )
        raise RunError(
            f"{run.path} holds a run of another configuration: {listed}. Give the same settings, "
            "or name another folder."
        )
    if run.record["data_files"] != task.dataset.files:
        raise RunError(
            f"{run.path} was trained on other data files: {run.record['data_files']} there, "
            f"{dict(task.dataset.files)} here."
        )


def environments(run: Run, step: int) -> dict[str, Any]:
    """Where the run goes on and, if that is another place or version, where it has been."""
    now, before = environment(), run.record["environment"]
    if now == before:
        return {}
    earlier = [*run.record.get("earlier", ()), {"until_step": step, "environment": before}]
    return {"environment": now, "earlier": earlier}
