"""Pictures of images that a model generates."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from jaxtyping import Float

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from .config import ConfigError

WIDTH = 800
"""The width of a picture, in pixels."""
MOST_IMAGES = 10_000
MOST_PIXELS = 2**26
"""The most pixels of all images together, before a picture is scaled to its width."""
MOST_HEIGHT = 2**15
"""The largest height of a picture, in pixels. Matplotlib would refuse twice as many."""


def check_grids(grids: Sequence[tuple[int, int]], shape: tuple[int, int]) -> None:
    """Raises if a picture of these grids, each of so many rows and columns, would be too large.

    >>> check_grids([(4, 10**8)], (28, 28))
    Traceback (most recent call last):
    steingrad_lab.training.config.ConfigError: A picture of 4 rows and 100000000 columns has ...
    """
    height, width = shape
    (rows, columns), images = grids[0], sum(rows * columns for rows, columns in grids)
    pixels = images * (height + 1) * (width + 1)
    high = sum(WIDTH * rows * (height + 1) / (columns * (width + 1)) for rows, columns in grids)
    for found, most, what in (
        (images, MOST_IMAGES, "images"),
        (pixels, MOST_PIXELS, "pixels"),
        (round(high), MOST_HEIGHT, "pixels from top to bottom"),
    ):
        if found > most:
            raise ConfigError(
                f"A picture of {rows} rows and {columns} columns has {found} {what}, but at most "
                f"{most} are drawn. Choose other numbers of rows and columns."
            )


def image_grid(
    rows: Sequence[Float[np.ndarray, "images pixels"]], shape: tuple[int, int]
) -> Float[np.ndarray, "height width"]:
    """Arranges images in a grid, one row for each array, with white lines between the images.

    >>> image_grid([np.zeros((3, 4)), np.zeros((3, 4))], (2, 2)).shape
    (5, 8)
    """
    height, width = shape
    columns = max(len(row) for row in rows)
    grid = np.ones((len(rows) * (height + 1) - 1, columns * (width + 1) - 1), np.float32)
    for r, row in enumerate(rows):
        for c, image in enumerate(row):
            top, left = r * (height + 1), c * (width + 1)
            grid[top : top + height, left : left + width] = np.reshape(image, shape)
    return grid


def save_grids(grids: Mapping[str, Float[np.ndarray, "height width"]], path: Path) -> None:
    """Saves grids below each other, each with its title, in a picture of `WIDTH` pixels."""
    width = WIDTH / 100
    heights = [width * grid.shape[0] / grid.shape[1] for grid in grids.values()]
    figure, axes = plt.subplots(
        len(grids),
        figsize=(width, sum(heights) + 0.4 * len(grids)),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for axis, (title, grid) in zip(axes[:, 0], grids.items(), strict=True):
        axis.imshow(grid, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axis.set_title(title, loc="left", fontsize=11)
        axis.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)
