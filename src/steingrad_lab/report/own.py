"""Sections on runs that do not belong to an experiment of the paper."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data import label as short
from ..estimators import DESCRIPTIONS
from ..training.config import DEFAULTS, Config, used
from .collect import Group
from .curves import mean_curve
from .metrics import METRICS
from .notes import data_notes
from .numbers import Estimate, dataset_name
from .parts import NOTHING, Block, Cell, Figure, Section, Table, apart, in_legend, number_cell

CURVES = ("grad_variance", "objective")
COLUMNS = ("train_elbo", "test_elbo", "test_bound", "grad_variance", "ms_per_step")
# The most characters of a dataset's name in the name of a file, which may have 255 bytes.
SLUG = 40
# Settings that the title of a section gives, or that groups do not distinguish.
TOLD = ("dataset", "likelihood", "steps", "seeds", "bound_samples")


def own_sections(groups: Sequence[Group], beside_paper: bool) -> list[Section]:
    """Returns a section for each dataset and likelihood, with curves, numbers and settings.

    VAEs of categories have sections of their own, one for each number of codes and categories.
    """
    tasks: dict[tuple[str, str, str], list[Group]] = {}
    for group in groups:
        config = group.config
        tasks.setdefault((config.dataset, config.likelihood, _codes(config)), []).append(group)
    sections, names = [], Counter[str]()
    for (dataset, likelihood, codes), members in tasks.items():
        title = f"{dataset_name(dataset)}, {likelihood.capitalize()} likelihood"
        name = f"own-{_slug(short(dataset))}-{likelihood}"
        if codes:
            name, title = f"{name}-{codes.replace(' ', '-')}", f"{title}, {codes}"
        # Some file systems do not distinguish capital letters.
        names[name.lower()] += 1
        if names[name.lower()] > 1:  # a dataset of the same name in another folder
            name = f"{name}-{names[name.lower()]}"
            title = f"{title} ({Path(dataset).parent})"
        before = ("They belong to no experiment of the paper.",) if beside_paper else ()
        heading = f"Other runs: {title}" if beside_paper else title
        sections.append(Section(name, heading, _parts(name, members), before, beside_paper))
    return sections


def _slug(name: str) -> str:
    """Returns a name that files and links can have. Different names may become the same.

    >>> _slug("two words/<b>")
    'two_words__b_'
    """
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in name)[:SLUG]


def _codes(config: Config) -> str:
    """Returns the codes of a VAE of categories in words; empty for bits.

    >>> _codes(Config(model="categorical", layer_sizes=(16,), estimator="rloo")), _codes(Config())
    ('16 codes of 8 categories', '')
    """
    if config.model == "binary":
        return ""
    return f"{' and '.join(map(str, config.layer_sizes))} codes of {config.categories} categories"


def _parts(name: str, groups: Sequence[Group]) -> tuple[Table | Figure, ...]:
    configs = [group.config for group in groups]
    changed = differing(configs)
    labels = {config: label(config, configs) for config in configs}
    # If all estimators are different, each can have its usual style.
    known = len({config.estimator for config in configs}) == len(groups)
    curves = []
    for number, group in enumerate(groups):
        style = DESCRIPTIONS[group.config.estimator].style if known else number
        shown = in_legend(labels[group.config], _biased(group))
        curve = mean_curve(shown, style, group, CURVES)
        curves += [] if curve is None else [curve]
    table = _numbers(groups, labels)
    first = Figure(name, "Curves", CURVES, tuple(curves), table) if curves else table
    return (first, _settings(groups, labels, changed))


def differing(configs: Sequence[Config]) -> list[str]:
    """Returns the settings that differ between configurations where they have an effect."""
    found = []
    settings = [used(vars(config)) for config in configs]
    for name in DEFAULTS:
        values = {each[name] for each in settings if name in each}
        if len(values) > 1 and name not in TOLD:
            found.append(name)
    return found


def label(config: Config, configs: Sequence[Config]) -> str:
    """Returns the estimator, and the settings in which a configuration differs from most others.

    >>> mpf = Config(samples=3, operator="mpf")
    >>> label(mpf, [mpf, Config(), Config(hidden=())]), label(Config(), [mpf, Config(), Config()])
    ('RODEO, K = 3, operator mpf', 'RODEO')
    """
    parts = [DESCRIPTIONS[config.estimator].label]
    settings, others = used(vars(config)), [used(vars(other)) for other in configs]
    for name in differing(configs):
        if name == "estimator" or name not in settings:
            continue
        values = Counter(_shown(other, name) for other in others if name in other)
        (usual, most), (_, next_most), *_ = values.most_common()
        own = _shown(settings, name)
        if own != usual or most == next_most:
            said = "K =" if name == "samples" else _words(name)
            parts.append(f"{said} {own}")
    return ", ".join(parts)


def _words(name: str) -> str:
    return name.strip("_").replace("_", " ")


def _shown(settings: Mapping[str, Any], name: str) -> str:
    value = settings.get(name, "–")
    if name == "estimator":
        return DESCRIPTIONS[value].label
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return "all" if value is None else str(value)


def _numbers(groups: Sequence[Group], labels: Mapping[Config, str]) -> Table:
    there = [metric for metric in COLUMNS if any(group.values(metric) for group in groups)]
    numbers = {
        group.config: {metric: Estimate.of(group.values(metric)) for metric in there}
        for group in groups
    }
    rows = []
    for group in groups:
        biased = _biased(group)
        rivals = [
            numbers[other.config]
            for other in groups
            if other.steps == group.steps and not _biased(other)
        ]
        cells = [
            number_cell(metric, number, [rival[metric] for rival in rivals], biased)
            for metric, number in numbers[group.config].items()
        ]
        budget = (Cell(f"{group.steps:,}"), Cell(str(len(group.seeds))))
        rows.append((biased, labels[group.config], (*budget, *cells)))
    runs = [run for group in groups for run in group.seeds.values()]
    samples = " or ".join(map(str, sorted({run.config.bound_samples for run in runs})))
    titles = {metric: METRICS[metric].title for metric in there}
    if "test_bound" in titles:
        titles["test_bound"] = f"Test bound, {samples} samples"
    columns = ("", "Steps", "Seeds", *titles.values())
    notes = tuple(data_notes([(group.config, group) for group in groups])[1])
    return Table("", columns, apart(rows), after=notes)


def _biased(group: Group) -> bool:
    return DESCRIPTIONS[group.config.estimator].biased


def _settings(
    groups: Sequence[Group], labels: Mapping[Config, str], changed: Sequence[str]
) -> Table:
    """Returns a table of the settings that differ. A sentence below lists the common ones."""
    settings = {group.config: used(vars(group.config)) for group in groups}
    cell = lambda own, name: Cell(_shown(own, name)) if name in own else NOTHING
    rows = tuple(
        (labels[config], tuple(cell(own, name) for name in changed))
        for config, own in settings.items()
    )
    first, *others = settings.values()
    common = [
        f"{_words(name)} {_shown(first, name)}"
        for name in first
        if name not in (*TOLD, *changed) and all(name in other for other in others)
    ]
    sentence = f"{'In common' if changed else 'All settings'}: {', '.join(common)}."
    columns = ("", *map(_words, changed))
    blocks = (Block("", rows),) if changed else ()
    title = "Settings that differ" if changed else "Settings"
    return Table(title, columns, blocks, after=(sentence,), words=True)
