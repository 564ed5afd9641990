"""Tables of an experiment: our numbers and the paper's."""

import itertools
import math
from collections.abc import Mapping, Sequence

from ..estimators import DESCRIPTIONS
from ..paper.grid import Entry, Experiment, Published
from ..paper.settings import SEEDS, STEPS, TIMED_ON
from ..training.config import Config
from .collect import Group, key
from .metrics import METRICS, is_best
from .notes import budget, data_notes
from .numbers import Estimate, fixed, outside, plural, significant, task_name
from .parts import BIASED, NOTHING, Block, Cell, Table

ONE_SEED = (
    "A number without ± is of one seed: it has no error of its own, so its difference from the "
    "paper's is not marked."
)
ONE_RUN = (
    "A number without ± is of one seed. Beside a number of the paper's its error is taken to be "
    f"that of one of the paper's runs, √{len(SEEDS)} times the standard error over all of them."
)


def find_groups(experiment: Experiment, groups: Mapping[Config, Group]) -> dict[Entry, Group]:
    """Returns the entries of an experiment that have been run."""
    found = {entry: groups.get(key(entry.config)) for entry in experiment.entries}
    return {entry: group for entry, group in found.items() if group is not None}


def experiment_tables(experiment: Experiment, found: Mapping[Entry, Group]) -> list[Table]:
    """Returns a table for each metric with a number, followed by the ordering if published."""
    tables = []
    for metric in experiment.metrics:
        if experiment.show != "table" and metric != "ms_per_step":
            continue
        numbers = {entry: Estimate.of(group.values(metric)) for entry, group in found.items()}
        numbers = {entry: number for entry, number in numbers.items() if number is not None}
        if numbers:
            tables.append(_table(experiment, metric, numbers, found))
            tables += _ordering(experiment, metric, numbers, found)
    return tables


def column(entry: Entry) -> tuple:
    config = entry.config
    return config.dataset, config.likelihood, len(config.layer_sizes)


def _table(
    experiment: Experiment,
    metric: str,
    numbers: Mapping[Entry, Estimate],
    found: Mapping[Entry, Group],
) -> Table:
    present = {column(entry) for entry in numbers}
    shown = [entry for entry in experiment.entries if column(entry) in present]
    columns = {column(entry): entry.config for entry in shown}
    files, file_notes = data_notes((entry.config, found[entry]) for entry in numbers)
    headings = [
        task_name(config, columns.values()) + (" †" if place in files else "")
        for place, config in columns.items()
    ]
    blocks = []
    kinds = {(entry.config.samples, entry.biased): None for entry in numbers}
    for samples, biased in sorted(kinds):
        same = [entry for entry in shown if entry.config.samples == samples]
        block = [entry for entry in same if entry.biased == biased]
        rows: dict[str, dict[tuple, Cell]] = {}
        for entry in block:
            rivals = [e for e in same if column(e) == column(entry)]
            cell = _cell(experiment, metric, entry, rivals, numbers, found)
            rows.setdefault(entry.label, {})[column(entry)] = cell
        lines = tuple(
            (label, tuple(cells.get(place, Cell("")) for place in columns))
            for label, cells in rows.items()
        )
        heading = f"{BIASED}, K = {samples}" if biased else f"K = {samples}"
        blocks.append(Block(heading, lines))
    before = [*budget([(_full_name(e, columns), found[e]) for e in numbers], metric)]
    if metric == "ms_per_step":
        before.append(_timing_sentence(experiment, [found[entry] for entry in numbers]))
    elif single := [entry for entry, number in numbers.items() if number.stderr is None]:
        published = any(
            found[entry].steps >= STEPS and experiment.published(entry, metric) for entry in single
        )
        before.append(ONE_RUN if published else ONE_SEED)
    title = _title(experiment, metric)
    return Table(title, ("", *headings), tuple(blocks), tuple(before), tuple(file_notes))


def _title(experiment: Experiment, metric: str) -> str:
    """Returns the metric's title, unless the experiment has only one metric."""
    return METRICS[metric].title if len(experiment.metrics) > 1 else ""


def _full_name(entry: Entry, columns: Mapping[tuple, Config]) -> str:
    task = task_name(entry.config, columns.values())
    return f"{entry.label} on {task} (K = {entry.config.samples})"


def _cell(
    experiment: Experiment,
    metric: str,
    entry: Entry,
    rivals: Sequence[Entry],
    numbers: Mapping[Entry, Estimate],
    found: Mapping[Entry, Group],
) -> Cell:
    published = experiment.published(entry, metric)
    timing = metric == "ms_per_step"
    reference = _reference(experiment, rivals) if timing else None
    theirs = experiment.published(reference, metric) if reference else None
    if published and timing:
        paper = f"{published.mean / theirs.mean:.2f}×" if theirs else ""
    else:
        paper = fixed(published) if published else ""
    if entry not in numbers:
        return Cell(NOTHING.text, paper, title="not run", comparable=False)
    ours, group = numbers[entry], found[entry]
    seeds = ", ".join(map(str, group.seeds))
    title = f"{plural(group.steps, 'step')}; {'seeds' if len(group.seeds) > 1 else 'seed'} {seeds}"
    unbiased = [
        numbers.get(rival)
        for rival in rivals
        if not rival.biased and rival in found and found[rival].steps == group.steps
    ]
    best = not entry.biased and is_best(metric, ours, unbiased)
    if timing:
        milliseconds = f"{significant(ours)} ms"
        base = numbers.get(reference) if reference else None
        if base is None or not base.mean:
            return Cell(milliseconds, paper, best=best, title=title)
        return Cell(f"{ours.mean / base.mean:.2f}×", paper, milliseconds, best, title=title)
    mark = ""
    comparable = group.steps >= STEPS
    if published and comparable and outside(_with_error(ours, published), published):
        mark = "▲" if ours.mean > published.mean else "▼"
        side = "higher" if mark == "▲" else "lower"
        title += f"; {side} than the paper's by {abs(ours.mean - published.mean):.2f}"
    return Cell(fixed(ours), paper, best=best, mark=mark, title=title, comparable=comparable)


def _with_error(ours: Estimate, published: Published) -> Estimate:
    """Gives a single run the standard error of one of the paper's runs."""
    if ours.stderr is not None or published.stderr is None:
        return ours
    return Estimate(ours.mean, published.stderr * math.sqrt(len(SEEDS)))


def _reference(experiment: Experiment, rivals: Sequence[Entry]) -> Entry | None:
    """Returns the entry by whose time others are divided. For K = 3, without DisARM, it is ARMS."""
    for name in (experiment.reference, "arms"):
        for entry in rivals:
            if entry.config.estimator == name:
                return entry
    return None


def _timing_sentence(experiment: Experiment, groups: Sequence[Group]) -> str:
    seeds = sorted({len(run.config.seeds) for group in groups for run in group.seeds.values()})
    devices = {
        f"{run.environment.get('device', 'an unknown device')} with "
        f"{plural(run.environment.get('cores') or 0, 'core')}"
        for group in groups
        for run in group.seeds.values()
    }
    three = any(entry.config.estimator == "arms" for entry in experiment.entries)
    reference = DESCRIPTIONS[experiment.reference or "rloo"].label + (
        " (ARMS for K = 3)" if three else ""
    )
    sentence = (
        f"The paper's times are of {TIMED_ON}, ours of {', '.join(sorted(devices))}. Only "
        f"ratios compare: each time is divided by that of {reference} in the same task."
    )
    if seeds == [1]:
        return sentence
    counts = " or ".join(map(str, seeds))
    mixed = ", so times with different numbers do not compare" if len(seeds) > 1 else ""
    return f"{sentence} A step is that of {counts} seeds side by side{mixed}."


def _ordering(
    experiment: Experiment,
    metric: str,
    numbers: Mapping[Entry, Estimate],
    found: Mapping[Entry, Group],
) -> list[Table]:
    """Returns a table of our and the paper's ranking of the unbiased estimators for each task.

    A task needs two published numbers, and its runs need the same number of steps.
    """
    numbers = {entry: number for entry, number in numbers.items() if not entry.biased}
    tasks: dict[tuple, list[Entry]] = {}
    for entry in numbers:
        tasks.setdefault((entry.config.samples, *column(entry)), []).append(entry)
    sign = 1 if METRICS[metric].lower_is_better else -1
    symbol = " < " if sign > 0 else " > "
    configs = [entry.config for entry in numbers]
    rows = []
    for entries in tasks.values():
        published = {entry: experiment.published(entry, metric) for entry in entries}
        paper = {entry: number.mean for entry, number in published.items() if number}
        if len(paper) < 2 or len({found[entry].steps for entry in entries}) > 1:
            continue
        ours = sorted(entries, key=lambda entry: sign * numbers[entry].mean)
        theirs = sorted(paper, key=lambda entry: sign * paper[entry])
        changes = [
            f"{worse.label} before {better.label}" + _certainty(numbers[worse], numbers[better])
            for better, worse in itertools.combinations(theirs, 2)
            if sign * (numbers[better].mean - numbers[worse].mean) > 0
            and paper[better] != paper[worse]
        ]
        cells = (
            Cell(symbol.join(entry.label for entry in ours)),
            Cell(symbol.join(entry.label for entry in theirs)),
            Cell("ours has " + "; ".join(changes) if changes else "the same"),
        )
        config = entries[0].config
        rows.append((f"{task_name(config, configs)}, K = {config.samples}", cells))
    if not rows:
        return []
    metric_title = _title(experiment, metric)
    title = f"{metric_title}: the order, best first" if metric_title else "The order, best first"
    return [
        Table(title, ("", "ours", "paper", "difference"), (Block("", tuple(rows)),), words=True)
    ]


def _certainty(first: Estimate, second: Estimate) -> str:
    different = outside(first, second)
    if different is None:
        return ""
    return " (outside our error)" if different else " (within our error)"
