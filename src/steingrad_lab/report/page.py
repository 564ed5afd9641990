"""Write a report as one HTML page without external files."""

import html
import importlib.resources
import json
from collections.abc import Iterable

from .metrics import METRICS
from .numbers import visible
from .parts import Cell, Figure, Report, Section, Table
from .styles import MARGIN, START, STYLES, for_page, style_sheet

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
{before}
<nav aria-label="Contents"><ul>{contents}</ul></nav>
</header>
<main>
{sections}
</main>
<script type="application/json" id="figures">{figures}</script>
<script>
{script}</script>
</body>
</html>
"""


def to_html(report: Report) -> str:
    contents = "".join(
        f'<li><a href="#{escape(section.name)}">{escape(section.title)}</a></li>'
        for section in report.sections
    )
    drawn = {figure.name: _data(figure) for figure in report.figures}
    figures = {"styles": for_page(), "start": START, "margin": MARGIN, "figures": drawn}
    return PAGE.format(
        title=escape(report.title),
        style=style_sheet() + _file("page.css"),
        before=_sentences(report.before),
        contents=contents,
        sections="\n".join(map(_section, report.sections)),
        # Escaped, because "</script>" in a name would end the element.
        figures=json.dumps(figures, allow_nan=False).replace("<", "\\u003c"),
        script=_file("page.js"),
    )


def escape(text: str) -> str:
    """Escapes text for HTML and puts it on one line."""
    return visible(html.escape(text))


def _data(figure: Figure) -> dict:
    """Returns the data of a figure for `page.js`."""
    panels = [
        {"metric": metric, "title": METRICS[metric].axis, "log": METRICS[metric].logarithmic}
        for metric in figure.metrics
    ]
    curves = [
        {
            "label": curve.label,
            "style": curve.style % len(STYLES),
            "x": {"steps": list(curve.steps), "time": list(curve.seconds)},
            "y": {metric: list(curve.values[metric]) for metric in figure.metrics},
            "paper": {metric: list(point) for metric, point in curve.published.items()},
        }
        for curve in figure.curves
    ]
    return {"panels": panels, "curves": curves}


def _section(section: Section) -> str:
    parts = "\n".join(
        _figure(part) if isinstance(part, Figure) else _table(part) for part in section.parts
    )
    return (
        f'<section id="{escape(section.name)}">\n<h2>{escape(section.title)}</h2>\n'
        f"{_sentences(section.before)}\n{parts}\n</section>"
    )


def _figure(figure: Figure) -> str:
    return (
        f"<h3>{escape(figure.title)}</h3>\n{_sentences(figure.before)}\n"
        f'<figure class="chart" data-figure="{escape(figure.name)}" '
        f'aria-label="{escape(figure.title)}"><noscript>The curves need JavaScript; the same ones '
        "are PNG files beside this page.</noscript></figure>\n" + _table(figure.table)
    )


def _table(table: Table) -> str:
    headings = [escape(column).replace(", ", ",<br>") for column in table.columns]
    heading = "".join(f'<th scope="col">{text}</th>' for text in headings)
    bodies = []
    for block in table.blocks:
        rows = ""
        if block.heading:
            span = len(table.columns)
            rows = (
                f'<tr class="block"><th scope="rowgroup" colspan="{span}">'
                f"{escape(block.heading)}</th></tr>\n"
            )
        for label, cells in block.rows:
            rows += f'<tr><th scope="row">{escape(label)}</th>{"".join(map(_cell, cells))}</tr>\n'
        bodies.append(f"<tbody>\n{rows}</tbody>")
    title = f"<h3>{escape(table.title)}</h3>\n" if table.title else ""
    kind = "words" if table.words else "many" if len(table.columns) > 7 else "few"
    rows = (
        f'<div class="wide"><table class="{kind}">\n'
        f"<thead><tr>{heading}</tr></thead>\n{''.join(bodies)}\n</table></div>\n"
    )
    return f"{title}{_sentences(table.before)}\n{rows if bodies else ''}" + _sentences(
        table.after, "footnote"
    )


def _cell(cell: Cell) -> str:
    title = f' title="{escape(cell.title)}"' if cell.title else ""
    text = escape(cell.text)
    if cell.best:
        text = f"<strong>{text}</strong>"
    if cell.mark:
        text += f'<span class="mark">{escape(cell.mark)}</span>'
    if cell.detail:
        text += f"<small>{escape(cell.detail)}</small>"
    if cell.paper:
        whose = "paper " if cell.detail else ""
        text += f'<small class="paper">{whose}{escape(cell.paper)}</small>'
    return f"<td{title}>{text}</td>"


def _sentences(sentences: Iterable[str], name: str = "") -> str:
    attribute = f' class="{name}"' if name else ""
    return "\n".join(f"<p{attribute}>{escape(sentence)}</p>" for sentence in sentences)


def _file(name: str) -> str:
    return (importlib.resources.files("steingrad_lab.report") / name).read_text("utf-8")
