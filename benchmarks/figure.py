"""Draw the stored results: `python benchmarks/figure.py` writes docs/performance.png."""

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt
from timing import RESULTS

from steingrad_lab.estimators import DESCRIPTIONS

OUT = Path(__file__).parent.parent / "docs" / "performance.png"


def main() -> None:
    figure, (times, trade) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    bars = []
    for samples in (2, 3):
        for name, numbers in load(f"steps-k{samples}")["steps"].items():
            bars.append((f"{label(name)}, K = {samples}", numbers))
    for row, (name, numbers) in enumerate(reversed(bars)):
        colour = "black" if name.startswith(("RODEO", "Lariat", "Bronco")) else "0.65"
        times.barh(row, numbers["ratio"], color=colour)
        times.plot([numbers["ratio_low"], numbers["ratio_high"]], [row, row], color="tab:orange")
        times.text(numbers["ratio_high"] + 0.03, row, f"{numbers['ratio']:.2f}", va="center")
    times.set_yticks(range(len(bars)), [name for name, _ in reversed(bars)])
    times.set(xlabel="time of a training step, ratio to RLOO", xlim=(0, 2.4))
    settings = sorted(load("tradeoffs")["settings"].items(), key=lambda item: cost(item[1]))
    for row, (name, numbers) in enumerate(reversed(settings)):
        trade.barh(row, cost(numbers), color="black" if name == "rodeo" else "0.65")
        text = f"{numbers['variance_ratio']:.2f} × {numbers['ratio']:.2f}"
        trade.text(cost(numbers) + 0.02, row, text, va="center", fontsize=8)
    trade.set_yticks(range(len(settings)), [label(name) for name, _ in reversed(settings)])
    trade.set(xlabel="variance × time, ratio to RLOO", xlim=(0, 1.45))
    for axes in (times, trade):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(OUT, dpi=130)
    print(OUT)


def label(name: str) -> str:
    """Returns the label of an estimator, which stored results name as the command line does."""
    known, _, rest = name.partition(",")
    if known == "bare RLOO":
        return "RLOO by hand"
    shown = DESCRIPTIONS[known].label if known in DESCRIPTIONS else known
    return f"{shown},{rest}" if rest else shown


def cost(numbers: dict) -> float:
    return numbers["variance_time_ratio"]


def load(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # only --help
    main()
