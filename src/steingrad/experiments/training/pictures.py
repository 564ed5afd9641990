"""Pictures of what a model has learned."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from jaxtyping import Float

matplotlib.use("Agg")
import matplotlib.pyplot as plt


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
