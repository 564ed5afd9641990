"""Means and standard errors, the format of numbers and text, and the names of tasks."""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np

from ..data import label
from ..paper.grid import Published
from ..training.config import Config

DATASETS = {
    "digits": "Digits",
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "omniglot": "Omniglot",
    "binarized_mnist": "Binarised MNIST",
}


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its standard error, which is `None` for a single seed."""

    mean: float
    stderr: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate | None":
        """Returns the mean of the values and its standard error; `None` without values.

        >>> Estimate.of([1.0, 3.0])
        Estimate(mean=2.0, stderr=1.0)
        """
        if not values:
            return None
        stderr = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if values[1:] else None
        return cls(float(np.mean(values)), stderr)


def outside(ours: Estimate, theirs: Estimate | Published) -> bool | None:
    """Whether two numbers differ by more than twice their combined error; `None` if unknown.

    >>> ours = Estimate(1.0, 0.3)
    >>> outside(ours, Estimate(2.0, 0.4)), outside(ours, Estimate(2.0, None))
    (False, None)
    """
    if ours.stderr is None or theirs.stderr is None:
        return None
    return abs(ours.mean - theirs.mean) > 2 * math.hypot(ours.stderr, theirs.stderr)


def fixed(number: Estimate | Published) -> str:
    """Formats a number with two decimals.

    >>> fixed(Estimate(-101.889, 0.166))
    '−101.89 ± 0.17'
    """
    error = "" if number.stderr is None else f" ± {number.stderr:.2f}"
    return f"{number.mean:.2f}".replace("-", "−") + error


def significant(number: Estimate) -> str:
    """Formats a number with three significant digits, or up to two more if the error is small.

    >>> significant(Estimate(0.0123456, 0.0002)), significant(Estimate(12.3456, None))
    ('0.0123 ± 0.0002', '12.3')
    >>> significant(Estimate(0.0123456, 0.00002))
    '0.01235 ± 0.00002'
    """
    digits = 2 - math.floor(math.log10(abs(number.mean))) if number.mean else 2
    if number.stderr:
        digits = max(digits, min(digits + 2, -math.floor(math.log10(number.stderr))))
    digits = max(0, digits)
    error = "" if number.stderr is None else f" ± {number.stderr:.{digits}f}"
    return f"{number.mean:.{digits}f}".replace("-", "−") + error


def dataset_name(dataset: str) -> str:
    """Returns the name of a dataset as the report shows it.

    >>> dataset_name("mnist"), dataset_name("/data/flowers.npz")
    ('MNIST', 'flowers')
    """
    return DATASETS.get(dataset, label(dataset))


def task_name(config: Config, others: Iterable[Config]) -> str:
    """Returns the dataset, and likelihood and layers if the others differ in them.

    >>> gaussian = Config(dataset="mnist", likelihood="gaussian")
    >>> task_name(gaussian, [Config()]), task_name(gaussian, [gaussian])
    ('MNIST, Gaussian', 'MNIST')
    """
    configs = [config, *others]
    parts = [dataset_name(config.dataset)]
    if len({other.likelihood for other in configs}) > 1:
        parts.append(config.likelihood.capitalize())
    if len({len(other.layer_sizes) for other in configs}) > 1:
        parts.append(plural(len(config.layer_sizes), "layer"))
    return ", ".join(parts)


def visible(text: str) -> str:
    r"""Puts text on one line. Control characters and the like are shown by their codes.

    >>> print(visible("two\nlines and a bell\a"))
    two lines and a bell\x07
    """
    code = lambda letter: letter.encode("unicode_escape").decode()
    return "".join(c if c.isprintable() else code(c) for c in " ".join(text.split()))


def plural(count: int, noun: str) -> str:
    """Formats a count with its noun.

    >>> plural(1, "seed"), plural(20000, "step")
    ('1 seed', '20,000 steps')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
