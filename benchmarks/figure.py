"""A picture of the stored results: `python benchmarks/figure.py` writes docs/performance.png."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
from timing import RESULTS

OUT = Path(__file__).parent.parent / "docs" / "performance.png"


def main() -> None:
    figure, (times, trade) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    bars = []
    for samples in (2, 3):
        for name, numbers in load(f"steps-k{samples}")["steps"].items():
            bars.append((f"{name}, K = {samples}", numbers))
    for row, (name, numbers) in enumerate(reversed(bars)):
        colour = "black" if name.startswith("rodeo") else "0.65"
        times.barh(row, numbers["ratio"], color=colour)
        times.plot([numbers["ratio_low"], numbers["ratio_high"]], [row, row], color="tab:orange")
        times.text(numbers["ratio_high"] + 0.03, row, f"{numbers['ratio']:.2f}", va="center")
    times.set_yticks(range(len(bars)), [name for name, _ in reversed(bars)])
    times.set(xlabel="time of a training step, ratio to RLOO", xlim=(0, 2.4))
    for name, numbers in load("tradeoffs")["settings"].items():
        x, y = numbers["ratio"], numbers["variance_ratio"]
        trade.plot(x, y, "o", color="black" if name == "rodeo" else "0.5")
        trade.annotate(name, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=8)
    trade.set(xlabel="time of a step, ratio to RLOO", ylabel="gradient variance, ratio to RLOO")
    trade.set_ylim(0)
    for axes in (times, trade):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(OUT, dpi=130)
    print(OUT)


def load(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


if __name__ == "__main__":
    main()
