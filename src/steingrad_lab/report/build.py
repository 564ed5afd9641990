"""Build the report of a collection of runs."""

import json
from collections.abc import Mapping, Sequence

from ..paper.grid import Entry, Experiment, experiments
from .collect import Collection, Group, StoredRun
from .curves import experiment_figures
from .notes import PAPER_BUDGET, budget
from .numbers import plural, task_name
from .own import own_sections
from .parts import Block, Cell, Report, Section, Table
from .tables import column, experiment_tables, find_groups

NUMBERS = (
    "Numbers are means ± standard errors over seeds. Below each, smaller, stands the paper's"
    "{where}. Bold is the best of ours in its column and block, biased ones aside. Where the steps "
    "are as many, ▲ and ▼ mark numbers that are higher or lower than the paper's by more than "
    "twice the combined standard error."
)
OWN_NUMBERS = (
    "Numbers are means ± standard errors over seeds; one seed has no error. Bold is the best in "
    "its column, among runs of the same number of steps, biased ones aside."
)
CURVES = (
    "Curves are means over seeds, of metrics recorded during training; the vertical axes leave out "
    "what lies beyond them in the first tenth of the horizontal axis. Time is steps times the "
    "median time of a step in the fastest run: other work on a machine only ever adds."
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
    own = [group for config, group in collection.groups.items() if config not in used]
    paper = bool(sections)
    sections += own_sections(own, beside_paper=paper)
    if collection.unused:
        sections.append(
            Section("not-used", "Runs not used", (_unused(collection.unused),), aside=True)
        )
    sections.append(_provenance(collection.runs))
    finished = [run for run in collection.runs if run.finished]
    found = (
        f"{plural(len(finished), 'finished run')} of "
        f"{plural(len(collection.groups), 'configuration')}"
    )
    if not paper:
        before = (f"{found}.", OWN_NUMBERS, CURVES)
        return Report("Runs with steingrad", before, before[:2], tuple(sections))
    groups = [("", group) for config, group in collection.groups.items() if config in used]
    short = budget(groups)[:1]
    full = [] if short else [f"These runs have the paper's budget, {PAPER_BUDGET}."]
    found += (
        ", beside the numbers of “Gradient Estimation with Discrete Stein Operators” (Shi, Zhou, "
        "Hwang, Titsias, Mackey; NeurIPS 2022)."
    )
    missing = [f"Not run: {'; '.join(absent)}."] if absent else []
    return Report(
        "The paper's experiments with steingrad",
        (found, *short, *full, NUMBERS.format(where=""), CURVES, *missing),
        # The summary has no sentence on the budget here, because each table has its own.
        (found, *full, NUMBERS.format(where=" where the steps are as many")),
        tuple(sections),
    )


def _missing_tasks(experiment: Experiment, found: Mapping[Entry, Group]) -> tuple[str, ...]:
    """Returns a sentence that lists the tasks without any run."""
    there = {(*column(entry), entry.config.samples) for entry in found}
    configs = [entry.config for entry in experiment.entries]
    missing = {
        f"{task_name(entry.config, configs)} (K = {entry.config.samples})": None
        for entry in experiment.entries
        if (*column(entry), entry.config.samples) not in there
    }
    return (f"Not run: {'; '.join(missing)}.",) if missing else ()


def _unused(runs: Sequence[tuple[StoredRun, str]]) -> Table:
    rows = tuple((run.name, (Cell(reason),)) for run, reason in runs)
    return Table("", ("run", "why"), (Block("", rows),), words=True)


def _provenance(runs: Sequence[StoredRun]) -> Section:
    """Returns the section on environments, data files and commits."""
    machines: dict[str, list[StoredRun]] = {}
    files: dict[tuple[str, str], bool | None] = {}
    for run in runs:
        machines.setdefault(json.dumps(run.environment, sort_keys=True), []).append(run)
        for name, sha256 in run.data_files.items():
            files[name, sha256] = run.published.get(name)
    names = ("Runs", "Commit", "Python", "Packages", "Device", "Platform")
    columns = [map(Cell, _environment(members)) for members in machines.values()]
    rows = tuple(zip(names, zip(*columns, strict=True), strict=True))
    headings = [f"environment {number}" for number in range(1, len(machines) + 1)]
    environments = Table("Environment", ("", *headings), (Block("", rows),), words=True)
    said = {True: "as published", False: "not the published file", None: "not compared"}
    hashes = tuple(
        (name, (Cell(sha256), Cell(said[published])))
        for (name, sha256), published in sorted(files.items())
    )
    data = Table("Data", ("file", "SHA-256", ""), (Block("", hashes),), words=True)
    return Section("provenance", "Environment, data, commit", (environments, data), aside=True)


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
