"""The report of a collection of runs."""

import json
from collections.abc import Mapping, Sequence

from ..paper.grid import Entry, Experiment, experiments, run_name
from .collect import Collection, Group, StoredRun
from .curves import experiment_figures
from .notes import budget
from .numbers import Estimate, fixed, plural, significant, task_name
from .parts import Block, Cell, Report, Section, Table
from .tables import column, experiment_tables, find_groups

READING = (
    "Numbers are means ± standard errors over seeds. Below each, smaller, stands the paper's. Bold "
    "is the best of ours in its column and block. ▲ and ▼ mark numbers that are higher or lower "
    "than the paper's by more than twice the combined standard error.",
    "Curves are means over seeds, of metrics recorded during training; the vertical axes leave out "
    "what lies beyond them in the first tenth of the horizontal axis. Time is steps times the "
    "run's median time of a step.",
)


def build(collection: Collection) -> Report:
    sections, absent, used = [], [], set()
    for experiment in experiments().values():
        found = find_groups(experiment, collection.groups)
        used |= {group.config for group in found.values()}
        parts = [*experiment_figures(experiment, found), *experiment_tables(experiment, found)]
        if parts:
            missing = _missing_tasks(experiment, found)
            sections.append(Section(experiment.name, experiment.title, tuple(parts), missing))
        else:
            absent.append(experiment.title)
    finished = [run for run in collection.runs if run.finished]
    groups = [("", group) for config, group in collection.groups.items() if config in used]
    before = [
        f"{plural(len(finished), 'finished run')} of "
        f"{plural(len(collection.groups), 'configuration')}, beside the numbers of “Gradient "
        "Estimation with Discrete Stein Operators” (Shi, Zhou, Hwang, Titsias, Mackey; NeurIPS "
        "2022).",
        *(budget(groups)[:1] if groups else []),
        *READING,
    ]
    if absent:
        before.append(f"Not run: {'; '.join(absent)}.")
    others = [group for config, group in collection.groups.items() if config not in used]
    if others:
        sections.append(Section("other-runs", "Other runs", (_others(others),)))
    if collection.unused:
        sections.append(Section("not-used", "Runs not used", (_unused(collection.unused),)))
    sections.append(_provenance(collection.runs))
    return Report("The paper's experiments with steingrad", tuple(before), tuple(sections))


def _missing_tasks(experiment: Experiment, found: Mapping[Entry, Group]) -> tuple[str, ...]:
    """A sentence about tasks of which nothing was run."""
    there = {(*column(entry), entry.config.samples) for entry in found}
    configs = [entry.config for entry in experiment.entries]
    missing = {
        f"{task_name(entry.config, configs)} (K = {entry.config.samples})": None
        for entry in experiment.entries
        if (*column(entry), entry.config.samples) not in there
    }
    return (f"Not run: {'; '.join(missing)}.",) if missing else ()


def _others(groups: Sequence[Group]) -> Table:
    """Runs of no experiment of the paper."""
    metrics = {
        "train_elbo": ("Training ELBO", fixed),
        "test_bound": ("Test bound", fixed),
        "grad_variance": ("Gradient variance", significant),
        "ms_per_step": ("Milliseconds a step", significant),
    }
    rows = []
    for group in groups:
        numbers = {name: Estimate.of(group.values(name)) for name in metrics}
        cells = [Cell(f"{group.steps:,}"), Cell(str(len(group.seeds)))]
        for name, (_, text) in metrics.items():
            number = numbers[name]
            cells.append(Cell(text(number) if number else "–"))
        rows.append((run_name(group.config).rpartition("-seed")[0], tuple(cells)))
    columns = ("", "Steps", "Seeds", *(title for title, _ in metrics.values()))
    before = ("They belong to no experiment of the paper.",)
    return Table("", columns, (Block("", tuple(rows)),), before)


def _unused(runs: Sequence[tuple[StoredRun, str]]) -> Table:
    rows = tuple((run.name, (Cell(reason),)) for run, reason in runs)
    return Table("", ("run", "why"), (Block("", rows),), words=True)


def _provenance(runs: Sequence[StoredRun]) -> Section:
    """Environments, data and commits."""
    machines: dict[str, list[StoredRun]] = {}
    files: dict[tuple[str, str], bool | None] = {}
    for run in runs:
        machines.setdefault(json.dumps(run.environment, sort_keys=True), []).append(run)
        for name, sha256 in run.data_files.items():
            files[name, sha256] = run.published.get(name)
    names = ("Runs", "Commit", "Python", "Packages", "Device", "Platform")
    columns = [_environment(members) for members in machines.values()]
    rows = tuple(
        (name, tuple(Cell(values[number]) for values in columns))
        for number, name in enumerate(names)
    )
    headings = [f"environment {number}" for number in range(1, len(columns) + 1)]
    environments = Table("Environment", ("", *headings), (Block("", rows),), words=True)
    said = {True: "as published", False: "not the published file", None: "not compared"}
    hashes = tuple(
        (name, (Cell(sha256), Cell(said[published])))
        for (name, sha256), published in sorted(files.items())
    )
    data = Table("Data", ("file", "SHA-256", ""), (Block("", hashes),), words=True)
    return Section("provenance", "Environment, data, commit", (environments, data))


def _environment(runs: Sequence[StoredRun]) -> tuple[str, ...]:
    there = runs[0].environment
    versions = there.get("versions", {})
    return (
        str(len(runs)),
        str(there.get("commit") or "unknown"),
        str(there.get("python", "unknown")),
        ", ".join(f"{name} {version}" for name, version in versions.items()),
        f"{there.get('device', 'unknown')}, {plural(there.get('cores') or 0, 'core')}",
        str(there.get("platform", "unknown")),
    )
