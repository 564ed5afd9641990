"""The metrics of a report: their titles, their formats, and which numbers are the best."""

import dataclasses
from collections.abc import Callable, Iterable

from .numbers import Estimate, fixed, significant


@dataclasses.dataclass(frozen=True)
class Metric:
    title: str
    """The title of a table or column."""
    axis: str = ""
    """The label of the vertical axis; empty if the metric has no curves."""
    show: Callable[[Estimate], str] = fixed
    lower_is_better: bool = False
    logarithmic: bool = False


METRICS = {
    "train_elbo": Metric("Training ELBO"),
    "test_elbo": Metric("Test ELBO"),
    "test_bound": Metric("Test bound, 100 samples"),
    "test_bound_k": Metric("Test bound, K samples"),
    "ms_per_step": Metric("Milliseconds a step", show=significant, lower_is_better=True),
    "grad_variance": Metric(
        "Gradient variance",
        "variance of the encoder's gradient",
        show=significant,
        lower_is_better=True,
        logarithmic=True,
    ),
    "objective": Metric("ELBO of batches", "ELBO (training batches)"),
}


def is_best(metric: str, number: Estimate, all_numbers: Iterable[Estimate | None]) -> bool:
    """Whether no other mean is better. Numbers that look the same in the report are equally good.

    A number without others is not marked as the best.

    >>> numbers = [Estimate(-1.001, None), Estimate(-1.002, 0.3), Estimate(-1.2, None), None]
    >>> [is_best("train_elbo", number, numbers) for number in numbers[:3]]
    [True, True, False]
    """
    there = [other.mean for other in all_numbers if other is not None]
    about = METRICS[metric]
    best = min(there) if about.lower_is_better else max(there)
    shown = lambda mean: about.show(Estimate(mean, None))
    return len(there) > 1 and shown(number.mean) == shown(best)
