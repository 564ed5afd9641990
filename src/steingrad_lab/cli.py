"""Train VAEs of bits or categories with low-variance gradients, and look at what came out.

`steingrad --version` says which version this is.
"""

import codecs
import dataclasses
import io
import os
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, Union, get_origin

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text
from tyro import constructors

from steingrad import __version__

from . import data, settings
from .estimators import DESCRIPTIONS
from .models import reconstruct, sample_images
from .paper.settings import configure, run_name
from .report import write_report
from .sweeps.costs import Costs
from .sweeps.engines import Engine, Processes, RayCluster
from .sweeps.plan import Selection, optional, plan, seconds_left, summary_line, table
from .sweeps.sweep import sweep
from .training import (
    Config,
    ConfigError,
    Diverged,
    Run,
    RunError,
    Schedule,
    evaluate,
    follow,
    load_trained,
    train,
)
from .training.config import DEFAULTS, NUMBERS, TYPES, either
from .training.devices import Devices, join
from .training.display import duration
from .training.evaluation import IMAGES_AT_A_TIME, SAMPLES_AT_A_TIME, evaluation_key
from .training.memory import check_memory, enough_memory
from .training.pictures import check_grids, image_grid, save_grids
from .training.runs import checkpoints
from .training.stored import json_line

OptionalPath = Annotated[Path | None, optional(metavar="PATH")]
OptionalInt = Annotated[int | None, optional(metavar="INT")]
DataDir = Annotated[
    OptionalPath,
    optional(help="Where the datasets are (default: $STEINGRAD_DATA_DIR, then the cache)."),
]
MovedData = Annotated[
    OptionalPath,
    optional(help="Your own images that the model was trained on, if they have moved."),
]


def _read(
    kind: type, default: Any = constructors.MISSING_NONPROP
) -> constructors.StructConstructorSpec:
    """A dataclass as tyro reads it, with the documentation of each field on one line."""
    about = constructors.StructTypeInfo.make(kind, default, in_union_context=False)
    read: Any = constructors.ConstructorRegistry.get_struct_spec(about)
    one_line = lambda field: " ".join((field.helptext() or "").split()) or None
    fields = (dataclasses.replace(field, helptext=one_line(field)) for field in read.fields)
    return dataclasses.replace(read, fields=tuple(fields))


def _texts(kind: type) -> dict[str, Any]:
    """The documentation of each field of a dataclass."""
    return {field.name: field.helptext for field in _read(kind, constructors.MISSING).fields}


def _described(name: str) -> tuple[str, Any]:
    """The help of a setting of an estimator, and its default."""
    found: dict[tuple[str, Any], list[settings.Place]] = {}
    for place in settings.SETTINGS[name]:
        field = place.field
        text = settings.SWITCHES.get(name) or _texts(field.kind)[field.name]
        found.setdefault((text, settings.spelled(field, field.default)), []).append(place)
    said = []
    for (text, default), places in found.items():
        names = settings.owners(places)
        labels = [DESCRIPTIONS[name].label for name in names.pop("estimator", [])]
        parts = [f"{part.capitalize()} {either(choices)}" for part, choices in names.items()]
        said.append((f"{', '.join([*parts, *labels])}: {text}", default))
    *earlier, (text, default) = said
    begin = [f"{text} (default: {default})" for text, default in earlier]
    return " ".join([*begin, text]), settings.DEFAULTS.get(name, default)


def _settings() -> Any:
    """A type of dictionary with a flag for each setting of `Config`. The dictionary has only the
    settings that are given, so --preset and --layers know which settings they decide about."""
    flags, texts = {}, _texts(Config)
    for name, kind in TYPES.items():
        own = name in settings.SETTINGS
        help, default = _described(name) if own else (texts[name], DEFAULTS[name])
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
        hint = "" if shown is None else f"(default: {shown})"
        about: dict[str, Any] = {"help": help, "help_behavior_hint": hint}
        if name.endswith("_"):  # where the library avoids a word of Python
            about["name"] = name.strip("_")
        if get_origin(kind) is tuple:
            about["metavar"] = "[INT ...]"
        if name == "seeds":
            about["aliases"] = ("--seed",)
        flags[name] = Annotated[kind, tyro.conf.arg(**about)]
    return TypedDict("Settings", flags, total=False)  # pyright: ignore[reportArgumentType]


Settings = _settings()


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a VAE of bits or categories, and write a run folder."""

    settings: Settings  # pyright: ignore[reportInvalidTypeForm]
    """What is trained, and how."""
    schedule: Schedule
    preset: Literal["none", "paper", "reinmax"] = "none"
    """`paper`: the published settings for this dataset, likelihood and number of layers. `reinmax`:
    those of ReinMax's experiments (Liu et al. 2023), for categories or for bits. Flags that are
    given win."""
    layers: OptionalInt = None
    """The number of stochastic layers of 200 bits (paper: 1 to 4). If there are several, encoders
    and decoders are affine. For other sizes: --layer-sizes."""
    codes: OptionalInt = None
    """The number of codes in one stochastic layer (default: 200 bits, or 16 categories)."""
    out: OptionalPath = None
    """The run folder (default: a name made of the settings, under runs/)."""
    resume: bool = False
    """Go on with the run in this folder, from its newest good checkpoint."""
    data: OptionalPath = None
    """Your own images, instead of --dataset: an .npz file with an array train of shape [images,
    height, width] (and arrays valid and test), or a folder of pictures of one size."""
    data_dir: DataDir = None
    tensorboard: bool = False
    """Also write the metrics for TensorBoard, into the run folder."""
    devices: Annotated[Literal["all"] | int | None, optional(metavar="{all}|INT")] = None
    """Share each batch among this number of devices of this machine. `all`: among all devices of
    this machine and of the other processes that $JAX_COORDINATOR_ADDRESS, Slurm or Open MPI tell of
    (default: one device)."""

    @property
    def config(self) -> Config:
        given = dict(self.settings)
        each = settings.evaluations_of_sample(given.get("estimator", Config.estimator), given)
        if each > Config.samples:
            given.setdefault("samples", each)
        if self.data is not None:
            if "dataset" in given:
                raise ConfigError("Give --dataset or --data, not both.")
            given["dataset"] = str(self.data.absolute())
        return configure(preset=self.preset, layers=self.layers, codes=self.codes, **given)

    @property
    def folder(self) -> Path:
        return self.out or Path("runs") / run_name(self.config)

    def interrupted(self) -> str:
        if not Run.there(self.folder):
            return "Nothing was written yet."
        if not checkpoints(self.folder):
            return "There is no checkpoint yet: --resume begins again."
        return "Checkpoints are kept: go on with --resume."

    def run(self) -> None:
        if self.devices == "all":
            join()
        config = self.config
        if self.resume and not Run.there(self.folder):
            warnings.warn(f"There is no run in {self.folder}: it begins here.", stacklevel=2)
        devices = None if self.devices is None else Devices.of(self.devices, config.batch_size)
        if devices is not None and not devices.writes:
            follow(config, devices, schedule=self.schedule, data_dir=self.data_dir)
            return
        finished = train(
            config,
            self.folder,
            schedule=self.schedule,
            resume=self.resume,
            data_dir=self.data_dir,
            tensorboard=self.tensorboard,
            devices=devices,
        )
        print(finished.path)


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Compute the bounds of a stored model on its test split, or on another split."""

    run_folder: tyro.conf.Positional[Path]
    """A folder that `steingrad train` wrote."""
    samples: int = 100
    """Samples of the importance-weighted bound (paper: 100)."""
    split: Literal["train", "valid", "test"] = "test"
    """The images to use."""
    batch_size: int = IMAGES_AT_A_TIME
    """The number of images that are evaluated at a time."""
    data: MovedData = None
    data_dir: DataDir = None

    def run(self) -> None:
        check_output()
        for name, number in (("--samples", self.samples), ("--batch-size", self.batch_size)):
            if number < 1:
                raise ConfigError(f"{name} must be 1 or more, not {number}.")
            if number >= NUMBERS:
                raise ConfigError(f"{name} must be below 2^31, not {number}.")
        run, task, step, state = load_trained(self.run_folder, self.data_dir, self.data)
        images = getattr(task.dataset, self.split)
        # A batch is padded to its size, so it should not be much larger than the split.
        at_a_time = min(self.batch_size, max(len(images), IMAGES_AT_A_TIME))
        pixels = min(self.samples, SAMPLES_AT_A_TIME) * at_a_time * images.shape[1]
        check_memory(4 * pixels, f"A batch of {at_a_time} images")
        for number, seed in enumerate(run.config.seeds):
            key = evaluation_key(seed, step)
            watch = partial(track, description=f"seed {seed}", console=Console(stderr=True))
            model = task.model(state, number)
            bounds = evaluate(model, images, self.samples, key, watch, at_a_time)
            line = {"step": step, "seed": seed, "split": self.split, "samples": self.samples}
            print(json_line({**line, "elbo": bounds.elbo, "bound": bounds.bound}))


@dataclasses.dataclass(frozen=True)
class Sample:
    """Draw images from the prior, and reconstructions below their originals, as a PNG file."""

    run_folder: tyro.conf.Positional[Path]
    """A folder that `steingrad train` wrote."""
    out: Path = Path("grid.png")
    """The picture to write."""
    columns: int = 10
    """The number of images in a row."""
    rows: int = 4
    """Rows of samples from the prior. The rows below them alternate originals and
    reconstructions."""
    seed: int = 0
    """The seed of everything that is drawn."""
    data: MovedData = None
    data_dir: DataDir = None

    def run(self) -> None:
        if min(self.columns, self.rows) < 1:
            raise ConfigError(
                f"--columns and --rows must be 1 or more, not {self.columns}, {self.rows}."
            )
        if not 0 <= self.seed < NUMBERS:
            raise ConfigError(f"--seed must be between 0 and 2^31 - 1, not {self.seed}.")
        if self.out.suffix.lower() != ".png":
            raise ConfigError(f"--out names a PNG file, such as grid.png, not {self.out}.")
        _, task, _, state = load_trained(self.run_folder, self.data_dir, self.data)
        shape, count = task.dataset.image_shape, min(2 * self.columns, len(task.dataset.test))
        check_grids([(self.rows, self.columns), (4, -(-count // 2))], shape)
        model = task.model(state, 0)
        prior_key, observe_key, x_key = jax.random.split(jax.random.key(self.seed), 3)
        drawn = np.asarray(sample_images(model, self.rows * self.columns, key=prior_key))
        chosen = np.linspace(0, len(task.dataset.test) - 1, count).astype(int)
        originals = task.dataset.test[chosen]
        y = model.likelihood.observe(observe_key, jnp.asarray(originals))
        rebuilt = np.asarray(reconstruct(model, y, key=x_key))
        pairs = []
        for half in np.array_split(np.arange(count), 2):
            pairs += [originals[half] / 255, rebuilt[half]]
        drawn_rows = np.split(drawn, self.rows)
        save_grids(
            {
                "Samples from the prior": image_grid(drawn_rows, shape),
                "Test images, each above its reconstruction": image_grid(pairs, shape),
            },
            self.out,
        )
        print(self.out)


@dataclasses.dataclass(frozen=True)
class Report:
    """Write tables and figures of runs, beside the paper's numbers: a web page, and Markdown."""

    directory: tyro.conf.Positional[Path]
    """The folder that contains the run folders, at any depth. The `results.jsonl` of an earlier
    report counts, too."""
    out: Path = Path("report")
    """The folder to write: index.html, report.md, figures/, results.jsonl."""
    readme: OptionalPath = None
    """Also put the main tables into this Markdown file, between the lines
    `<!-- results:begin -->` and `<!-- results:end -->`."""

    def run(self) -> None:
        write_report(self.directory, self.out, self.readme)
        print(self.out / "index.html")


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Carry out the paper's experiments, or what is left of them."""

    selection: Selection
    schedule: Schedule
    workers: OptionalInt = None
    """The number of runs at a time, each with its share of the cores (default: 1; with Ray one for
    each node)."""
    out: Path = Path("runs/reproduce")
    """The folder of the run folders. With Ray it must be shared between the nodes."""
    engine: Literal["processes", "ray"] = "processes"
    """Where the runs are: processes of this machine, or a Ray cluster."""
    address: Annotated[str | None, optional(metavar="STR")] = None
    """The address of the Ray cluster (default: the cluster Ray knows of, or a local one)."""
    seed_runs: Literal["auto", "together", "apart"] = "auto"
    """Train all seeds of a configuration in one run, or apart, each in a run of its own. `auto`: as
    the runs that are already in --out; if there are none, apart on a CPU."""
    dry_run: bool = False
    """List the runs with their estimated time, and stop."""
    data_dir: DataDir = None

    def run(self) -> None:
        self.selection.configs()  # what is wrong with it is said before anything starts
        engine = self.build_engine()
        try:
            together = self.seed_runs == "together"
            if self.seed_runs == "auto":
                stored = self.selection.stored_together(self.out)
                together = engine.accelerated() if stored is None else stored
            planned = plan(self.selection.runs(together), self.out)
            costs = Costs.read(self.out)
            left = duration(seconds_left(planned, costs, engine.slots))
            if self.dry_run:
                show(table(planned, costs))
            print(f"{summary_line(planned)} Estimated time left: {left}.")
            if self.dry_run:
                return
            broken = sweep(
                planned, self.out, engine, schedule=self.schedule, data_dir=self.data_dir
            )
        finally:
            engine.stop()
        if broken:
            rows = Table("broken run", "why")
            for name, why in broken.items():
                rows.add_row(name, why)
            show(rows)
            sys.exit(1)
        print(f"Tables and figures: steingrad report {self.out}")

    def interrupted(self) -> str:
        if any(checkpoints(path) for path in self.out.glob("*/")):
            return "Checkpoints are kept: the same command goes on."
        return "There is no checkpoint yet: the same command begins again."

    def build_engine(self) -> Engine:
        if self.engine == "ray":
            return RayCluster(self.address, self.workers)
        if self.address is not None:
            raise ConfigError("--address goes with --engine ray.")
        return Processes(self.workers)


@dataclasses.dataclass(frozen=True)
class Data:
    """Show which datasets are there, and where."""

    action: tyro.conf.Positional[Literal["list"]]
    """`list`: a line for each dataset."""
    data_dir: DataDir = None

    def run(self) -> None:
        rows = Table("dataset", "found", "images", "train / valid / test", "files", "where")
        for entry in data.status(self.data_dir):
            files = "as published" if entry.published else "not the published ones"
            rows.add_row(
                entry.name,
                "yes" if entry.found else "no",
                "×".join(map(str, entry.image_shape)),
                " / ".join(map(str, entry.splits)),
                files if entry.found else "-",
                entry.where,
            )
        show(rows)


def _as_far_as_possible(error: UnicodeError) -> tuple[bytes, int]:
    """Paths as they are, text or not; a question mark for what the terminal has no letter for."""
    assert isinstance(error, UnicodeEncodeError)
    letters = error.object[error.start : error.end]
    return b"".join(
        letter.encode("ascii", "surrogateescape" if "\udc80" <= letter <= "\udcff" else "replace")
        for letter in letters
    ), error.end


def show(rows: Table) -> None:
    """Prints a table. Its cells are text without markup, as they may contain paths."""
    check_output()
    for column in rows.columns:
        column.overflow = "fold"  # in a narrow terminal nothing is cut
    width = None if sys.stdout.isatty() else 160
    Console(width=width, markup=False, emoji=False).print(rows)


def check_output() -> None:
    """Raises if standard output is closed. For commands whose result is what they print."""
    replaced = getattr(sys.stdout, "name", None) == os.devnull  # by `__main__`
    if sys.__stdout__ is None and replaced:
        raise RunError(
            "Standard output is closed, so the result cannot be printed. Open it, or send it to a "
            "file."
        )


def main(arguments: list[str] | None = None) -> None:
    """Entry point: errors that a user can act on become a sentence and a non-zero exit."""
    arguments = sys.argv[1:] if arguments is None else arguments
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    # As Text, because a message may contain a path, in which brackets are no markup.
    say = lambda word, style, text: console.print(Text.assemble((word, style), f" {text}"))
    warnings.showwarning = lambda message, *_, **__: say("warning:", "yellow", message)
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error(__name__, _as_far_as_possible)
        sys.stdout.reconfigure(errors=__name__)
    command = None
    try:
        if arguments == ["--version"]:
            print(f"steingrad {__version__}")
            return
        commands: Any = (Train, Evaluate, Sample, Report, Reproduce, Data)
        read = {kind: _read(kind) for kind in (*commands, Schedule, Selection)}
        registry = constructors.ConstructorRegistry()
        registry.struct_rule(lambda about: read.get(about.type))
        either_of: Any = Union[commands]  # noqa: UP007 (tyro reads it)
        command = tyro.cli(
            either_of,
            args=arguments,
            prog="steingrad",
            description=__doc__,
            config=(
                tyro.conf.OmitArgPrefixes,
                tyro.conf.OmitSubcommandPrefixes,
                tyro.conf.DisallowNone,  # an option that is not wanted is left out
            ),
            registry=registry,
        )
        with enough_memory():
            command.run()
    except (ConfigError, RunError, Diverged, data.DataError, OSError) as error:
        say("error:", "red", error)
        sys.exit(1)
    except KeyboardInterrupt:
        said = command.interrupted() if isinstance(command, (Train, Reproduce)) else ""
        console.print(f"stopped. {said}".strip())
        sys.exit(130)


if __name__ == "__main__":
    main()
