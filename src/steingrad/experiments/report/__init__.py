"""Reports: tables and figures of runs, beside the paper's numbers."""

import os
from pathlib import Path

from ..training.runs import RunError
from .build import build
from .collect import RESULTS, collect, write_results
from .figures import plot
from .markdown import summary, to_markdown
from .page import to_html
from .parts import Figure, Report

BEGIN = "<!-- results:begin -->"
END = "<!-- results:end -->"


def write_report(directory: Path, out: Path, readme: Path | None = None) -> None:
    """Write `index.html`, `report.md`, `figures/` and `results.jsonl` from the runs in a folder."""
    if readme is not None:
        section(readme)  # its complaint, if any, before the work
    collection = collect(directory)
    report = build(collection)
    (out / "figures").mkdir(parents=True, exist_ok=True)
    write_results(collection.runs, out / RESULTS)
    (out / "index.html").write_text(to_html(report))
    (out / "report.md").write_text(to_markdown(report))
    for part in (part for section in report.sections for part in section.parts):
        if isinstance(part, Figure):
            plot(part.curves, part.metrics, out / "figures" / f"{part.name}.png")
    if readme is not None:
        write_section(readme, report, out)


def section(readme: Path) -> str:
    """The generated text of a README."""
    _, begin, rest = readme.read_text().partition(BEGIN)
    inside, end, _ = rest.partition(END)
    if not (begin and end):
        raise RunError(
            f"{readme} has no place for the results: put the lines {BEGIN} and {END} where they "
            "belong."
        )
    return inside


def write_section(readme: Path, report: Report, out: Path) -> None:
    """Put the summary between the two markers."""
    place = Path(os.path.relpath(out, readme.parent)).as_posix()
    text = readme.read_text()
    before, after = text.split(BEGIN + section(readme) + END, 1)
    readme.write_text(f"{before}{BEGIN}\n{summary(report, place)}\n{END}{after}")
