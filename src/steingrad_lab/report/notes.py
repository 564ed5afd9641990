"""Sentences on how the budget and data of our runs differ from the paper's."""

from collections import Counter
from collections.abc import Iterable, Sequence

from ..paper.settings import BOUND_SAMPLES, SEEDS, STEPS
from ..training.config import Config
from .collect import Group
from .numbers import plural

# The most names that a sentence lists.
NAMED = 6
FILES = {
    False: "is not the published file: numbers may differ from the paper's for this alone.",
    None: "could not be compared with the published file.",
}
PAPER_BUDGET = f"{plural(STEPS, 'step')} and {plural(len(SEEDS), 'seed')}"


def budget(cells: Sequence[tuple[str, Group]], metric: str = "") -> list[str]:
    """Returns sentences on steps and seeds that differ from the paper's or from each other."""
    steps = Counter(group.steps for _, group in cells)
    seeds = Counter(len(group.seeds) for _, group in cells)
    sentences = []
    if set(steps) != {STEPS} or set(seeds) != {len(SEEDS)}:
        sentences.append(
            f"These runs have {_range(steps, 'step')} and {_range(seeds, 'seed')}; the paper's "
            f"have {PAPER_BUDGET}."
        )
    if len(steps) > 1:
        sentences.append(
            "They differ from each other in steps, so not all of them can be compared: "
            + _exceptions(steps, "step", [(name, group.steps) for name, group in cells])
        )
    if len(seeds) > 1:
        sentences.append(
            "They differ in seeds: "
            + _exceptions(seeds, "seed", [(name, len(group.seeds)) for name, group in cells])
        )
    samples = {run.config.bound_samples for _, group in cells for run in group.seeds.values()}
    if metric == "test_bound" and samples != {BOUND_SAMPLES}:
        counts = " or ".join(map(str, sorted(samples)))
        sentences.append(
            f"This bound is here of {counts} samples; the paper's is of {BOUND_SAMPLES}."
        )
    return sentences


def _range(counts: Counter, noun: str) -> str:
    low, high = min(counts), max(counts)
    return plural(low, noun) if low == high else f"{low:,} to {high:,} {noun}s"


def _exceptions(counts: Counter, noun: str, cells: Sequence[tuple[str, int]]) -> str:
    """Lists the cells that differ from the most common count."""
    usual = counts.most_common(1)[0][0]
    parts = []
    for count in sorted(set(counts) - {usual}):
        names = [name for name, own in cells if own == count]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        parts.append(f"{plural(count, noun)} for {', '.join(names[:NAMED])}{more}")
    return "; ".join([*parts, f"{plural(usual, noun)} for all others"]) + "."


def data_notes(found: Iterable[tuple[Config, Group]]) -> tuple[set[tuple], list[str]]:
    """Returns the columns with data files that are not the published ones, and footnotes."""
    columns, notes = set(), {}
    for config, group in found:
        for run in group.seeds.values():
            for name, published in run.published.items():
                if not published:
                    columns.add((config.dataset, config.likelihood, len(config.layer_sizes)))
                    notes[name, run.data_files.get(name, "unknown")] = published
    return columns, [
        f"† {name} (SHA-256 {sha256[:12]}…) {FILES[published]}"
        for (name, sha256), published in sorted(notes.items())
    ]
