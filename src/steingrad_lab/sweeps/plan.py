"""Select runs of the paper's grid, and find out which of them are still to be done."""

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
    """Selects runs of the paper's grid."""

    names: tyro.conf.Positional[Annotated[tuple[str, ...], optional(metavar="[STR ...]")]]
    """Experiments: train-elbo, test-bound, hierarchical, ... An unknown name lists them all."""
    steps: Annotated[int | None, optional(metavar="INT")] = None
    """Training steps of each run (paper: 1000000). A larger number continues the same runs."""
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
        """Returns each selected configuration once, with all its seeds."""
        if not self.names:
            known = ", ".join(grid.experiments())
            raise ConfigError(f"No experiment was named. Name one or more of: {known}.")
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
                        f"No run of {', '.join(self.names)} has {option} {value}. Choose from: "
                        f"{', '.join(map(str, there))}."
                    )
            kept = [config for config in kept if feature(config) in asked]
        if not kept:
            raise ConfigError(
                f"No run of {', '.join(self.names)} matches all options at once. Leave some out."
            )
        changes: dict[str, Any] = {"steps": self.steps, "seeds": self.seeds}
        changes = {name: value for name, value in changes.items() if value is not None}
        return [dataclasses.replace(config, **changes) for config in kept]

    def stored_together(self, out: Path) -> bool | None:
        """Whether existing runs have their seeds together; `None` if there are no runs."""
        for together in (False, True):
            if any(Run.there(out / name) for name in self.runs(together)):
                return together
        return None

    def runs(self, together: bool = False) -> dict[str, Config]:
        """Returns the configuration of each run by its name.

        >>> runs = Selection(("timing",), samples=(3,), seeds=(1, 2)).runs()
        >>> list(runs)[:2], len(runs)
        (['mnist-bernoulli-arms-k3-seed1', 'mnist-bernoulli-double_cv-k3-seed1'], 16)

        With `together`, all seeds of a configuration are one run, by vmap, which suits an
        accelerator. On a CPU separate runs are faster: on two busy cores, a step of three seeds
        took 3.5 to 6 times as long as a step of one (digits, RLOO and RODEO, measured once).
        """
        configs = self.configs()
        if not together:
            # The first seed of all configurations comes first, so that tables fill up early.
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
    """A run and its current state."""

    name: str
    config: Config
    status: Literal["new", "resumable", "finished", "beyond", "diverged", "unreadable", "other"]
    step: int
    """The step of the newest checkpoint."""

    @property
    def left(self) -> bool:
        """Whether the run still has to be trained."""
        return self.status not in ("finished", "beyond")

    @property
    def more(self) -> bool:
        """Whether the run is finished with more steps than asked for."""
        return self.status == "finished" and self.step > self.config.steps


def plan(runs: Mapping[str, Config], out: Path) -> list[Planned]:
    """Finds the current state of each run in the folder `out`.

    A run is `finished` if it was completed with at least the steps asked for. A run of more steps
    that is not completed, but has passed the steps asked for, is `beyond`.
    """
    return [Planned(name, config, *_status(out / name, config)) for name, config in runs.items()]


def _status(folder: Path, config: Config) -> tuple[Any, int]:
    if not Run.there(folder):
        return "new", 0
    try:
        run = Run(folder)
    except RunError:
        return "unreadable", 0  # the worker will report the error
    if set(differences(run.config, config)) - set(MAY_CHANGE):
        return "other", 0  # another configuration, which the worker will report as an error
    step = max(map(checkpoint_step, run.checkpoints()), default=0)
    if run.status == "finished" and run.config.steps >= config.steps:
        return "finished", run.config.steps
    if run.status == "diverged":
        return "diverged", step
    return ("beyond" if step > config.steps else "resumable"), step


def seconds_left(planned: list[Planned], costs: Costs, slots: int) -> float:
    """Estimates the time left: an equal share of the work, but at least the longest run."""
    each = [costs.seconds(run.config, run.step) for run in planned if run.left]
    return max(sum(each) / slots, max(each, default=0.0))


def table(planned: list[Planned], costs: Costs) -> Table:
    """Returns a table with a line for each run."""
    rows = Table("run", "status", "steps", "estimated time left")
    for run in planned:
        steps, left = f"{run.step}", "-"
        if run.left:
            steps += f" of {run.config.steps}"
            left = duration(costs.seconds(run.config, run.step))
        elif run.more or run.status == "beyond":
            steps += f", {run.config.steps} asked"
        rows.add_row(run.name, run.status, steps, left)
    return rows


def summary_line(planned: list[Planned]) -> str:
    """Says how many runs there are, and how many are finished."""
    finished = [run for run in planned if run.status == "finished"]
    more = sum(run.more for run in finished)
    further = f", {more} of them with more steps than asked for" if more else ""
    beyond = sum(run.status == "beyond" for run in planned)
    way = f" {beyond} on the way to more steps than asked for, left alone." if beyond else ""
    return f"{len(planned)} runs, {len(finished)} finished before{further}.{way}"
