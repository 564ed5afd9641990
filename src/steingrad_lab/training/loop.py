"""The training loop around the compiled steps."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .config import Config
from .devices import Devices
from .display import Display
from .evaluation import elbos, final_bounds, report_lines
from .lock import sole_owner
from .memory import check_memory, enough_memory
from .resume import open_run
from .runs import Run, RunError
from .schedule import Schedule
from .step import State
from .task import Task
from .tensorboard import events, writer_class

# A checkpoint is written after this many seconds even if none is due, to limit what can be lost.
UNSAVED = 300.0

Emit = Callable[[dict[str, Any]], None]
"""A function that takes a line of metrics."""


class Diverged(RuntimeError):
    """Raised when training produces numbers that are not finite."""


@enough_memory()
def train(
    config: Config,
    out: Path,
    *,
    schedule: Schedule | None = None,
    resume: bool = False,
    data_dir: Path | None = None,
    tensorboard: bool = False,
    quiet: bool = False,
    wait: float = 0.0,
    devices: Devices | None = None,
) -> Run:
    """Trains a model and writes the folder `out`. With `resume`, continues the run in that folder.

    If another process uses the folder, waits up to `wait` seconds and then raises. When several
    processes train together, the first one calls `train` and the others call `follow`.
    """
    schedule = schedule or Schedule()
    # Errors that need no data come first.
    writer = writer_class() if tensorboard else None
    if not resume:
        Run.refuse_existing(out)
    task = Task.load(config, data_dir, devices)
    with contextlib.ExitStack() as stack:
        stack.enter_context(sole_owner(out, wait))
        run, step, state = open_run(task, out, resume)
        if devices is not None:
            begun = config.steps if run.status == "finished" else step
            step, state = _everywhere(devices, begun, state)
        if run.status == "finished":
            return run
        display = stack.enter_context(Display(config, step, quiet))
        sinks: list[Emit] = [run.append]
        if writer is not None:
            sinks.append(stack.enter_context(events(writer, run.path, config.seeds, step)))

        def emit(metrics):
            for sink in sinks:
                sink(metrics)

        state = _steps(task, run, schedule, step, state, emit, display)
        state = state if devices is None else devices.here(state)
        for number, seed in enumerate(config.seeds):
            display.message(f"evaluating seed {seed}")
            line = {"step": config.steps, "seed": seed, "final": True}
            line |= final_bounds(task, state, number)
            emit(line)
            display.final(line)
        run.update(status="finished")
        return run


def follow(
    config: Config,
    devices: Devices,
    *,
    schedule: Schedule | None = None,
    data_dir: Path | None = None,
) -> None:
    """Runs the steps of a run whose folder another process writes. See `train`."""
    task = Task.load(config, data_dir, devices)
    try:
        step, state = _everywhere(devices, 0, task.initial_state())
        with Display(config, step, quiet=True) as display:
            _steps(task, None, schedule or Schedule(), step, state, lambda line: None, display)
    except jax.errors.JaxRuntimeError as error:
        why = str(error).partition("\n")[0]
        raise RunError(
            f"The connection to the other processes failed ({why}). If the first process has "
            "stopped, its messages say why."
        ) from error


def _everywhere(devices: Devices, step: int, state: State) -> tuple[int, State]:
    """Copies the step and state of the first process to all devices."""
    first, state = devices.of_the_first((np.int32(step), state))
    return int(first), devices.on_all(state)


def _steps(
    task: Task,
    run: Run | None,
    schedule: Schedule,
    step: int,
    state: State,
    emit: Emit,
    display: Display,
) -> State:
    """Runs all steps from `step` on. If `run` is `None`, another process reports and saves."""
    config, steps = task.config, task.config.steps
    if step == steps:
        return state
    devices = task.trainer.devices
    here = (lambda state: state) if devices is None else devices.here
    advance = _compile(task, state, display)
    reported_step, seconds, saved = step, 0.0, time.monotonic()
    while step < steps:
        start, step = step, schedule.next_stop(step, steps, task.trainer.max_steps)
        began = time.perf_counter()
        state = advance(state, start, step)
        if not bool(_all_finite(state)):
            raise _diverged(run, start, step)
        seconds += time.perf_counter() - began  # without evaluations and checkpoints
        display.advance(step)
        reported = state
        if schedule.due("report", step, steps):
            counted = ("elbo_sum", "elbo_rest", "elbo_steps")
            state = state._replace(**{name: 0 * getattr(state, name) for name in counted})
        if run is None:
            continue
        if schedule.due("report", step, steps):
            lines = report_lines(task, here(reported), step, reported_step, seconds)
            for line in lines:
                emit(line)
            display.report(lines)
            reported_step, seconds = step, 0.0
        if schedule.eval_every and schedule.due("eval", step, steps) and step < steps:
            for number, seed in enumerate(config.seeds):
                emit({"step": step, "seed": seed, **elbos(task, here(state), number, step)})
        if schedule.due("checkpoint", step, steps) or time.monotonic() - saved > UNSAVED:
            run.save(step, here(state))
            saved = time.monotonic()
    return state


def _compile(task: Task, state: State, display: Display) -> Callable[[State, int, int], State]:
    """Compiles the steps, and returns them as a function of (state, start, stop)."""
    seeds = jnp.asarray(task.config.seeds, jnp.int32)
    advance = task.trainer.run
    if len(seeds) == 1:
        seeds = seeds[0]
    else:
        advance = jax.vmap(advance, in_axes=(0, 0, None, None, None))
    images, number = jnp.asarray(task.dataset.train), jnp.zeros((), jnp.int32)
    devices = task.trainer.devices
    if devices is None:
        program = jax.jit(advance, donate_argnums=0)
    else:
        seeds, images, number = devices.on_all((seeds, images, number))
        program = jax.jit(advance, donate_argnums=0, out_shardings=devices.everywhere)
    display.message("compiling the training step")
    compiled = program.lower(state, seeds, images, number, number).compile()
    memory: Any = compiled.memory_analysis()  # some devices do not tell
    check_memory(getattr(memory, "temp_size_in_bytes", 0), "A training step")

    def steps(state, start, stop):
        start, stop = jnp.asarray(start, jnp.int32), jnp.asarray(stop, jnp.int32)
        if devices is not None:
            start, stop = devices.on_all((start, stop))
        return jax.block_until_ready(compiled(state, seeds, images, start, stop))

    return steps


@jax.jit
def _all_finite(state: State):
    leaves = [leaf for leaf in jax.tree.leaves(state) if eqx.is_inexact_array(leaf)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))


def _diverged(run: Run | None, start: int, step: int) -> Diverged:
    kept = "The first process has the checkpoints."
    if run is not None:
        run.update(status="diverged")
        last = run.checkpoints()
        kept = f"The last checkpoint is {last[0]}." if last else "There is no checkpoint yet."
    return Diverged(
        f"Training diverged: numbers became non-finite between steps {start} and {step}. {kept} "
        "Try a smaller learning rate, in another folder."
    )
