"""The training loop around the compiled steps: reports, checkpoints, evaluation, resuming."""

import contextlib
import dataclasses
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import data
from ..models import VAE
from .config import Config, differences, to_json
from .display import Display
from .evaluation import evaluate
from .runs import Run, RunError, environment
from .step import State, Trainer, grad_variance

# The most steps in one dispatch: enough to hide its cost, few enough to show progress.
STEPS_PER_DISPATCH = 250
# Settings that may change when a run goes on: they leave the steps already made as they are.
MAY_CHANGE = ("steps", "bound_samples")


class Diverged(RuntimeError):
    """Training produced numbers that are not finite."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """When to stop and look. Changes no result."""

    report_every: int = 500
    """Steps between two lines of metrics."""
    checkpoint_every: int = 2_000
    """Steps between two checkpoints."""
    eval_every: int = 0
    """Steps between two evaluations of the ELBO on the training and validation splits
    (0: at the end only)."""

    def next_stop(self, step: int, steps: int, most: int) -> int:
        """The next step at which something is due, at most `most` ahead."""
        every = [n for n in dataclasses.astuple(self) if n > 0]
        return min([steps, step + most, *((step // n + 1) * n for n in every)])

    def due(self, name: str, step: int, steps: int) -> bool:
        every = getattr(self, f"{name}_every")
        return step == steps or (every > 0 and step % every == 0)


def steps_per_dispatch(config: Config) -> int:
    """On a CPU, convolutions take fifteen times as long inside a loop: then one step alone."""
    alone = config.network == "resnet" and jax.default_backend() == "cpu"
    return 1 if alone else STEPS_PER_DISPATCH


@dataclasses.dataclass(frozen=True)
class Task:
    """A configuration with its data: what training, evaluation and sampling start from."""

    config: Config
    dataset: data.Dataset
    trainer: Trainer

    @classmethod
    def load(cls, config: Config, data_dir: Path | None = None) -> "Task":
        return cls.of(config, data.load(config.dataset, data_dir))

    @classmethod
    def of(cls, config: Config, dataset: data.Dataset) -> "Task":
        if config.batch_size > len(dataset.train):
            raise RunError(
                f"--batch-size {config.batch_size} is more than the {len(dataset.train)} training "
                f"images of {config.dataset}."
            )
        pixels = dataset.train.shape[1]
        estimators = tuple(
            config.build_estimator(pixels, layer) for layer in range(len(config.layer_sizes))
        )
        # Shapes only: the arrays come with each state.
        model = eqx.filter_eval_shape(partial(config.build_model, dataset), jax.random.key(0))
        trainer = Trainer(config, model, estimators, steps_per_dispatch(config))
        return cls(config, dataset, trainer)

    def initial_state(self) -> State:
        """The state before the first step; with several seeds each array begins with their axis."""
        init = partial(self.trainer.init, build=partial(self.config.build_model, self.dataset))
        seeds = jnp.asarray(self.config.seeds, jnp.int32)
        return jax.jit(init)(seeds[0]) if len(seeds) == 1 else jax.jit(jax.vmap(init))(seeds)

    def model(self, state: State, number: int) -> VAE:
        """The model of the number-th seed."""
        return eqx.combine(unstack(state, number, len(self.config.seeds)).model, self.trainer.model)


def unstack(state: State, number: int, count: int) -> State:
    return state if count == 1 else jax.tree.map(lambda leaf: leaf[number], state)


def train(
    config: Config,
    out: Path,
    *,
    schedule: Schedule | None = None,
    resume: bool = False,
    data_dir: Path | None = None,
    tensorboard: bool = False,
    quiet: bool = False,
) -> Run:
    """Train, writing to the folder `out`; go on with what is there, if `resume`."""
    schedule = schedule or Schedule()
    if not resume and (out / "config.json").exists():
        Run.create(out, config, {})  # says what to do
    task = Task.load(config, data_dir)
    run, step, state = _open(task, out, resume)
    if run.status == "finished" and step == config.steps:
        return run
    with contextlib.ExitStack() as stack:
        display = stack.enter_context(Display(config, step, quiet))
        sinks: list[Callable[[dict[str, Any]], None]] = [run.append]
        if tensorboard:
            sinks.append(stack.enter_context(_tensorboard(run.path, config)))

        def emit(metrics):
            for sink in sinks:
                sink(metrics)

        state = _steps(task, run, schedule, step, state, emit, display)
        _final_evaluation(task, state, emit, display)
    run.update(status="finished")
    return run


def _open(task: Task, out: Path, resume: bool) -> tuple[Run, int, State]:
    """The run folder, the step it has come to and its state."""
    config, state = task.config, task.initial_state()
    if not (resume and (out / "config.json").exists()):
        return Run.create(out, config, task.dataset.files), 0, state
    run = Run(out)
    changed = differences(run.config, config)
    refused = {k: v for k, v in changed.items() if k not in MAY_CHANGE}
    if refused:
        listed = "; ".join(
            f"{k} is {stored} there and {given} here" for k, (stored, given) in refused.items()
        )
        raise RunError(
            f"{out} holds a run of another configuration: {listed}. Give the same settings, or "
            "name another folder with --out."
        )
    if run.record["data_files"] != task.dataset.files:
        raise RunError(
            f"{out} was trained on other data files: {run.record['data_files']} there, "
            f"{dict(task.dataset.files)} here."
        )
    found = run.load(state)
    if found is None and run.checkpoints():
        raise RunError(
            f"None of the checkpoints in {out} can be read. Delete them to start the run again "
            "from its first step, or name another folder with --out."
        )
    step, state = (0, state) if found is None else found
    if step > config.steps:
        raise RunError(f"{out} has come to step {step} already, beyond --steps {config.steps}.")
    if not (run.status == "finished" and step == config.steps and not changed):
        run.rewind(step, config.steps)
        run.update(status="running", config=to_json(config), **_environments(run, step))
    return run, step, state


def _environments(run: Run, step: int) -> dict[str, Any]:
    """Where the run goes on and, if that is another place or version, where it has been."""
    now, before = environment(), run.record["environment"]
    if now == before:
        return {}
    earlier = [*run.record.get("earlier", ()), {"until_step": step, "environment": before}]
    return {"environment": now, "earlier": earlier}


def _steps(
    task: Task,
    run: Run,
    schedule: Schedule,
    step: int,
    state: State,
    emit: Callable[[dict[str, Any]], None],
    display: Display,
) -> State:
    """All steps from `step` on."""
    config, steps = task.config, task.config.steps
    if step == steps:
        return state
    images = jnp.asarray(task.dataset.train)
    advance = _compile(task, state, images, display)
    reported_step, reported_time = step, time.perf_counter()
    while step < steps:
        start, step = step, schedule.next_stop(step, steps, task.trainer.max_steps)
        state = advance(state, start, step)
        if not _finite(state):
            run.update(status="diverged")
            last = run.checkpoints()
            kept = f"the last good checkpoint is {last[0]}" if last else "no checkpoint was due yet"
            raise Diverged(
                f"Training became non-finite between steps {start} and {step}; {kept}. A smaller "
                "--learning-rate may help, in another folder (--out)."
            )
        display.advance(step)
        if schedule.due("report", step, steps):
            elapsed = time.perf_counter() - reported_time
            lines = _report(config, state, step, reported_step, elapsed)
            for line in lines:
                emit(line)
            display.report(lines)
            state = state._replace(
                elbo_sum=jnp.zeros_like(state.elbo_sum),
                elbo_steps=jnp.zeros_like(state.elbo_steps),
            )
            reported_step, reported_time = step, time.perf_counter()
        if schedule.eval_every and schedule.due("eval", step, steps) and step < steps:
            for number, seed in enumerate(config.seeds):
                emit({"step": step, "seed": seed, **_elbos(task, state, number, step)})
            reported_time = time.perf_counter()
        if schedule.due("checkpoint", step, steps):
            run.save(step, state)
    return state


def _compile(task: Task, state: State, images, display: Display):
    """The compiled steps as a function of (state, start, stop)."""
    seeds = jnp.asarray(task.config.seeds, jnp.int32)
    advance = task.trainer.run
    if len(seeds) == 1:
        seeds = seeds[0]
    else:
        advance = jax.vmap(advance, in_axes=(0, 0, None, None, None))
    number = jnp.zeros((), jnp.int32)
    display.message("compiling the training step")
    compiled = (
        jax.jit(advance, donate_argnums=0).lower(state, seeds, images, number, number).compile()
    )

    def steps(state, start, stop):
        start, stop = jnp.asarray(start, jnp.int32), jnp.asarray(stop, jnp.int32)
        return jax.block_until_ready(compiled(state, seeds, images, start, stop))

    return steps


@jax.jit
def _all_finite(state: State):
    leaves = [leaf for leaf in jax.tree.leaves(state) if eqx.is_inexact_array(leaf)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))


def _finite(state: State) -> bool:
    return bool(_all_finite(state))


def _report(
    config: Config, state: State, step: int, since: int, elapsed: float
) -> list[dict[str, Any]]:
    """A line of metrics for each seed."""
    lines = []
    for number, seed in enumerate(config.seeds):
        own = unstack(state, number, len(config.seeds))
        line = {
            "step": step,
            "seed": seed,
            "objective": float(own.elbo_sum) / int(own.elbo_steps),
            "grad_variance": float(grad_variance(own, step)),
            "ms_per_step": 1000 * elapsed / (step - since),
        }
        for layer, cv in enumerate(own.cv):
            suffix = f"_{layer + 1}" if len(own.cv) > 1 else ""
            for name, value in _scalars(cv).items():
                line[name + suffix] = value
        lines.append(line)
    return lines


def _scalars(cv: Any) -> dict[str, float]:
    """The learned numbers worth watching: α, β, a temperature, ..."""
    fields = {} if cv is None else vars(cv)
    return {k: float(v) for k, v in fields.items() if eqx.is_array(v) and v.shape == ()}


def _elbos(task: Task, state: State, number: int, step: int) -> dict[str, float]:
    """The ELBO on the training and the validation split, one sample for each image."""
    key = evaluation_key(task.config.seeds[number], step)
    model = task.model(state, number)
    return {
        f"{split}_elbo": evaluate(model, getattr(task.dataset, split), 1, key).elbo
        for split in ("train", "valid")
    }


def _final_evaluation(task: Task, state: State, emit, display: Display) -> None:
    config = task.config
    for number, seed in enumerate(config.seeds):
        display.message(f"evaluating seed {seed}")
        model, key = task.model(state, number), evaluation_key(seed, config.steps)
        line = {
            "step": config.steps,
            "seed": seed,
            "final": True,
            **_elbos(task, state, number, config.steps),
        }
        for split in ("valid", "test"):
            images = getattr(task.dataset, split)
            line[f"{split}_bound"] = evaluate(model, images, config.bound_samples, key).bound
            line[f"{split}_bound_k"] = evaluate(model, images, config.samples, key).bound
        emit(line)
        display.final(line)


def evaluation_key(seed: int, step: int) -> jax.Array:
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 3), step)


@contextlib.contextmanager
def _tensorboard(path: Path, config: Config):
    try:
        from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise RunError(
            "--tensorboard needs an extra: pip install 'steingrad[tensorboard]'."
        ) from None
    writers = {
        seed: SummaryWriter(str(path / "tensorboard" / f"seed-{seed}")) for seed in config.seeds
    }

    def write(line: dict[str, Any]) -> None:
        for name, value in line.items():
            if name not in ("step", "seed", "final"):
                writers[line["seed"]].add_scalar(name, value, line["step"])

    try:
        yield write
    finally:
        for writer in writers.values():
            writer.close()


def load_trained(path: Path, data_dir: Path | None = None) -> tuple[Run, Task, int, State]:
    """A stored run with its newest good state."""
    run = Run(path)
    task = Task.load(run.config, data_dir)
    found = run.load(task.initial_state())
    if found is None:
        raise RunError(
            f"{path} has no checkpoint that can be read. Train it with `steingrad train`."
        )
    return run, task, *found


def summary(run: Run) -> dict[str, float]:
    """Mean over seeds of the last value of each metric."""
    last: dict[str, dict[int, float]] = {}
    for line in run.metrics():
        for name, value in line.items():
            if name not in ("step", "seed", "final"):
                last.setdefault(name, {})[line["seed"]] = value
    return {name: float(np.mean(list(values.values()))) for name, values in last.items()}
