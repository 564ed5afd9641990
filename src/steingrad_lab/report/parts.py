"""The parts of a report, before it is written as HTML or Markdown."""

import dataclasses
from collections.abc import Iterable

from .figures import Curve
from .metrics import METRICS, is_best
from .numbers import Estimate


@dataclasses.dataclass(frozen=True)
class Cell:
    text: str
    paper: str = ""
    """The published number, in small print."""
    detail: str = ""
    """A second number of ours, in small print."""
    best: bool = False
    mark: str = ""
    """▲ or ▼ if our number is significantly higher or lower than the paper's."""
    title: str = ""
    """The tooltip."""
    comparable: bool = True
    """Whether our run has the paper's budget, so that both numbers should agree."""


NOTHING = Cell("–")
BIASED = "Biased"
"""The heading of estimators that are biased by design."""


@dataclasses.dataclass(frozen=True)
class Block:
    """Rows under a common heading, which may be empty."""

    heading: str
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


def number_cell(
    metric: str, number: Estimate | None, rivals: Iterable[Estimate | None], biased: bool
) -> Cell:
    """Returns a cell that marks the best of its rivals. A biased estimator is never marked."""
    if number is None:
        return NOTHING
    best = not biased and is_best(metric, number, rivals)
    return Cell(METRICS[metric].show(number), best=best)


def apart(rows: Iterable[tuple[bool, str, tuple[Cell, ...]]]) -> tuple[Block, ...]:
    """Returns a block of unbiased rows and one of biased rows. Each row says if it is biased."""
    kinds: dict[bool, list] = {False: [], True: []}
    for biased, label, cells in rows:
        kinds[biased].append((label, cells))
    return tuple(
        Block(BIASED if biased else "", tuple(own)) for biased, own in kinds.items() if own
    )


def in_legend(label: str, biased: bool) -> str:
    """Returns the name of a curve, which says if the estimator is biased."""
    return f"{label} ({BIASED.lower()})" if biased else label


@dataclasses.dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    """The headings of all columns, including the column of row labels."""
    blocks: tuple[Block, ...]
    before: tuple[str, ...] = ()
    """Sentences above the table."""
    after: tuple[str, ...] = ()
    """Footnotes below the table."""
    words: bool = False
    """Whether the cells have text rather than numbers."""


@dataclasses.dataclass(frozen=True)
class Figure:
    """Curves of `metrics` against steps and against time, with a table below them."""

    name: str
    title: str
    metrics: tuple[str, ...]
    curves: tuple[Curve, ...]
    table: Table
    before: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Section:
    name: str
    title: str
    parts: tuple[Table | Figure, ...]
    before: tuple[str, ...] = ()
    aside: bool = False
    """Whether the summary leaves out this section."""


@dataclasses.dataclass(frozen=True)
class Report:
    title: str
    before: tuple[str, ...]
    brief: tuple[str, ...]
    """The sentences before the first section in a summary."""
    sections: tuple[Section, ...]

    @property
    def figures(self) -> list[Figure]:
        parts = [part for section in self.sections for part in section.parts]
        return [part for part in parts if isinstance(part, Figure)]
