"""Reports: tables and figures of runs, together with the paper's numbers."""

import os
import tempfile
from pathlib import Path

from ..training.runs import RunError, write_atomically
from .build import build
from .collect import RESULTS, collect, results
from .figures import plot
from .markdown import summary, to_markdown
from .page import to_html
from .parts import Report

BEGIN = "<!-- results:begin -->"
END = "<!-- results:end -->"


def write_report(directory: Path, out: Path, readme: Path | None = None) -> None:
    """Writes `index.html`, `report.md`, `figures/` and `results.jsonl` from the runs in a folder.

    The main results are also written into `readme`, if it is given.
    """
    if readme is not None:
        section(readme)  # raises before the work begins
    collection = collect(directory)
    report = build(collection)
    files = {
        RESULTS: results(collection.runs),
        "index.html": to_html(report),
        "report.md": to_markdown(report),
    }
    out.mkdir(parents=True, exist_ok=True)
    # The files are written elsewhere first, so that an earlier report stays until all are ready.
    with tempfile.TemporaryDirectory(dir=out, prefix=".new-") as side:
        new = Path(side)
        for name, text in files.items():
            (new / name).write_text(text, "utf-8", newline="\n")
        (new / "figures").mkdir()
        for figure in report.figures:
            plot(figure.curves, figure.metrics, new / "figures" / f"{figure.name}.png")
        (out / "figures").mkdir(exist_ok=True)
        for path in [*new.glob("figures/*"), *(new / name for name in files)]:
            path.replace(out / path.relative_to(new))
    if readme is not None:
        write_section(readme, report, out)


def section(readme: Path) -> str:
    """Returns the text of a README between the two markers."""
    _, begin, rest = readme.read_text("utf-8").partition(BEGIN)
    inside, end, _ = rest.partition(END)
    if not (begin and end):
        raise RunError(
            f"{readme} does not have the markers {BEGIN} and {END}. Add both, each on its own "
            "line, where the results should be."
        )
    return inside


def write_section(readme: Path, report: Report, out: Path) -> None:
    """Writes the summary of a report between the two markers."""
    place = Path(os.path.relpath(out, readme.parent)).as_posix()
    text = readme.read_text("utf-8")
    before, after = text.split(BEGIN + section(readme) + END, 1)
    new = f"{before}{BEGIN}\n{summary(report, place)}\n{END}{after}"
    write_atomically(readme, new.encode())
