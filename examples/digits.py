"""Train a binary VAE on scikit-learn's digits with RLOO, RODEO and Bronco, and compare them.

    make run

This takes about two minutes on two cores. The runs have the same number of steps, evaluations of
the objective, and seed.
"""

import argparse
import shutil
from pathlib import Path

from rich.console import Console
from rich.table import Table

from steingrad_lab.estimators import DESCRIPTIONS
from steingrad_lab.report.figures import plot_curves
from steingrad_lab.report.metrics import METRICS
from steingrad_lab.training import Config, Schedule, summary, train

OUT = Path("runs/digits")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()

    console = Console()
    runs = {}
    for name in ("rloo", "rodeo", "bronco"):
        folder = arguments.out / name
        if arguments.out == OUT:  # the default folder belongs to this example
            shutil.rmtree(folder, ignore_errors=True)
        config = Config(
            dataset="digits", estimator=name, steps=arguments.steps, layer_sizes=(50,),
            hidden=(100, 100), seeds=(1,),
        )  # fmt: skip
        runs[name] = train(config, folder, schedule=Schedule(report_every=500))

    table = Table(title=f"Binary VAE on digits, 2 evaluations, {arguments.steps} steps")
    columns = ("train_elbo", "test_bound", "grad_variance", "ms_per_step")
    table.add_column("Estimator")
    for column in columns:
        table.add_column(METRICS[column].title, justify="right")
    for name, run in runs.items():
        numbers = summary(run)
        table.add_row(DESCRIPTIONS[name].label, *(f"{numbers[column]:.4g}" for column in columns))
    console.print(table)

    picture = arguments.out / "curves.png"
    plot_curves({DESCRIPTIONS[name].label: run for name, run in runs.items()}, picture)
    console.print(f"Curves: {picture}. Runs: {', '.join(str(r.path) for r in runs.values())}")


if __name__ == "__main__":
    main()
