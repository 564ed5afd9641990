"""A configuration together with its data, from which training, evaluation and sampling start."""

import dataclasses
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import data
from ..models import VAE
from ..models.resnet import check_shape
from .config import Config
from .devices import Devices
from .memory import check_memory
from .runs import Run, RunError
from .step import State, Trainer

# The most steps in one dispatch. More would make progress hard to see, fewer would add overhead.
STEPS_PER_DISPATCH = 250
# The seed with which pixels are drawn if each image is binarised once. It is the same for all runs.
BINARIZATION_SEED = 0


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
        dataset = _prepared(config, dataset)
        if config.batch_size > len(dataset.train):
            raise RunError(
                f"batch_size is {config.batch_size}, but {config.dataset} has only "
                f"{len(dataset.train)} training images. Choose a smaller batch_size."
            )
        if config.network == "resnet":
            try:
                check_shape(dataset.image_shape)
            except ValueError as error:
                raise RunError(f"{config.dataset}: {error}") from None
        # Only the shapes of the model are needed here; the state holds its arrays.
        model = eqx.filter_eval_shape(partial(config.build_model, dataset), jax.random.key(0))
        pixels = dataset.train.shape[1]
        weights = sum(getattr(leaf, "size", 0) for leaf in jax.tree.leaves(model))
        images = config.batch_size // (1 if devices is None else devices.mesh.size)
        # At least 4 bytes for each weight, its gradient and its two moments in Adam, and for each
        # pixel that is decoded.
        numbers = 4 * weights + config.samples * images * pixels
        check_memory(4 * len(config.seeds) * numbers, "This run")
        estimators = config.build_estimators(pixels)
        trainer = Trainer(config, model, estimators, steps_per_dispatch(config), devices)
        return cls(config, dataset, trainer)

    @property
    def held_out(self) -> tuple[str, ...]:
        """The splits that are not trained on."""
        return ("test",) if self.config.train_on_valid else ("valid", "test")

    def initial_state(self) -> State:
        """Returns the state before the first step. Several seeds are the first axis of arrays."""
        init = partial(self.trainer.init, build=partial(self.config.build_model, self.dataset))
        seeds = jnp.asarray(self.config.seeds, jnp.int32)
        return jax.jit(init)(seeds[0]) if len(seeds) == 1 else jax.jit(jax.vmap(init))(seeds)

    def state_of(self, state: State, number: int) -> State:
        """Returns the state of the seed at position `number`."""
        several = len(self.config.seeds) > 1
        return jax.tree.map(lambda leaf: leaf[number], state) if several else state

    def model(self, state: State, number: int) -> VAE:
        """Returns the model of the seed at position `number`."""
        return eqx.combine(self.state_of(state, number).model, self.trainer.model)


def _prepared(config: Config, dataset: data.Dataset) -> data.Dataset:
    """Returns the images that a run uses: binarised once and for all, if that is asked for, and
    with the validation images among the training images, if these are trained on too."""
    if config.fixed_pixels:
        key = jax.random.key(BINARIZATION_SEED)
        for number, split in enumerate(("train", "valid", "test")):
            drawn = data.binarize(jax.random.fold_in(key, number), getattr(dataset, split))
            binary = np.asarray(drawn * 255, np.uint8)
            dataset = dataclasses.replace(dataset, **{split: binary})
    if config.train_on_valid:
        everything = np.concatenate([dataset.train, dataset.valid])
        dataset = dataclasses.replace(dataset, train=everything)
    return dataset


def steps_per_dispatch(config: Config) -> int:
    """Returns 1 for convolutions on a CPU, where they take fifteen times as long in a loop."""
    alone = config.network == "resnet" and jax.default_backend() == "cpu"
    return 1 if alone else STEPS_PER_DISPATCH


def check_data(run: Run, task: Task) -> None:
    """Raises unless the data are those that the run was trained on.

    The user's own images must have the same content. The files of a dataset must be the same, or
    must all be published ones, which may be compressed differently.
    """
    stored, given = dict(run.record["data_files"]), dict(task.dataset.files)
    if data.is_own(run.config.dataset):
        same = sorted(stored.values()) == sorted(given.values())
    else:
        published = (*run.published.values(), *task.dataset.published.values())
        same = stored == given or (bool(stored) and all(published))
    if not same:
        raise RunError(
            f"{run.path} was trained on other data. Its files have the SHA-256 {stored}, but those "
            f"given have {given}. Give the data of the run, or name another folder."
        )


def load_trained(
    path: Path, data_dir: Path | None = None, own: Path | None = None
) -> tuple[Run, Task, int, State]:
    """Returns a stored run, its task, and the step and state of its newest readable checkpoint.

    `own` is the path of the user's own images if they were moved after training.
    """
    run = Run(path)
    config = run.config
    if own is not None:
        if not data.is_own(config.dataset):
            raise RunError(
                f"{path} was trained on the dataset {config.dataset}, but --data names other "
                "images. Leave out --data."
            )
        config = dataclasses.replace(config, dataset=str(own.absolute()))
    elif data.is_own(config.dataset) and not Path(config.dataset).exists():
        raise RunError(
            f"{path} was trained on {config.dataset}, which no longer exists. Use --data to say "
            "where the images are now."
        )
    task = Task.load(config, data_dir)
    check_data(run, task)
    found = run.load(task.initial_state())
    if found is None:
        raise RunError(f"{path} has no readable checkpoint. Train it again with `steingrad train`.")
    return run, task, *found
