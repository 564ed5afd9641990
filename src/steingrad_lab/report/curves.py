"""Figures of an experiment: curves, each figure with a table of the values at the end."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from ..estimators import DESCRIPTIONS
from ..paper.grid import Entry, Experiment, find, published_variances
from ..paper.settings import STEPS
from ..training.config import Config
from .collect import Group
from .figures import Curve
from .metrics import METRICS
from .notes import budget, data_notes
from .numbers import Estimate, plural, significant, task_name
from .parts import NOTHING, Cell, Figure, Table, apart, in_legend, number_cell

# An estimator has the same style in every figure.
STYLE = {estimator.label: estimator.style for estimator in DESCRIPTIONS.values()}
STARS = {
    "grad_variance": "variances read by eye off its curves",
    "objective": "the mean training ELBO over its five runs, at their end",
}


def experiment_figures(experiment: Experiment, found: Mapping[Entry, Group]) -> list[Figure]:
    """Returns a figure for each task. An ablation is one figure and needs two labels."""
    if experiment.show != "curves":
        return []
    if experiment.ablation and len({entry.label for entry in found}) < 2:
        return []
    tasks: dict[str, dict[Entry, Group]] = {}
    for entry, group in found.items():
        tasks.setdefault(_figure_name(experiment, entry), {})[entry] = group
    figures = [_figure(experiment, name, entries) for name, entries in tasks.items()]
    return [figure for figure in figures if figure is not None]


def _figure_name(experiment: Experiment, entry: Entry) -> str:
    if experiment.ablation:
        return experiment.name
    config = entry.config
    layers = f"-layers{len(config.layer_sizes)}" if len(config.layer_sizes) > 1 else ""
    return f"{experiment.name}-{config.dataset}-{config.likelihood}{layers}-k{config.samples}"


def _figure(experiment: Experiment, name: str, found: Mapping[Entry, Group]) -> Figure | None:
    metrics = tuple(metric for metric in experiment.metrics if METRICS[metric].axis)
    several = len({entry.config.samples for entry in found}) > 1
    known = not several and all(entry.label in STYLE for entry in found)
    curves, labels = {}, {}
    for number, (entry, group) in enumerate(found.items()):
        labels[entry] = entry.label + (f", K = {entry.config.samples}" if several else "")
        label = in_legend(labels[entry], entry.biased)
        curve = mean_curve(label, STYLE[entry.label] if known else number, group, metrics)
        if curve is not None:
            curves[entry] = dataclasses.replace(curve, published=_published(entry, curve))
    if not curves:
        return None
    config = next(iter(found)).config
    parts = [task_name(config, [Config(likelihood="gaussian"), Config()])]
    parts += [] if several else [f"K = {config.samples}"]
    files = [
        note.removeprefix("† ")
        for note in data_notes((entry.config, group) for entry, group in found.items())[1]
    ]
    before = budget([(curve.label, found[entry]) for entry, curve in curves.items()])
    missing = [
        entry.label
        for entry in experiment.entries
        if entry not in curves and _figure_name(experiment, entry) == name
    ]
    before += [f"Not run: {', '.join(missing)}."] if missing else []
    stars = [
        what
        for metric, what in STARS.items()
        if any(metric in c.published for c in curves.values())
    ]
    before += [f"Stars are the paper's: {'; '.join(stars)}."] if stars else []
    table = _table({entry: found[entry] for entry in curves}, curves, labels, tuple(files))
    return Figure(name, ", ".join(parts), metrics, tuple(curves.values()), table, tuple(before))


def _published(entry: Entry, curve: Curve) -> dict[str, tuple[int, float]]:
    """Returns the paper's values of these metrics, at steps that the curve reaches."""
    found = {}
    variance = published_variances().get(entry.config)
    if variance:
        found["grad_variance"] = variance
    table = find("train-elbo")
    elbo = table.published(entry, "train_elbo")
    if elbo and any(other.config == entry.config for other in table.entries):
        found["objective"] = STEPS, elbo.mean
    return {
        metric: (step, value)
        for metric, (step, value) in found.items()
        if metric in curve.values and step <= curve.steps[-1]
    }


def mean_curve(label: str, style: int, group: Group, metrics: Sequence[str]) -> Curve | None:
    """Returns the mean over seeds, at the steps of the seed with the fewest lines.

    Returns `None` if there are fewer than two points.
    """
    shows = lambda line: "seconds" in line and all(_shows(line, name) for name in metrics)
    seeds = [[line for line in group.lines(seed) if shows(line)] for seed in group.seeds]
    shortest = min(seeds, key=len)
    last = min((lines[-1]["step"] for lines in seeds if lines), default=0)
    steps = [line["step"] for line in shortest if line["step"] <= last]
    if len(steps) < 2:
        return None
    means = {
        name: np.mean(
            [
                np.interp(steps, [x["step"] for x in lines], [x[name] for x in lines])
                for lines in seeds
            ],
            axis=0,
        )
        for name in metrics
    }
    rounded = lambda values: [float(f"{value:.5g}") for value in values]
    seconds = rounded(step * (group.ms_per_step or 0) / 1000 for step in steps)
    return Curve(label, style, steps, seconds, {name: rounded(means[name]) for name in metrics})


def _shows(line: Mapping, metric: str) -> bool:
    """Whether a line has a value that can be drawn. A logarithmic axis cannot show zero."""
    value = line.get(metric)
    return value is not None and (value > 0 or not METRICS[metric].logarithmic)


def _table(
    found: Mapping[Entry, Group],
    curves: Mapping[Entry, Curve],
    labels: Mapping[Entry, str],
    files: tuple[str, ...],
) -> Table:
    """Returns the table below a figure: the variance at one step, the ELBO and the time.

    The step is that of the published variance, or else the last one that all curves reach.
    """
    paper = {entry: published_variances().get(entry.config) for entry in found}
    published_step = next((there[0] for there in paper.values() if there), None)
    step = min(curve.steps[-1] for curve in curves.values())
    step = min(step, published_step or step)
    metrics = ("grad_variance", "train_elbo", "ms_per_step")
    columns = [
        f"{METRICS['grad_variance'].title} at {plural(step, 'step')}",
        *(METRICS[metric].title for metric in metrics[1:]),
    ]
    if published_step:
        columns.insert(1, f"Paper's at {plural(published_step, 'step')}")
    numbers = {
        entry: (
            Estimate.of([_at(step, group.lines(seed), "grad_variance") for seed in group.seeds]),
            *(Estimate.of(group.values(metric)) for metric in metrics[1:]),
        )
        for entry, group in found.items()
    }
    rows = []
    for entry, own in numbers.items():
        samples = entry.config.samples
        rivals = [
            other
            for e, other in numbers.items()
            if e.config.samples == samples and not e.biased and found[e].steps == found[entry].steps
        ]
        cells = [
            number_cell(metric, number, [rival[place] for rival in rivals], entry.biased)
            for place, (metric, number) in enumerate(zip(metrics, own, strict=True))
        ]
        if published_step:
            there = paper[entry]
            cells.insert(1, Cell(significant(Estimate(there[1], None))) if there else NOTHING)
        rows.append((entry.biased, labels[entry], tuple(cells)))
    eye = ("The paper's variances are read by eye off its curves.",) if published_step else ()
    return Table("", ("", *columns), apart(rows), after=(*eye, *files))


def _at(step: int, lines: Sequence[Mapping], metric: str) -> float:
    points = [(line["step"], line[metric]) for line in lines if line.get(metric) is not None]
    steps, values = np.transpose(points)
    return float(np.interp(step, steps, values))
