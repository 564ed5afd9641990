"""How many samples to draw: cost and variance for each number, on your own problem."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..distributions import as_distribution
from ..estimators import Estimator
from ..objective import as_jax_arrays
from . import measure
from .measure import Problem
from .progress import progress

ROUND = 200  # draws between two checks of the clock
ROUNDS = 3  # at least


@dataclasses.dataclass(frozen=True)
class NumSamples:
    """The cost of one candidate, and the variance of its estimates."""

    num_samples: int
    """The number of samples (or whatever `candidates` are)."""
    evaluations: int
    """Evaluations of f for one estimate."""
    seconds: float
    """Seconds for one estimate."""
    variance: float
    """The trace of the covariance."""
    variance_times_seconds: float
    """Variance × seconds: lower is better."""
    error: float
    """The standard error of variance × seconds, from the error of the variance alone."""
    draws: int
    """The number of estimates that the budget allowed."""


def best_num_samples(
    f: Callable[..., Float[Array, "..."]],
    dist: Any,
    make_estimator: Callable[[int], Estimator],
    *,
    key: PRNGKeyArray,
    candidates: Sequence[int] = (1, 2, 4, 8, 16),
    seconds: int | float = 60.0,
    adapt_steps: int = 1_000,
    learning_rate: float = 1e-3,
    args: tuple = (),
    context: Array | None = None,
    relaxation: Callable[..., Float[Array, "..."]] | None = None,
) -> tuple[NumSamples, ...]:
    r"""Measure variance × time for each number of samples. Returns the best candidate first.

    `make_estimator(n)` builds the estimator for a candidate $n$, which may also be a number of
    flips or of Jacobian draws. Candidates for which it, or the estimate, raises an error are left
    out. Each candidate gets an equal share of the `seconds`, compilation and adaptation included,
    and at least three rounds of 200 draws. In $T$ seconds there is time for $T / t$ estimates,
    whose mean has variance $\text{variance} \cdot t / T$, so the lowest product is best. The result
    says nothing about bias, which more samples do not remove.

    The `candidates` are tried in order. `key`, `f`, `dist`, `args`, `context`, `relaxation`,
    `adapt_steps` and `learning_rate` are as in `compare`.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> f = lambda x: jnp.sum((x - 0.45) ** 2, axis=-1)
    >>> found = best_num_samples(f, sg.Bernoulli(jnp.zeros(3)), sg.RLOO, key=jax.random.key(0),
    ...                          candidates=(1, 2, 4), seconds=1.0)
    >>> sorted(row.num_samples for row in found)
    [2, 4]
    >>> found[0].variance_times_seconds <= found[1].variance_times_seconds
    True
    """
    if not candidates or not seconds > 0:
        raise ValueError(
            "best_num_samples needs candidates, and seconds above 0, but was given "
            f"candidates={tuple(candidates)} and seconds={seconds}."
        )
    dist = as_distribution(dist)
    measure.check_not_empty("best_num_samples", dist)
    settings = {"args": as_jax_arrays(args), "context": context, "relaxation": relaxation}
    problem = Problem(f, dist, settings, adapt_steps, learning_rate)
    estimators, refusal = {}, None
    for number in candidates:
        try:
            estimator = make_estimator(number)
        except ValueError as error:
            refusal = error
            continue
        error = problem.refusal(estimator, key)
        if error is None:
            estimators[number] = estimator
        refusal = error or refusal
    if not estimators:
        assert refusal is not None
        raise refusal

    found = []
    start = time.perf_counter()
    with progress(seconds) as show:
        for i, (number, estimator) in enumerate(estimators.items()):
            until = start + seconds * (i + 1) / len(estimators)
            tell = lambda number=number: show(f"n = {number}", time.perf_counter() - start)
            own_key = jax.random.fold_in(key, i)
            found.append(_measure(problem, number, estimator, own_key, until, tell))
    return tuple(sorted(found, key=lambda row: row.variance_times_seconds))


def _measure(
    problem: Problem,
    number: int,
    estimator: Estimator,
    key: PRNGKeyArray,
    until: float,
    tell: Callable[[], Any],
) -> NumSamples:
    tell()
    adapt_key, draw_key = jax.random.split(key)
    estimate = problem.adapted(estimator, adapt_key)
    seconds, size = measure.cost(estimate, draw_key)
    chunk = min(ROUND, max(1, measure.CHUNK_BYTES // size))
    variances = []
    # Rounds are independent, so the mean of their variances has a known standard error.
    while len(variances) < ROUNDS or time.perf_counter() < until:
        round_key = jax.random.fold_in(draw_key, len(variances))
        found = measure.moments(estimate, round_key, ROUND, chunk)
        variances.append(float(np.sum(np.asarray(found.variance, np.float64))))
        tell()
    variance = float(np.mean(variances))
    error = float(np.std(variances, ddof=1)) / len(variances) ** 0.5
    evaluations = estimator.num_evaluations(problem.dist)
    product = variance * seconds
    draws = ROUND * len(variances)
    return NumSamples(number, evaluations, seconds, variance, product, error * seconds, draws)
