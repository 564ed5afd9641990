"""Which runs of the paper's grid, what is there of them, and how long the rest will take."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.table import Table

from ..paper import grid
from ..paper.settings import run_name
from ..training.config import Config, ConfigError, differences
from ..training.display import duration
from ..training.resume import MAY_CHANGE
from ..training.runs import Run, RunError, checkpoint_step
from .costs import Costs

# An option that may be left out: its help does not show None.
optional = functools.partial(tyro.conf.arg, help_behavior_hint="")
Names = Annotated[tuple[str, ...] | None, optional(metavar="[STR ...]")]
Numbers = Annotated[tuple[int, ...] | None, optional(metavar="[INT ...]")]


@dataclasses.dataclass(frozen=True)
class Selection:
    """Runs of the paper's grid."""

    names: tyro.conf.Positional[Annotated[tuple[str, ...], optional(metavar="[STR ...]")]]
    """Experiments: train-elbo, test-bound, hierarchical, ... An unknown name lists them all."""
    steps: Annotated[int | None, optional(metavar="INT")] = None
    """Training steps of each run (paper: 1000000). A larger number goes on with the same runs."""
    seeds: Numbers = None
    """Seeds of each configuration (paper: 1 2 3 4 5)."""
    datasets: Names = None
    """Only these datasets."""
    likelihoods: Names = None
    """Only these likelihoods."""
    estimators: Names = None
    """Only these estimators."""
    samples: Numbers = None
    """Only these numbers of samples K."""
    layers: Numbers = None
    """Only these numbers of stochastic layers."""

    def configs(self) -> list[Config]:
        """A configuration for each cell, once, with all its seeds."""
        if not self.names:
            known = ", ".join(grid.experiments())
            raise ConfigError(f"Name one or more experiments of: {known}.")
        found = [entry.config for name in self.names for entry in grid.find(name).entries]
        kept = list(dict.fromkeys(found))
        features: dict[str, Callable[[Config], Any]] = {
            "datasets": lambda config: config.dataset,
            "likelihoods": lambda config: config.likelihood,
            "estimators": lambda config: config.estimator,
            "samples": lambda config: config.samples,
            "layers": lambda config: len(config.layer_sizes),
        }
        for option, feature in features.items():
            asked, there = getattr(self, option), dict.fromkeys(map(feature, found))
            if asked is None:
                continue
            for value in asked:
                if value not in there:
                    raise ConfigError(
                        f"{option} {value} is in no run of {', '.join(self.names)}. There are: "
                        f"{', '.join(map(str, there))}."
                    )
            kept = [config for config in kept if feature(config) in asked]
        if not kept:
            raise ConfigError(f"No run of {', '.join(self.names)} has all that was asked for.")
        changes: dict[str, Any] = {"steps": self.steps, "seeds": self.seeds}
        changes = {name: value for name, value in changes.items() if value is not None}
        return [dataclasses.replace(config, **changes) for config in kept]

    def stored_together(self, out: Path) -> bool | None:
        """How the seeds of runs that are there already were run; None if there are none."""
        for together in (False, True):
            if any(Run.there(out / name) for name in self.runs(together)):
                return together
        return None

    def runs(self, together: bool = False) -> dict[str, Config]:
        """The configuration of each run by its name.

        >>> runs = Selection(("timing",), samples=(3,), seeds=(1, 2)).runs()
        >>> list(runs)[:2], len(runs)
        (['mnist-bernoulli-arms-k3-seed1', 'mnist-bernoulli-double_cv-k3-seed1'], 16)

        With all seeds of a configuration `together`, they are one run, by vmap: the choice for an
        accelerator. On a CPU it is slower than one after the other: on two busy cores, a step of
        three seeds took 3.5 to 6 times that of one (digits, RLOO and RODEO, measured once).
        """
        configs = self.configs()
        if not together:
            # The first seed of all comes first: a table is there early, and its errors get smaller.
            most = max(len(config.seeds) for config in configs)
            configs = [
                dataclasses.replace(config, seeds=config.seeds[number : number + 1])
                for number in range(most)
                for config in configs
                if number < len(config.seeds)
            ]
        return {run_name(config): config for config in configs}


@dataclasses.dataclass(frozen=True)
class Planned:
    """A run and what is there of it."""

    name: str
    config: Config
    status: Literal["new", "resumable", "finished", "beyond", "diverged", "unreadable", "other"]
    step: int
    """The step that its newest checkpoint has come to."""

    @property
    def left(self) -> bool:
        """Whether there is something to do."""
        return self.status not in ("finished", "beyond")

    @property
    def more(self) -> bool:
        """Finished with more steps than asked for."""
        return self.status == "finished" and self.step > self.config.steps


def plan(runs: Mapping[str, Config], out: Path) -> list[Planned]:
    """Compare the runs with what is in the folder `out`.

    A run that is finished with at least the steps asked for is finished. One that is on its way to
    more steps, and has passed those asked for, is `beyond`.
    """
    return [Planned(name, config, *_status(out / name, config)) for name, config in runs.items()]


def _status(folder: Path, config: Config) -> tuple[Any, int]:
    if not Run.there(folder):
        return "new", 0
    try:
        run = Run(folder)
    except RunError:
        return "unreadable", 0  # the worker says why
    if set(differences(run.config, config)) - set(MAY_CHANGE):
        return "other", 0  # a run of another configuration, under this name: the worker says so
    step = max(map(checkpoint_step, run.checkpoints()), default=0)
    if run.status == "finished" and run.config.steps >= config.steps:
        return "finished", run.config.steps
    if run.status == "diverged":
        return "diverged", step
    return ("beyond" if step > config.steps else "resumable"), step


def seconds_left(planned: list[Planned], costs: Costs, slots: int) -> float:
    """An estimate: all work shared out evenly, but no less than the longest run."""
    each = [costs.seconds(run.config, run.step) for run in planned if run.left]
    return max(sum(each) / slots, max(each, default=0.0))


def table(planned: list[Planned], costs: Costs) -> Table:
    """A line for each run."""
    rows = Table("run", "status", "steps", "estimated time left")
    for run in planned:
        asked = run.config.steps
        if not run.left:
            more = run.more or run.status == "beyond"
            steps = f"{run.step}, {asked} asked" if more else f"{run.step}"
            rows.add_row(run.name, run.status, steps, "-")
        else:
            left = duration(costs.seconds(run.config, run.step))
            rows.add_row(run.name, run.status, f"{run.step} of {asked}", left)
    return rows


def summary_line(planned: list[Planned]) -> str:
    """How many runs there are, and how many are left."""
    finished = [run for run in planned if run.status == "finished"]
    more = sum(run.more for run in finished)
    further = f", {more} of them with more steps than asked for" if more else ""
    beyond = sum(run.status == "beyond" for run in planned)
    way = f" {beyond} on the way to more steps than asked for, left alone." if beyond else ""
    return f"{len(planned)} runs, {len(finished)} finished before{further}.{way}"
