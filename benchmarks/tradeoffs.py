"""Variance times time of RODEO with fewer hidden units, fewer coordinates or rarer adaptation.

    python benchmarks/tradeoffs.py --workers 2 --out runs/tradeoffs

Each setting is trained for 10,000 steps on dynamically binarised MNIST (K = 2, seed 1); finished
runs are used again. Then a step of each setting is timed. The cost of an estimator is variance
times time, which is proportional to the time for a given error of an averaged gradient.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from steps import contestant, per_step
from timing import race, save, summarise

from steingrad_lab.sweeps.engines import Processes
from steingrad_lab.sweeps.plan import plan
from steingrad_lab.sweeps.sweep import sweep
from steingrad_lab.training import Config, Run

STEPS = 10_000
# The variance of a run is the mean over this many steps at its end.
WINDOW = 2_500
# A multiple of every number of steps between adaptations.
TIMED = 48


def settings() -> dict[str, Config]:
    def build(estimator: str = "rodeo", **changes: Any) -> Config:
        return Config("mnist", estimator=estimator, steps=STEPS, bound_samples=1, **changes)

    return {
        "rloo": build("rloo"),
        "double_cv": build("double_cv"),
        "disarm": build("disarm"),
        "rodeo": build(),
        **{f"{h} hidden units": build(surrogate_hidden=h) for h in (32, 16, 8)},
        **{f"{m} of 200 coordinates": build(coordinates=m) for m in (100, 50, 25)},
        **{f"adapt every {n}": build(adapt_every=n) for n in (4, 16)},
        "16 units, adapt every 4": build(surrogate_hidden=16, adapt_every=4),
        "own scan": build(scan="own"),
    }


def variance(run: Run) -> float:
    return float(
        np.mean(
            [
                line["grad_variance"]
                for line in run.metrics()
                if line["step"] > STEPS - WINDOW and "grad_variance" in line
            ]
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/tradeoffs"))
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    configs = settings()
    folders = {name.replace(" ", "-").replace(",", ""): c for name, c in configs.items()}
    planned = plan(folders, options.out)
    broken = sweep(planned, options.out, Processes(options.workers), data_dir=options.data_dir)
    if broken:
        raise SystemExit(f"Some runs failed: {broken}. Their folders have an errors.log.")

    calls = {name: contestant(config, TIMED)[0] for name, config in configs.items()}
    result = summarise(per_step(race(calls, rounds=31), TIMED), "rloo")
    for name, folder in zip(configs, folders, strict=True):
        result[name]["grad_variance"] = variance(Run(options.out / folder))
    base = result["rloo"]["grad_variance"]
    table = Table(title="Binarised MNIST, K = 2, after 10,000 steps; ratios to RLOO")
    for column in ("", "ms a step", "time", "grad_variance", "variance", "variance × time"):
        table.add_column(column, justify="left" if not column else "right")
    for name, numbers in result.items():
        numbers["variance_ratio"] = numbers["grad_variance"] / base
        numbers["variance_time_ratio"] = numbers["variance_ratio"] * numbers["ratio"]
        table.add_row(
            name,
            f"{numbers['ms']:.2f}",
            f"{numbers['ratio']:.2f}",
            f"{numbers['grad_variance']:.3e}",
            f"{numbers['variance_ratio']:.2f}",
            f"{numbers['variance_time_ratio']:.2f}",
        )
    Console(width=110).print(table)
    save("tradeoffs", {"steps": STEPS, "settings": result})


if __name__ == "__main__":
    main()
