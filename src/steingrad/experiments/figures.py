"""Pictures of runs and of what a model has learned."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from jaxtyping import Float

from .runs import Run

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Told apart in black and white, too.
STYLES = ("-", "--", ":", "-.")


def plot_curves(runs: Mapping[str, Run], path: Path) -> None:
    """ELBO and gradient variance against steps, one curve for each run (mean over its seeds)."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for number, (name, run) in enumerate(runs.items()):
        for axis, metric in zip(axes, ("objective", "grad_variance"), strict=True):
            points: dict[int, list[float]] = {}
            for line in run.metrics():
                if metric in line:
                    points.setdefault(line["step"], []).append(line[metric])
            axis.plot(
                list(points),
                [np.mean(values) for values in points.values()],
                STYLES[number % len(STYLES)],
                label=name,
            )
    axes[0].set(xlabel="steps", ylabel="ELBO (training batches)")
    axes[1].set(xlabel="steps", ylabel="variance of the encoder's gradient", yscale="log")
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def image_grid(
    rows: Sequence[Float[np.ndarray, "images pixels"]], shape: tuple[int, int]
) -> Float[np.ndarray, "height width"]:
    """Images in a grid, one row for each array, with a white line between them.

    >>> image_grid([np.zeros((3, 4)), np.zeros((3, 4))], (2, 2)).shape
    (5, 8)
    """
    height, width = shape
    columns = max(len(row) for row in rows)
    grid = np.ones((len(rows) * (height + 1) - 1, columns * (width + 1) - 1))
    for r, row in enumerate(rows):
        for c, image in enumerate(row):
            top, left = r * (height + 1), c * (width + 1)
            grid[top : top + height, left : left + width] = np.reshape(image, shape)
    return grid


def save_image(grid: Float[np.ndarray, "height width"], path: Path, zoom: int = 3) -> None:
    plt.imsave(path, np.kron(grid, np.ones((zoom, zoom))), cmap="gray", vmin=0, vmax=1)
