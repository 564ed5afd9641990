"""When does bias pay off? Compare biased and unbiased estimators in long training runs.

    python benchmarks/bias.py train small                    # digits, samples: 20 CPU-minutes
    python benchmarks/bias.py train mnist --workers 2        # 100,000 steps of five estimators
    python benchmarks/bias.py train mnist-samples --workers 2
    python benchmarks/bias.py measure small mnist            # times and results of the runs
    python benchmarks/bias.py figure                         # docs/bias-*.png

`train` writes run folders below `--out`. If it is stopped, the same command continues. `measure`
times a training step of every configuration in turn, because times of runs that shared the machine
are not reliable. The unit of time is one step of RODEO or RLOO with K = 2. `measure` writes
`benchmarks/results/bias-*.json`; unfinished runs are included up to their last step. `figure` draws
the measurements.
"""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from figure import load
from steps import contestant, per_step
from timing import RESULTS, race, save, summarise

from steingrad_lab import data
from steingrad_lab.estimators import DESCRIPTIONS
from steingrad_lab.paper.settings import configure
from steingrad_lab.report.styles import STYLES
from steingrad_lab.sweeps.engines import Processes
from steingrad_lab.sweeps.plan import plan
from steingrad_lab.sweeps.sweep import sweep
from steingrad_lab.training import Config, Run, Schedule

DOCS = Path(__file__).parent.parent / "docs"
RIVALS = ("reinmax", "straight_through", "rodeo", "lariat", "bronco")
COUNTS = (1, 2, 4, 8, 16)
# With 20 bits, local expectation is affordable: it takes 21 evaluations for each image.
SMALL = {"layer_sizes": (20,), "hidden": (50,), "batch_size": 50}
SEEDS = (1, 2)
LONG, SHORT, SHORT_MNIST = 100_000, 10_000, 5_000
# The variance of a run is the mean over this fraction of its steps, at the end.
WINDOW = 0.25
POINTS = 100
TIMED = 50


def small(estimator: str, **settings: Any) -> Config:
    return configure(dataset="digits", estimator=estimator, bound_samples=100, **SMALL, **settings)


def by_samples(build: Any, steps: int) -> dict[str, Config]:
    """Returns every estimator with 1 to 16 evaluations of f, as far as it supports them."""
    configs = {}
    for estimator in (*RIVALS, "rloo", "disarm"):
        least = 1 if DESCRIPTIONS[estimator].biased else 2
        # RODEO's surrogate evaluates every pair of samples, and 16 samples have 120 times as many
        # pairs as 2 samples.
        most = 8 if estimator == "rodeo" else max(COUNTS)
        for count in COUNTS:
            if least <= count <= most:
                config = build(estimator, samples=count, steps=steps)
                configs[f"{estimator}-k{count}"] = config
    return configs


def mnist(estimator: str, **settings: Any) -> Config:
    return configure(dataset="mnist", estimator=estimator, bound_samples=100, **settings)


def studies() -> dict[str, dict[str, Config]]:
    """Returns the runs of each part by the names of their folders. Each seed is a separate run."""
    exact = small("local_expectation", samples=1, steps=LONG)
    digits = {name: small(name, steps=LONG) for name in (*RIVALS, "rloo", "disarm")}
    return {
        "digits": digits | {"local_expectation": exact},
        "samples": by_samples(small, SHORT),
        "mnist": {name: mnist(name, steps=LONG) for name in RIVALS},
        "mnist-samples": by_samples(mnist, SHORT_MNIST),
    }


def seeds_of(part: str) -> tuple[int, ...]:
    return SEEDS if part == "digits" else (1,)


def folders(part: str) -> dict[str, Config]:
    return {
        f"{name}-seed{seed}": dataclasses.replace(config, seeds=(seed,))
        for seed in seeds_of(part)
        for name, config in studies()[part].items()
    }


def train(part: str, options: argparse.Namespace) -> None:
    steps = next(iter(studies()[part].values())).steps
    schedule = Schedule(report_every=steps // POINTS, checkpoint_every=steps // 20)
    out = options.out / part
    engine = Processes(options.workers)
    planned = plan(folders(part), out)
    broken = sweep(planned, out, engine, schedule=schedule, data_dir=options.data_dir)
    if broken:
        raise SystemExit(f"Some runs failed: {broken}. Their folders have an errors.log.")


def measure(part: str, options: argparse.Namespace) -> None:
    """Returns the curves and final values of the runs found, and the time of a step of each."""
    found: dict[str, dict[str, Any]] = {}
    for name in studies()[part]:
        paths = [options.out / part / f"{name}-seed{seed}" for seed in seeds_of(part)]
        runs = [Run(path) for path in paths if Run.there(path)]
        curves = [curve for curve in map(curve_of, runs) if len(curve["step"])]
        if curves:
            found[name] = together(curves)
    if not found:
        raise SystemExit(f"There are no runs of {part} below {options.out}. Train them first.")
    dataset = data.load("digits") if part in ("digits", "samples") else None
    configs = studies()[part]
    reference = reference_of(part)
    names = dict.fromkeys([reference, *found])
    calls = {name: contestant(configs[name], TIMED, dataset)[0] for name in names}
    times = summarise(per_step(race(calls, rounds=options.rounds), TIMED), reference)
    for name, numbers in found.items():
        numbers["time"] = times[name]["ratio"]
    save(f"bias-{part}", {"clock": times[reference], "runs": found})


def reference_of(part: str) -> str:
    """Returns the run whose steps are the unit of time."""
    return "rloo-k2" if part.endswith("samples") else "rodeo"


def curve_of(run: Run) -> dict[str, Any]:
    lines = [line for line in run.metrics() if "grad_variance" in line]
    curve = {name: [line[name] for line in lines] for name in ("step", "objective")}
    late = [x["grad_variance"] for x in lines if x["step"] > (1 - WINDOW) * run.config.steps]
    ends = [line for line in run.metrics() if line.get("final")]
    return {**curve, "grad_variance": late, "end": ends[0] if ends else None}


def together(curves: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns means over seeds, up to the shortest run, and standard errors at the end."""
    length = min(len(curve["step"]) for curve in curves)
    result: dict[str, Any] = {
        "seeds": len(curves),
        "step": curves[0]["step"][:length],
        "objective": np.mean([curve["objective"][:length] for curve in curves], axis=0).tolist(),
    }
    result["objective"] = [round(value, 4) for value in result["objective"]]
    if all(curve["grad_variance"] for curve in curves):
        variances = [np.mean(curve["grad_variance"]) for curve in curves]
        result["grad_variance"] = float(np.mean(variances))
    if all(curve["end"] for curve in curves):
        for metric in ("train_elbo", "test_bound"):
            values = [curve["end"][metric] for curve in curves]
            error = np.std(values, ddof=1) / len(values) ** 0.5 if values[1:] else None
            result[metric] = [float(np.mean(values)), None if error is None else float(error)]
    return result


def figure(options: argparse.Namespace) -> None:
    for part in studies():
        if not (RESULTS / f"bias-{part}.json").exists():
            continue
        runs = load(f"bias-{part}")["runs"]
        if part.endswith("samples") and "grad_variance" not in runs.get("rloo-k2", {}):
            print(f"{part}: the run rloo-k2, by which others are divided, is not far enough yet")
            continue
        draw = draw_samples if part.endswith("samples") else draw_curves
        picture = draw(runs)
        picture.savefig(DOCS / f"bias-{part}.png", dpi=130, metadata={"Software": None})
        plt.close(picture)
        print(DOCS / f"bias-{part}.png")


def draw_curves(runs: dict[str, dict[str, Any]]) -> Any:
    """Plots the ELBO of the training batches against steps and time."""
    picture, panels = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True, layout="constrained")
    for name, run in runs.items():
        steps = np.asarray(run["step"])
        for panel, x in zip(panels, (steps, steps * run["time"]), strict=True):
            panel.plot(x, run["objective"], markevery=0.15, **look(name))
    last = min(len(run["objective"]) for run in runs.values())
    late = [y for run in runs.values() for y in run["objective"][last // 50 :]]
    margin = 0.05 * (max(late) - min(late))
    panels[0].set(ylabel="ELBO of training batches", ylim=(min(late) - margin, max(late) + margin))
    for panel, label in zip(panels, ("steps", "time, in steps of RODEO"), strict=True):
        panel.set(xlabel=label, xscale="log")
        dress(panel)
    legend(picture, panels[0])
    return picture


def draw_samples(runs: dict[str, dict[str, Any]]) -> Any:
    """Plots variance × time, and the ELBO after the same time, against the evaluations."""
    picture, panels = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    rows = table_of_samples(runs)
    for estimator in dict.fromkeys(name for name, _ in rows):
        counts = [count for name, count in rows if name == estimator]
        for panel, column in zip(panels, ("variance_time", "elbo"), strict=True):
            values = [rows[estimator, count][column] for count in counts]
            panel.plot(counts, values, **look(estimator))
    panels[0].set(ylabel="variance × time, ratio to RLOO with K = 2", yscale="log")
    panels[0].set_yticks([0.2, 0.5, 1, 2, 5], map(str, [0.2, 0.5, 1, 2, 5]))
    panels[1].set(ylabel="ELBO after the same time")
    for panel in panels:
        panel.set(xlabel="evaluations of f for each image", xscale="log")
        panel.set_xticks(COUNTS, map(str, COUNTS))
        panel.minorticks_off()
        dress(panel)
    legend(picture, panels[0])
    return picture


def table_of_samples(runs: dict[str, dict[str, Any]]) -> dict[tuple[str, int], dict[str, float]]:
    """Returns numbers by estimator and evaluations. ELBOs are taken when the first run ends."""
    cost = lambda run: run["grad_variance"] * run["time"]
    finished = {name: run for name, run in runs.items() if "grad_variance" in run}
    budget = min(run["step"][-1] * run["time"] for run in finished.values())
    rows = {}
    for name, run in finished.items():
        estimator, _, count = name.rpartition("-k")
        elbo = np.interp(budget / run["time"], run["step"], run["objective"])
        rows[estimator, int(count)] = {
            "time": run["time"],
            "variance": run["grad_variance"],
            "variance_time": cost(run) / cost(finished["rloo-k2"]),
            "elbo": float(elbo),
        }
    return rows


def look(name: str) -> dict[str, Any]:
    """Returns the estimator's usual style."""
    about = DESCRIPTIONS[name]
    style = STYLES[about.style]
    return {
        "label": about.label + (" (biased)" if about.biased else ""),
        "color": style.light,
        "linestyle": (0, style.dashes) if style.dashes else "-",
        "marker": style.marker,
        "markersize": 4.5,
        "markerfacecolor": "white",
        "linewidth": 1.5,
    }


def dress(panel: Any) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(alpha=0.3)


def legend(picture: Any, panel: Any) -> None:
    handles, labels = panel.get_legend_handles_labels()
    picture.legend(
        handles, labels, loc="outside upper center", ncols=5, frameon=False, handlelength=4
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("train", "measure", "figure"))
    parser.add_argument("parts", nargs="*", default="small", choices=[*studies(), "small"])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of timing")
    parser.add_argument("--out", type=Path, default=Path("runs/bias"))
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    if options.what == "figure":
        figure(options)
        return
    small_parts = ["digits", "samples"] if "small" in options.parts else []
    asked = [options.parts] if isinstance(options.parts, str) else options.parts
    for part in [*small_parts, *(part for part in asked if part != "small")]:
        {"train": train, "measure": measure}[options.what](part, options)


if __name__ == "__main__":
    main()
