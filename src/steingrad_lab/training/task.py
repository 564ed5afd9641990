"""A configuration with its data: what training, evaluation and sampling start from."""

import dataclasses
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp

from .. import data
from ..models import VAE
from ..models.resnet import check_shape
from .config import Config
from .devices import Devices
from .runs import Run, RunError
from .step import State, Trainer

# The most steps in one dispatch: enough to hide its cost, few enough to show progress.
STEPS_PER_DISPATCH = 250


@dataclasses.dataclass(frozen=True)
class Task:
    config: Config
    dataset: data.Dataset
    trainer: Trainer

    @classmethod
    def load(
        cls, config: Config, data_dir: Path | None = None, devices: Devices | None = None
    ) -> "Task":
        return cls.of(config, data.load(config.dataset, data_dir), devices)

    @classmethod
    def of(cls, config: Config, dataset: data.Dataset, devices: Devices | None = None) -> "Task":
        if config.batch_size > len(dataset.train):
            raise RunError(
                f"batch_size {config.batch_size} is more than the {len(dataset.train)} training "
                f"images of {config.dataset}."
            )
        if config.network == "resnet":
            try:
                check_shape(dataset.image_shape)
            except ValueError as error:
                raise RunError(f"{config.dataset}: {error}") from None
        # Shapes only: the arrays come with each state.
        model = eqx.filter_eval_shape(partial(config.build_model, dataset), jax.random.key(0))
        estimators = config.build_estimators(dataset.train.shape[1])
        trainer = Trainer(config, model, estimators, steps_per_dispatch(config), devices)
        return cls(config, dataset, trainer)

    def initial_state(self) -> State:
        """The state before the first step; with several seeds each array begins with their axis."""
        init = partial(self.trainer.init, build=partial(self.config.build_model, self.dataset))
        seeds = jnp.asarray(self.config.seeds, jnp.int32)
        return jax.jit(init)(seeds[0]) if len(seeds) == 1 else jax.jit(jax.vmap(init))(seeds)

    def state_of(self, state: State, number: int) -> State:
        """The state of the number-th seed."""
        several = len(self.config.seeds) > 1
        return jax.tree.map(lambda leaf: leaf[number], state) if several else state

    def model(self, state: State, number: int) -> VAE:
        """The model of the number-th seed."""
        return eqx.combine(self.state_of(state, number).model, self.trainer.model)


def steps_per_dispatch(config: Config) -> int:
    """On a CPU, convolutions take fifteen times as long inside a loop: then one step alone."""
    alone = config.network == "resnet" and jax.default_backend() == "cpu"
    return 1 if alone else STEPS_PER_DISPATCH


def check_data(run: Run, task: Task) -> None:
    """Raise unless the data are those that the run was trained on: for images of one's own the same
    content, for a dataset the same files, or published ones, which may be packed differently."""
    stored, given = dict(run.record["data_files"]), dict(task.dataset.files)
    if data.is_own(run.config.dataset):
        same = sorted(stored.values()) == sorted(given.values())
    else:
        published = (*run.published.values(), *task.dataset.published.values())
        same = stored == given or (bool(stored) and all(published))
    if not same:
        raise RunError(f"{run.path} was trained on other data files: {stored} there, {given} here.")


def load_trained(
    path: Path, data_dir: Path | None = None, own: Path | None = None
) -> tuple[Run, Task, int, State]:
    """A stored run with its newest good state; `own` is where images of one's own are now."""
    run = Run(path)
    config = run.config
    if own is not None:
        if not data.is_own(config.dataset):
            raise RunError(
                f"{path} was trained on {config.dataset}, not on images of your own: leave --data "
                "out."
            )
        config = dataclasses.replace(config, dataset=str(own.absolute()))
    elif data.is_own(config.dataset) and not Path(config.dataset).exists():
        raise RunError(
            f"{path} was trained on {config.dataset}, which is not there any more. Say where it is "
            "now with --data."
        )
    task = Task.load(config, data_dir)
    check_data(run, task)
    found = run.load(task.initial_state())
    if found is None:
        raise RunError(
            f"{path} has no checkpoint that can be read. Train it with `steingrad train`."
        )
    return run, task, *found
