"""Print the tables of docs/bronco.md about ReinMax's six VAEs of categories, as Markdown.

    python benchmarks/categories.py

The runs are those of results/categories (see results/README.md). Times of a step come from
`python benchmarks/steps.py categorical`, which writes benchmarks/results/steps-categorical.json.
"""

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from steingrad.estimators.bronco import default_flips
from steingrad_lab.paper.reinmax import REINMAX

ROOT = Path(__file__).parent.parent
STEPS_PER_EPOCH = 600
ROWS = {
    "*ReinMax, biased*": ("reinmax", None),
    "*straight-through Gumbel-softmax, biased*": ("gumbel_softmax", None),
    "RLOO, K = 2": ("rloo", None),
    "CARMS, K = 2": ("carms", None),
    "Bronco": ("bronco", None),
    "Bronco, one flip": ("bronco", 1),
    "Bronco, two flips": ("bronco", 2),
    "Bronco, four flips": ("bronco", 4),
}


def flips_of(row: str, categories: int, codes: int) -> int | None:
    """The number of flips of a row, which is the default where it has none of its own."""
    estimator, flips = ROWS[row]
    if estimator != "bronco" or flips is not None:
        return flips
    return default_flips(codes * (categories - 1))


class Run(NamedTuple):
    """What makes runs comparable: they differ in their seeds only."""

    categories: int
    codes: int
    estimator: str
    flips: int | None


Records = dict[int, dict[str, float]]
"""The metrics of a run, by the step at which they were recorded."""


def read(path: Path) -> dict[Run, list[Records]]:
    """The finished runs of a `results.jsonl`, one entry of the list for each seed."""
    found = defaultdict(list)
    for line in path.read_text().splitlines():
        stored = json.loads(line)
        config = stored["config"]
        if stored["status"] != "finished" or config["model"] != "categorical":
            continue
        estimator = config["estimator"]
        flips = config["samples"] - 1 if estimator == "bronco" else None
        run = Run(config["categories"], config["layer_sizes"][0], estimator, flips)
        records: dict[int, Records] = defaultdict(lambda: defaultdict(dict))
        for record in stored["metrics"]:
            records[record["seed"]][record["step"]].update(record)
        found[run] += records.values()
    return found


def summary(values: list[float]) -> str:
    """The mean, with its standard error if there are several values."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return f"{mean:.2f}"
    error = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
    return f"{mean:.2f} ± {error:.2f}"


def lowest(values: dict[str, list[float]], among: list[str]) -> str:
    """The row with the lowest mean, of those that are there."""
    present = [name for name in among if values.get(name)]
    return min(present, key=lambda name: sum(values[name]) / len(values[name]), default="")


def bounds(runs: dict[Run, list[Records]]) -> list[str]:
    """A table of −ELBO. In each block, the best of the unbiased estimators is bold."""
    lines: list[str] = []
    for epochs in (5, 40):
        for split in ("train", "test"):
            columns = {size: bounds_of(runs, size, f"{split}_elbo", epochs) for size in REINMAX}
            head, dashes, *rows = table(["", *columns_of_sizes()], columns)
            lines = lines or [head, dashes]
            lines += [f"| *{split}, {epochs} epochs* |" + " |" * len(columns), *rows]
    return lines


def bounds_of(
    runs: dict[Run, list[Records]], size: tuple[int, int], metric: str, epochs: int
) -> dict[str, str]:
    """The column of one model: a cell for each row."""
    step, values = epochs * STEPS_PER_EPOCH, {}
    for row, (estimator, flips) in ROWS.items():
        # The default number of flips stands in one row only.
        is_default = flips is not None and flips == flips_of("Bronco", *size)
        seeds = [] if is_default else runs.get(Run(*size, estimator, flips_of(row, *size)), [])
        values[row] = [-records[step][metric] for records in seeds if step in records]
    best = lowest(values, [row for row in ROWS if "biased" not in row])
    bold = lambda row, text: f"**{text}**" if row == best else text
    return {row: bold(row, summary(found)) if found else "–" for row, found in values.items()}


def columns_of_sizes() -> list[str]:
    return [f"{categories} × {codes}" for categories, codes in REINMAX]


def table(head: list[str], columns: dict[Any, dict[str, str]]) -> list[str]:
    rows = [head, ["---", *["--:"] * len(columns)]]
    rows += [[name, *(column[name] for column in columns.values())] for name in ROWS]
    dashes = ["–"] * len(columns)
    return ["| " + " | ".join(row) + " |" for row in rows if row[1:] != dashes]


def label(row: str, categories: int, codes: int) -> str:
    """The name of a row in `benchmarks/steps.py`."""
    flips = flips_of(row, categories, codes)
    return ROWS[row][0] if flips is None else f"bronco, flips={flips}"


def times(steps: dict[str, Any]) -> list[str]:
    """A table of the time of a step, relative to that of ReinMax."""
    columns = {
        size: {
            row: f"{steps['{}x{}'.format(*size)][label(row, *size)]['ratio']:.2f}" for row in ROWS
        }
        for size in REINMAX
    }
    return table(["time of a step", *columns_of_sizes()], columns)


def by_the_clock(runs: dict[Run, list[Records]], steps: dict[str, Any]) -> list[str]:
    """A table of −ELBO of the training batches at the time that the run with one flip takes in all,
    as the mean over seed 1's steps since the record before; and the number of steps made."""
    columns = {}
    for size in REINMAX:
        measured = steps["{}x{}".format(*size)]
        column = {}
        for row, (estimator, _) in ROWS.items():
            column[row] = "–"
            seeds = runs.get(Run(*size, estimator, flips_of(row, *size)), [])
            if estimator not in ("bronco", "reinmax") or not seeds:
                continue
            ratio = measured["bronco, flips=1"]["ratio"] / measured[label(row, *size)]["ratio"]
            objectives = {s: r["objective"] for s, r in seeds[0].items() if "objective" in r}
            step = max(s for s in objectives if s <= max(objectives) * min(1, ratio))
            column[row] = f"{-objectives[step]:.2f} ({step:,})"
        columns[size] = column
    return table(["by the clock", *columns_of_sizes()], columns)


def main() -> None:
    runs = read(ROOT / "results" / "categories" / "results.jsonl")
    parts = [bounds(runs)]
    timed = ROOT / "benchmarks" / "results" / "steps-categorical.json"
    if timed.exists():
        steps = json.loads(timed.read_text())
        parts += [times(steps), by_the_clock(runs, steps)]
    print("\n\n".join("\n".join(part) for part in parts))


if __name__ == "__main__":
    main()
