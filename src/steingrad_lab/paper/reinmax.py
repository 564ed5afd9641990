"""The settings of ReinMax's experiments: VAEs of categories on MNIST, and of 200 bits.

Reference: Liu, Dong, Liu, Yu, Gao, "Bridging Discrete and Backpropagation: Straight-Through and
Beyond", NeurIPS 2023, with the authors' programs at github.com/LiyuanLucasLiu/ReinMax.
"""

from typing import Any, NamedTuple

from steingrad.estimators.bronco import default_flips

from ..estimators import DESCRIPTIONS

SEEDS = tuple(range(10))
# 160 epochs of 600 steps: all 60,000 images that are not test images, in batches of 100.
CATEGORICAL_STEPS = 96_000
BINARY_STEPS = 1_000_000


class Tuned(NamedTuple):
    """The settings that the authors tuned."""

    optimizer: str
    learning_rate: float
    temperature: float


# By the numbers of categories and codes. The authors' scripts have these numbers.
REINMAX = {
    (8, 4): Tuned("adam", 5e-4, 1.3),
    (4, 24): Tuned("radam", 5e-4, 1.5),
    (8, 16): Tuned("radam", 7e-4, 1.5),
    (16, 12): Tuned("radam", 7e-4, 1.5),
    (64, 8): Tuned("radam", 5e-4, 1.5),
    (10, 30): Tuned("radam", 5e-4, 1.3),
}
# Straight-through Gumbel-softmax. The scripts leave these out; they are table 8 of the paper as
# github.com/danielwang0452/ReinMax_ASC (hyperparameters.py) has it.
GUMBEL_SOFTMAX = {
    (8, 4): Tuned("adam", 3e-4, 0.5),
    (4, 24): Tuned("radam", 5e-4, 0.3),
    (8, 16): Tuned("radam", 5e-4, 0.5),
    (16, 12): Tuned("radam", 7e-4, 0.7),
    (64, 8): Tuned("radam", 7e-4, 0.7),
    (10, 30): Tuned("radam", 5e-4, 0.5),
}
# For other numbers of categories and codes: what most of the six have.
OTHERWISE = {"reinmax": Tuned("radam", 5e-4, 1.5), "gumbel_softmax": Tuned("radam", 5e-4, 0.5)}


def tuned(estimator: str, categories: int, codes: int) -> Tuned:
    """Returns the tuned settings. Estimators that the authors do not have take those of ReinMax.

    >>> tuned("reinmax", 8, 16), tuned("rloo", 8, 4).optimizer
    (Tuned(optimizer='radam', learning_rate=0.0007, temperature=1.5), 'adam')
    """
    name = "gumbel_softmax" if estimator == "gumbel_softmax" else "reinmax"
    known = GUMBEL_SOFTMAX if estimator == "gumbel_softmax" else REINMAX
    return known.get((categories, codes), OTHERWISE[name])


def categorical_settings(
    estimator: str, categories: int, codes: int, flips: int | None = None
) -> dict[str, Any]:
    """Returns ReinMax's settings for a VAE of categories. `flips` are those of Bronco, if given.

    >>> categorical_settings("reinmax", 10, 30)["temperature"]
    1.3
    >>> categorical_settings("bronco", 10, 30)["samples"]
    5
    >>> categorical_settings("bronco", 10, 30, flips=1)["samples"]
    2
    """
    best = tuned(estimator, categories, codes)
    return {
        "steps": CATEGORICAL_STEPS,
        "train_on_valid": True,
        "likelihood": "grey",
        "hidden": (512, 256),
        "activation": "relu",
        "samples": _evaluations(estimator, codes * (categories - 1), flips),
        **_common(estimator, best),
    }


def binary_settings(estimator: str, dataset: str, samples: int) -> dict[str, Any]:
    """Returns ReinMax's settings for the paper's VAE of 200 bits.

    >>> binary_settings("reinmax", "omniglot", 3)["learning_rate"]
    0.0005
    """
    best = Tuned("radam", 3e-4, 1.1)
    if dataset == "omniglot" and samples == 3:
        best = Tuned("radam", 5e-4, 1.2)
    return {
        "steps": BINARY_STEPS,
        "prior": "learned",
        "binarize": "fixed",
        **_common(estimator, best),
    }


def _evaluations(estimator: str, neighbours: int, flips: int | None) -> int:
    """One for the biased estimators, one and the flips for Bronco, and otherwise two."""
    if estimator == "bronco":
        return 1 + (default_flips(neighbours) if flips is None else flips)
    return 1 if DESCRIPTIONS[estimator].biased else 2


def _common(estimator: str, best: Tuned) -> dict[str, Any]:
    found: dict[str, Any] = {
        "seeds": SEEDS,
        "batch_size": 100,
        "optimizer": best.optimizer,
        "learning_rate": best.learning_rate,
        "initialization": "pytorch",
        "kl": "analytic",
    }
    if estimator in ("reinmax", "gumbel_softmax"):
        found["temperature"] = best.temperature
    if estimator == "gumbel_softmax":
        found["straight_through"] = True
    return found
