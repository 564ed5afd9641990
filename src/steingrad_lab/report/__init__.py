"""Reports: tables and figures of runs, beside the paper's numbers."""

import os
import tempfile
from pathlib import Path

from ..training.runs import RunError, write_atomically
from .build import build
from .collect import RESULTS, collect, results
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
    files = {
        RESULTS: results(collection.runs),
        "index.html": to_html(report),
        "report.md": to_markdown(report),
    }
    out.mkdir(parents=True, exist_ok=True)
    # To the side first: an earlier report stays as it is until all of the new one is there.
    with tempfile.TemporaryDirectory(dir=out, prefix=".new-") as side:
        new = Path(side)
        for name, text in files.items():
            (new / name).write_bytes(_bytes(text))
        (new / "figures").mkdir()
        for part in (part for section in report.sections for part in section.parts):
            if isinstance(part, Figure):
                plot(part.curves, part.metrics, new / "figures" / f"{part.name}.png")
        (out / "figures").mkdir(exist_ok=True)
        for path in [*new.glob("figures/*"), *(new / name for name in files)]:
            path.replace(out / path.relative_to(new))
    if readme is not None:
        write_section(readme, report, out)


def _bytes(text: str) -> bytes:
    """Names of folders may hold what is no text at all: that is shown by its codes."""
    return text.encode("utf-8", "backslashreplace")


def section(readme: Path) -> str:
    """The generated text of a README."""
    _, begin, rest = readme.read_text("utf-8").partition(BEGIN)
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
    text = readme.read_text("utf-8")
    before, after = text.split(BEGIN + section(readme) + END, 1)
    new = f"{before}{BEGIN}\n{summary(report, place)}\n{END}{after}"
    write_atomically(readme, _bytes(new))
