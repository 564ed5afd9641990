"""The styles of curves, in pictures and on the page, and the range of the vertical axis."""

from typing import NamedTuple


class Style(NamedTuple):
    light: str
    """The colour on a light background."""
    dark: str
    """The colour on a dark background."""
    dashes: tuple[float, ...]
    """Lengths of dashes and gaps in line widths; empty for a solid line."""
    marker: str
    """The marker's name in matplotlib, which `page.js` uses too."""


# Dashes and markers distinguish the styles in black and white and for colour-blind readers.
STYLES = (
    Style("#0072b2", "#56b4e9", (), "o"),
    Style("#d55e00", "#ff8c42", (6, 2), "s"),
    Style("#008862", "#35c79c", (1.5, 1.5), "^"),
    Style("#a6518a", "#e08cc0", (6, 2, 1.5, 2), "D"),
    Style("#8a6d00", "#d9b93b", (10, 3), "v"),
    Style("#444444", "#c4c9cf", (4, 1.5, 1, 1.5, 1, 1.5), "X"),
    Style("#b3263a", "#ff7b8a", (3, 1), "s"),
    Style("#4b4fc4", "#a3a6ff", (10, 2, 2, 2, 2, 2), "^"),
    Style("#6b7f00", "#b9cf4a", (1.5, 1.5), "D"),
    Style("#00808f", "#4fd0de", (6, 2, 1.5, 2), "v"),
    Style("#7a4a21", "#d3a077", (10, 3), "o"),
    Style("#c2185b", "#ff77ae", (4, 1.5, 1, 1.5, 1, 1.5), "^"),
    # The next three styles belong to the biased estimators.
    Style("#767676", "#a8a8a8", (1, 3), "s"),
    Style("#d55e00", "#ff8c42", (), "D"),
    Style("#000000", "#f2f2f2", (8, 1.5, 1, 1.5), "X"),
    Style("#a6518a", "#e08cc0", (6, 2), "o"),
    Style("#008862", "#35c79c", (10, 3), "s"),
    Style("#4b4fc4", "#a3a6ff", (3, 1), "v"),
)
LINE_WIDTH = 1.5

# The vertical axis ignores this fraction of a run at its start, or the rest would look flat.
START = 0.1
# The margin at each end of the vertical axis, as a fraction of its range.
MARGIN = 0.05


def style_sheet() -> str:
    """Returns the colours as CSS."""
    light = " ".join(f"--c{n}: {style.light};" for n, style in enumerate(STYLES))
    dark = " ".join(f"--c{n}: {style.dark};" for n, style in enumerate(STYLES))
    rules = " ".join(f".s{n} {{ stroke: var(--c{n}); }}" for n in range(len(STYLES)))
    return (
        f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
        f"{rules}\n"
    )


def for_page() -> list[dict[str, str]]:
    """Returns the dashes and markers for `page.js`."""
    return [
        {
            "dashes": " ".join(f"{LINE_WIDTH * length:g}" for length in style.dashes),
            "marker": style.marker,
        }
        for style in STYLES
    ]
