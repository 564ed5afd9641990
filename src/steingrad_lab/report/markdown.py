"""Write a report as Markdown."""

import html
import re
from collections.abc import Iterable
from urllib.parse import quote

from .numbers import visible
from .parts import Cell, Figure, Report, Section, Table


def to_markdown(report: Report) -> str:
    """Returns the whole report. It refers to the pictures in `figures/`."""
    sections = "\n\n".join(map(_section, report.sections))
    return f"# {_text(report.title)}\n\n{_sentences(report.before)}\n\n{sections}\n"


def summary(report: Report, place: str) -> str:
    """Returns the first table, the first figure and links to the rest.

    `place` is the folder of the report. The paper's numbers are shown only for equal budgets.
    """
    parts = [_sentences(report.brief)]
    shown = [section for section in report.sections if not section.aside]
    both = [(section.title, part) for section in shown for part in section.parts]
    tables = [(title, part) for title, part in both if isinstance(part, Table)]
    figures = [(title, part) for title, part in both if isinstance(part, Figure)]
    for title, table in tables[:1]:
        parts += [f"### {_text(title)}", _table(table, brief=True)]
    for title, figure in figures[:1]:
        title = _text(f"{title}: {figure.title}")
        parts += [f"### {title}", *_figure(figure, title, f"{place}/figures")]
    parts.append(
        f"The other tables and figures, the environment and the hashes of the data are in "
        f"[{_text(f'{place}/report.md')}]({_link(f'{place}/report.md')}), and with interactive "
        f"figures in {_code(f'{place}/index.html')}."
    )
    return "\n\n".join(parts)


def _section(section: Section) -> str:
    parts = [f"## {_text(section.title)}", _sentences(section.before)]
    for part in section.parts:
        if isinstance(part, Figure):
            alternative = _text(f"{section.title}: {part.title}")
            parts += [f"### {_text(part.title)}", *_figure(part, alternative, "figures")]
        else:
            parts.append(_table(part))
    return "\n\n".join(part for part in parts if part)


def _figure(figure: Figure, alternative: str, folder: str) -> tuple[str, str, str]:
    picture = f"![{alternative}]({_link(f'{folder}/{figure.name}.png')})"
    return _sentences(figure.before), picture, _table(figure.table)


def _table(table: Table, brief: bool = False) -> str:
    lines = []
    heading = [_text(column) for column in table.columns]
    align = "---" if table.words else "--:"
    lines.append("| " + " | ".join(heading) + " |")
    lines.append("|---|" + f"{align}|" * (len(heading) - 1))
    for block in table.blocks:
        if block.heading:
            lines.append(f"| *{_text(block.heading)}* |" + " |" * (len(heading) - 1))
        for label, cells in block.rows:
            texts = [_cell(cell, cell.comparable or not brief) for cell in cells]
            lines.append(f"| {_text(label)} | " + " | ".join(texts) + " |")
    title = f"**{_text(table.title)}**" if table.title else ""
    rows = "\n".join(lines) if table.blocks else ""
    parts = [title, _sentences(table.before), rows, _sentences(table.after)]
    return "\n\n".join(part for part in parts if part)


def _cell(cell: Cell, with_paper: bool = True) -> str:
    text = f"**{_text(cell.text)}**" if cell.best else _text(cell.text)
    text += f" {cell.mark}" if cell.mark else ""
    paper = f"paper {cell.paper}" if cell.paper and with_paper else ""
    small = [_text(part) for part in (cell.detail, paper) if part]
    return text + "".join(f"<br><sub>{part}</sub>" for part in small)


def _sentences(sentences: Iterable[str]) -> str:
    return "\n\n".join(map(_text, sentences))


def _text(text: str) -> str:
    r"""Escapes text for Markdown and puts it on one line.

    >>> print(_text("a_b | <c>\n"))
    a\_b \| &lt;c&gt;
    """
    escaped = re.sub(r"([\\`*_\[\]|~#])", r"\\\1", html.escape(text, quote=False))
    # Codes of control characters come last: their backslashes stand before letters, which is plain
    # text in Markdown. A dollar sign would begin a formula.
    return visible(escaped).replace("$", "&#36;")


def _link(path: str) -> str:
    """Returns a path as the target of a link.

    >>> _link("my runs (2)/a.png")
    'my%20runs%20%282%29/a.png'
    """
    return quote(path, errors="surrogateescape")


def _code(text: str) -> str:
    """Returns text as code, unless it contains a backtick or the beginning of a tag.

    >>> print(_code("a/b"), _code("a`b"))
    `a/b` a\\`b
    """
    return _text(text) if {*"`<"} & {*text} else f"`{visible(text)}`"
