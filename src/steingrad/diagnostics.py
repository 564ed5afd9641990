"""Which estimator wins on your own problem: bias, variance and cost, side by side."""

import csv
import dataclasses
import html
import importlib
import io
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .distributions.base import Distribution, compute_dtype
from .estimators import RLOO, Estimator, Reinforce
from .estimators.base import as_jax_arrays, check_distribution, takes_key
from .exact import exact_gradient

EXACT_STATES = 2**16  # sum over all states up to here, counted over the whole batch
CHUNK_BYTES = 2**26
TIMED_CALLS = 20
MOVING_AVERAGE_DECAY = 0.99
SIGNIFICANCE = 1e-4
# In n draws an event that is expected this many times may well be missed (chance e⁻⁷), and an
# estimate, its variance included, looks as if it did not exist: so do bits with large logits.
RARE = 7
ROUNDING = 16  # units in the last place of f


def compare(
    f: Callable[..., Float[Array, "..."]],
    dist: Distribution,
    estimators: Mapping[str, Estimator] | Sequence[Estimator],
    *,
    key: PRNGKeyArray,
    draws: int = 10_000,
    adapt_steps: int = 1_000,
    learning_rate: float = 1e-3,
    args: tuple = (),
    chunk: int | None = None,
    context: Array | None = None,
) -> "Comparison":
    r"""Run each estimator on your own $f$ and $q$ and tell its variance, its cost and its bias.

    Control variates with something to learn first take `adapt_steps` steps of Adam (a moving-average
    baseline: its average, with decay 0.99), which needs `optax`; then parameters stay fixed over
    `draws` independent estimates. They are made `chunk` at a time (default: what fits into 64 MB).

    The gradient is that of the mean over the batch, its variance the sum (the trace) over all
    parameters, its time that of one `value_and_grad`, adaptation's share included. For a budget,
    compare variance × evaluations (a costly $f$) or variance × time.

    Each parameter's z-score, $(\text{mean} - \text{reference}) / \text{standard error}$, is against
    the exact gradient where the states can be enumerated (at most $2^{16}$ over the whole batch, and
    an `f` without `key`), else against as many draws of RLOO. A difference that rounding or a
    handful of missed rare events may explain is not counted.

    `f`, `args` and `context` are as in `expectation`; `estimators` is a list, or a dictionary that
    names them.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> f = lambda x: jnp.sum((x - 0.45) ** 2, axis=-1)
    >>> result = compare(f, sg.Bernoulli(jnp.zeros(3)), [sg.Reinforce(2), sg.RLOO(2)],
    ...                  key=jax.random.key(0), draws=1000)
    >>> [row.name for row in result.rows], result["RLOO(2)"].evaluations
    (['Reinforce(2)', 'RLOO(2)'], 2)
    >>> result["RLOO(2)"].variance < result["Reinforce(2)"].variance
    True
    >>> any(row.biased for row in result.rows), result.reference
    (False, 'the exact gradient')
    """
    named = _named(estimators)
    for what, value, least in (
        ("draws", draws, 2),
        ("adapt_steps", adapt_steps, 0),
        ("chunk", 1 if chunk is None else chunk, 1),
    ):
        if value < least:
            raise ValueError(f"compare needs {what} of {least} or more, but was given {value}.")
    for estimator in named.values():
        check_distribution(estimator, dist)

    def run(estimator: Estimator, key: PRNGKeyArray) -> tuple[float, _Moments]:
        init_key, adapt_key, draw_key = jax.random.split(key, 3)
        params = estimator.init(init_key)
        problem = _Problem(f, dist, estimator, params, as_jax_arrays(args), context)
        if adapt_steps and jax.tree.leaves(eqx.filter(params, eqx.is_inexact_array)):
            optimizer = _optimizer(estimator, learning_rate)
            problem = _adapt(problem, optimizer, jax.random.split(adapt_key, adapt_steps))
        seconds, size = _time(problem, draw_key)
        size = max(1, CHUNK_BYTES // size) if chunk is None else chunk
        return seconds, _Moments(*map(np.asarray, _moments(problem, draw_key, draws, size)))

    reference_key, key = jax.random.split(key)
    if takes_key(f) or dist.num_states * math.prod(dist.batch_shape) > EXACT_STATES:
        rloo = RLOO(max(2, *(estimator.num_samples for estimator in named.values())))
        truth, reference = run(rloo, reference_key)[1], f"as many draws of {_name(rloo)}"
    else:
        gradient = eqx.filter_jit(exact_gradient)(f, dist, args=as_jax_arrays(args))
        gradient = np.asarray(_flatten(gradient))
        zero = np.zeros_like(gradient)
        truth, reference = _Moments(gradient, zero, zero[0], zero[0]), "the exact gradient"

    rows = []
    for i, (name, estimator) in enumerate(named.items()):
        seconds, moments = run(estimator, jax.random.fold_in(key, i))
        z = _z_scores(moments, truth, draws, math.prod(dist.batch_shape))
        evaluations = estimator.num_evaluations(dist)
        rows.append(Row(name, evaluations, seconds, moments.mean, moments.variance, z))
    return Comparison(tuple(rows), reference, truth.mean, draws, adapt_steps)


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One estimator. Arrays have one entry for each parameter of the distribution, flattened."""

    name: str
    evaluations: int
    """Evaluations of f for one estimate."""
    seconds: float
    """Time for one estimate."""
    mean: np.ndarray
    variances: np.ndarray
    z: np.ndarray

    @property
    def variance(self) -> float:
        """The trace of the covariance."""
        return float(np.sum(self.variances, dtype=np.float64))

    @property
    def variance_times_evaluations(self) -> float:
        return self.variance * self.evaluations

    @property
    def variance_times_seconds(self) -> float:
        return self.variance * self.seconds

    @property
    def largest_z(self) -> float:
        return float(np.max(np.abs(self.z)))

    @property
    def p_value(self) -> float:
        """The chance that, without bias, one of all the z-scores is as large (Šidák)."""
        one = math.erfc(self.largest_z / math.sqrt(2))
        return 1.0 if one == 1 else -math.expm1(len(self.z) * math.log1p(-one))

    @property
    def biased(self) -> bool:
        """Whether bias, or a gradient that is not a number, is beyond doubt."""
        return not self.p_value >= SIGNIFICANCE

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain numbers and lists."""
        scalars = "name evaluations seconds variance variance_times_evaluations"
        scalars += " variance_times_seconds largest_z p_value biased"
        arrays = {name: getattr(self, name).tolist() for name in ("mean", "variances", "z")}
        return {name: getattr(self, name) for name in scalars.split()} | arrays


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """What `compare` found: a table that prints, in a terminal or a notebook."""

    rows: tuple[Row, ...]
    reference: str
    """What the z-scores are against."""
    gradient: np.ndarray
    """The reference, flattened."""
    draws: int
    adapt_steps: int

    def __getitem__(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"{name!r} is not among {', '.join(row.name for row in self.rows)}.")

    @property
    def best(self) -> Row | None:
        """The lowest variance × time among those not biased."""
        sound = [row for row in self.rows if not row.biased]
        return min(sound, key=lambda row: row.variance_times_seconds, default=None)

    def _cells(self) -> list[list[str]]:
        head = "estimator|f evals|time|\u2016mean\u2016|variance|var \u00d7 evals|var \u00d7 time|max |z||p|"
        head = head.replace("max |z|", "max \u2223z\u2223").split("|")
        cells = [head]
        for row in self.rows:
            mark = "BIASED" if row.biased else "best" if row is self.best else ""
            numbers = (np.linalg.norm(row.mean), row.variance, row.variance_times_evaluations)
            numbers = [f"{number:.3g}" for number in numbers]
            numbers += [f"{row.variance_times_seconds:.3g} s", f"{row.largest_z:.2f}"]
            cost = [str(row.evaluations), _duration(row.seconds)]
            cells.append([row.name, *cost, *numbers, f"{row.p_value:.2g}", mark])
        return cells

    def _caption(self) -> str:
        return (
            f"{self.draws} draws of each after {self.adapt_steps} steps of adaptation; variance "
            f"summed over {len(self.gradient)} parameters. z: against {self.reference}; p: chance "
            "of so large a z without bias. best: lowest variance × time."
        )

    def __repr__(self) -> str:
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        pad = lambda i, cell: cell.ljust(widths[i]) if i in (0, 9) else cell.rjust(widths[i])
        lines = ["  ".join(pad(i, cell) for i, cell in enumerate(row)).rstrip() for row in cells]
        rule = "─" * max(map(len, lines))
        return "\n".join([lines[0], rule, *lines[1:], "", self._caption()])

    def _repr_html_(self) -> str:
        head, *body = [[html.escape(cell) for cell in row] for row in self._cells()]
        line = lambda tag, row: "<tr>" + "".join(f"<{tag}>{c}</{tag}>" for c in row) + "</tr>"
        table = "".join([line("th", head), *(line("td", row) for row in body)])
        return f"<table>{table}</table><p>{html.escape(self._caption())}</p>"
