"""What a report consists of, before it is written as HTML or Markdown."""

import dataclasses
from collections.abc import Iterable

from .figures import Curve


@dataclasses.dataclass(frozen=True)
class Cell:
    text: str
    paper: str = ""
    """The published number, shown smaller."""
    detail: str = ""
    """More of ours, shown smaller."""
    best: bool = False
    mark: str = ""
    """▲ or ▼: ours is higher or lower than the paper's, outside the combined error."""
    title: str = ""
    """Shown when the pointer rests on it."""
    comparable: bool = True
    """Whether ours has the paper's budget, so that the two should agree."""


NOTHING = Cell("–")
BIASED = "Biased"
"""The heading of rows whose gradient is biased by design."""


@dataclasses.dataclass(frozen=True)
class Block:
    """Rows under a common heading (none: an empty one)."""

    heading: str
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


def apart(rows: Iterable[tuple[bool, str, tuple[Cell, ...]]]) -> tuple[Block, ...]:
    """Rows, each with whether it is biased: those that are under their heading, at the end."""
    kinds: dict[bool, list] = {False: [], True: []}
    for biased, label, cells in rows:
        kinds[biased].append((label, cells))
    return tuple(
        Block(BIASED if biased else "", tuple(own)) for biased, own in kinds.items() if own
    )


def in_legend(label: str, biased: bool) -> str:
    """A curve's name, which has no heading above it."""
    return f"{label} ({BIASED.lower()})" if biased else label


@dataclasses.dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    """The heading of the rows' labels first."""
    blocks: tuple[Block, ...]
    before: tuple[str, ...] = ()
    """Sentences above it."""
    after: tuple[str, ...] = ()
    """Footnotes."""
    words: bool = False
    """Text rather than numbers."""


@dataclasses.dataclass(frozen=True)
class Figure:
    """Curves of `metrics`, against steps and against time."""

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
    """Not one of the results that a summary is made of."""


@dataclasses.dataclass(frozen=True)
class Report:
    title: str
    before: tuple[str, ...]
    brief: tuple[str, ...]
    """Those of the sentences before that a summary has, too."""
    sections: tuple[Section, ...]
