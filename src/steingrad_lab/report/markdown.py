"""A report as Markdown."""

import html
import re
from collections.abc import Iterable

from .parts import Cell, Figure, Report, Section, Table


def to_markdown(report: Report) -> str:
    """The whole report, with its figures beside it in `figures/`."""
    sections = "\n\n".join(_section(section, "figures") for section in report.sections)
    return f"# {_text(report.title)}\n\n{_sentences(report.before)}\n\n{sections}\n"


def summary(report: Report, place: str) -> str:
    """The first table, the first figure and links to the rest; `place`: the report's folder. The
    paper's numbers stand beside ours only where the budgets are alike."""
    parts = [_sentences(report.brief)]
    shown = [section for section in report.sections if not section.aside]
    both = [(section.title, part) for section in shown for part in section.parts]
    tables = [(title, part) for title, part in both if isinstance(part, Table)]
    figures = [(title, part) for title, part in both if isinstance(part, Figure)]
    for title, table in tables[:1]:
        parts += [f"### {_text(title)}", _table(table, brief=True)]
    for title, figure in figures[:1]:
        title = _text(f"{title}: {figure.title}")
        picture = f"![{title}]({place}/figures/{figure.name}.png)"
        parts += [f"### {title}", _sentences(figure.before), picture, _table(figure.table)]
    parts.append(
        f"The other tables and figures, the environment and the hashes of the data are in "
        f"[{place}/report.md]({place}/report.md), and with interactive figures in "
        f"`{place}/index.html`."
    )
    return "\n\n".join(parts)


def _section(section: Section, figures: str, level: str = "##") -> str:
    parts = [f"{level} {_text(section.title)}", _sentences(section.before)]
    for part in section.parts:
        if isinstance(part, Figure):
            alternative = _text(f"{section.title}: {part.title}")
            parts.append(f"{level}# {_text(part.title)}")
            parts.append(_sentences(part.before))
            parts.append(f"![{alternative}]({figures}/{part.name}.png)")
            parts.append(_table(part.table))
        else:
            parts.append(_table(part))
    return "\n\n".join(part for part in parts if part)


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
    r"""Text that Markdown leaves as it is, in one line.

    >>> print(_text("a_b | <c>\n"))
    a\_b \| &lt;c&gt;
    """
    line = " ".join(text.split())
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", html.escape(line, quote=False))
