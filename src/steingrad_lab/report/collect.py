"""Read runs from run folders and from `results.jsonl`, and group them by configuration."""

import dataclasses
import json
import math
import reprlib
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..paper.settings import run_name
from ..training.config import Config, from_json, to_json
from ..training.runs import Run, RunError
from ..training.stored import FORMAT, check_metrics, is_name, is_number, to_present
from .numbers import visible

RESULTS = "results.jsonl"
# The most points of a curve that are kept, which is enough for a figure.
POINTS = 200


@dataclasses.dataclass(frozen=True)
class StoredRun:
    """A run without its checkpoints, as a line of `results.jsonl`.

    The metrics are rounded and thinned out. Each line has `seconds` instead of `ms_per_step`: the
    number of steps times the median time of a step, which interruptions do not affect.
    """

    name: str
    """The run folder, relative to the folder that was searched."""
    status: str
    config: Config
    ms_per_step: float | None
    """The median of the reports, without the first report of each seed."""
    environment: Mapping[str, Any]
    data_files: Mapping[str, str]
    published: Mapping[str, bool | None]
    """Whether each data file is identical to the published one; `None` if unknown."""
    metrics: tuple[Mapping[str, Any], ...]
    folder: bool = False
    """Whether the run was read from a run folder."""

    @property
    def finished(self) -> bool:
        return self.status == "finished"


@dataclasses.dataclass(frozen=True)
class Group:
    """The finished runs of one configuration with the same number of steps, by seed."""

    config: Config
    steps: int
    seeds: Mapping[int, StoredRun]

    def lines(self, seed: int) -> list[Mapping[str, Any]]:
        return [line for line in self.seeds[seed].metrics if line["seed"] == seed]

    @property
    def ms_per_step(self) -> float | None:
        """The time of the fastest run. Other work on a machine only makes runs slower."""
        times = (run.ms_per_step for run in self.seeds.values())
        return min((time for time in times if time is not None), default=None)

    def values(self, metric: str) -> list[float]:
        """Returns the last value for each seed, or the group's one value of `ms_per_step`."""
        if metric == "ms_per_step":
            return [] if self.ms_per_step is None else [self.ms_per_step]
        found = [[line.get(metric) for line in self.lines(seed)] for seed in self.seeds]
        known = [[value for value in values if value is not None] for values in found]
        return [values[-1] for values in known if values]


@dataclasses.dataclass(frozen=True)
class Collection:
    """All runs of a report."""

    runs: tuple[StoredRun, ...]
    groups: Mapping[Config, Group]
    """The groups by the `key` of their configuration."""
    unused: tuple[tuple[StoredRun, str], ...]
    """The runs that are in no group, each with the reason."""


def key(config: Config) -> Config:
    """Returns the part of a configuration that the runs of a group have in common."""
    return dataclasses.replace(config, steps=1, seeds=(0,), bound_samples=1)


def collect(directory: Path) -> Collection:
    """Returns all runs under a folder. Damaged runs are left out, with a warning."""
    runs = _without_copies([*_folders(directory), *_lines(directory)])
    if not runs:
        raise RunError(
            f"There are no runs under {directory}: no folder with a readable config.json, and no "
            f"{RESULTS}. Name the folder that `steingrad train` or `reproduce` wrote to."
        )
    together: dict[Config, list[StoredRun]] = {}
    unused = []
    for run in runs:
        if run.finished:
            together.setdefault(key(run.config), []).append(run)
        else:
            reason = "diverged" if run.status == "diverged" else "not finished"
            unused.append((run, f"{reason}, at step {_last_step(run):,} of {run.config.steps:,}"))
    groups = {}
    for shared, members in together.items():
        steps = max(run.config.steps for run in members)
        seeds: dict[int, StoredRun] = {}
        for run in members:
            if run.config.steps < steps:
                reason = f"a run of {steps:,} steps of the same configuration is used"
                unused.append((run, f"{run.config.steps:,} steps; {reason}"))
            else:
                seeds = {**dict.fromkeys(run.config.seeds, run), **seeds}
        groups[shared] = Group(shared, steps, dict(sorted(seeds.items())))
    return Collection(tuple(runs), groups, tuple(unused))


def results(runs: Iterable[StoredRun]) -> str:
    """Returns a line of JSON for each run."""
    return "".join(json.dumps(_to_json(run)) + "\n" for run in runs)


def compact(run: Run, name: str) -> StoredRun:
    """Converts a run folder to a line of `results.jsonl`."""
    seeds: dict[int, list[dict[str, Any]]] = {}
    for line in run.metrics():
        seeds.setdefault(line["seed"], []).append(line)
    usual = []
    for lines in seeds.values():
        times = [line["ms_per_step"] for line in lines if line.get("ms_per_step", 0) > 0]
        usual += times[1:] or times  # the first report may include delays at the start
    median = float(np.median(usual)) if usual else None
    kept = []
    for lines in seeds.values():
        for line in lines:
            if line.pop("ms_per_step", None) is not None and median is not None:
                line["seconds"] = line["step"] * median / 1000
        reports = [line for line in lines if "seconds" in line]
        evaluations = [line for line in lines if "seconds" not in line and not line.get("final")]
        kept += [*_thin(reports), *_thin(evaluations), *(x for x in lines if x.get("final"))]
    return StoredRun(
        name,
        run.status,
        run.config,
        _round(median),
        run.record["environment"],
        run.record["data_files"],
        run.published,
        tuple({name: _round(value) for name, value in line.items()} for line in kept),
        folder=True,
    )


def _folders(directory: Path) -> list[StoredRun]:
    found = []
    for path in _search(directory, "config.json"):
        folder = path.parent
        name = folder.name if folder == directory else folder.relative_to(directory).as_posix()
        try:
            found.append(compact(Run(folder), name))
        except Exception as error:  # a damaged file may contain anything
            warnings.warn(visible(f"{folder} is left out: {_said(error)}"), stacklevel=3)
    return found


def _lines(directory: Path) -> list[StoredRun]:
    found = []
    for path in _search(directory, RESULTS):
        try:
            content = path.read_bytes()
        except OSError as error:
            warnings.warn(visible(f"{path} is left out: {error.strerror}."), stacklevel=3)
            continue
        for number, line in enumerate(content.split(b"\n"), 1):
            if not line:
                continue
            try:
                found.append(_from_json(json.loads(line)))
            except Exception as error:
                said = f"{path}, line {number}, is left out: {_said(error)}"
                warnings.warn(visible(said), stacklevel=3)
    return found


def _search(directory: Path, name: str) -> list[Path]:
    """Returns all files of this name, except those in hidden folders."""
    found = sorted(path.relative_to(directory) for path in directory.rglob(name))
    hidden = lambda path: any(part.startswith(".") for part in path.parts)
    return [directory / path for path in found if not hidden(path)]


def _said(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error}."
    return str(error) or f"reading it gave {type(error).__name__}."


def _without_copies(runs: list[StoredRun]) -> list[StoredRun]:
    """Keeps one finished run for each configuration and seeds, and unfinished run folders."""
    same: dict[tuple, list[StoredRun]] = {}
    for run in runs:
        same.setdefault((key(run.config), run.config.seeds), []).append(run)
    kept = []
    for copies in same.values():
        best = max(copies, key=lambda run: (run.finished, run.config.steps, run.folder))
        kept.append(best)
        for run in copies:
            if run is best or not run.folder:
                continue
            if run.finished and run.config.steps == best.config.steps:
                said = f"{run.name} is left out: {best.name} is the same run."
                warnings.warn(visible(said), stacklevel=3)
            else:
                kept.append(run)
    return sorted(kept, key=lambda run: (run_name(run.config), run.name))


def _last_step(run: StoredRun) -> int:
    return max((line["step"] for line in run.metrics), default=0)


def _thin(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(lines) <= POINTS:
        return lines
    return [lines[i] for i in np.linspace(0, len(lines) - 1, POINTS).round().astype(int)]


def _round(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _to_json(run: StoredRun) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(run) if field.name != "folder"]
    fields = {"format": FORMAT, **{name: getattr(run, name) for name in names}}
    return {**fields, "config": to_json(run.config)}


def _from_json(fields: dict[str, Any]) -> StoredRun:
    fields = to_present(fields)
    del fields["format"]
    for line in fields["metrics"]:
        check_metrics(line)
    fields.update(config=from_json(fields["config"]), metrics=tuple(fields["metrics"]))
    run = StoredRun(**fields)
    if not is_name(run.name):
        raise ValueError(f"it is damaged: its name is {reprlib.repr(run.name)}.")
    for time in (run.ms_per_step, *(line.get("seconds") for line in run.metrics)):
        if time is not None and not (is_number(time) and time >= 0):
            raise ValueError(f"it is damaged: it has the time {reprlib.repr(time)}.")
    return run
