"""Which estimator wins on your own problem: bias, variance and cost, side by side."""

import csv
import dataclasses
import html
import importlib
import io
import math
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

EXACT_STATES = 2**16  # enumerate up to here, counted over the whole batch
CHUNK_BYTES = 2**26
TIMED_CALLS = 20
MOVING_AVERAGE_DECAY = 0.99
SIGNIFICANCE = 1e-4
ROUNDING = 16  # in units of the last place of f
# Bits with large logits hardly ever flip, and where no draw shows it the variance is too low as
# well. So a parameter that varies as if it had fewer than ENOUGH of the largest deviations is
# allowed to miss RARE of them: fewer are seen by chance e⁻²⁰ at most.
ENOUGH, RARE = 100, 20

HEAD = ("estimator", "f evals", "time/ms", "‖mean‖", "variance", "var × evals", "var × ms")
HEAD += ("max |z|", "p", "")
SCALARS = ("name", "evaluations", "seconds", "variance", "variance_times_evaluations")
SCALARS += ("variance_times_seconds", "largest_z", "p_value", "biased")
ARRAYS = ("mean", "variances", "z")


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
    r"""Run each estimator on your own $f$ and $q$; tell its variance, its cost and its bias.

    `estimators` is a list, or a dictionary that names them; `f`, `args` and `context` are as in
    `expectation`. Control variates with something to learn first take `adapt_steps` steps of Adam,
    which needs `optax` (a moving-average baseline: its average, with decay 0.99). Then all stays
    fixed over `draws` independent estimates, made `chunk` at a time (default: by memory, 64 MB).

    The gradient is that of the mean over the batch, its variance the sum (the trace) over all
    parameters, its time that of one `value_and_grad` with all that it returns. What a budget buys
    is variance × evaluations if $f$ is costly, else variance × time.

    Each parameter's z-score, $(\text{mean} - \text{reference}) / \text{standard error}$, is against
    the exact gradient where it can be enumerated (an `f` without `key`, at most $2^{16}$ states
    over the whole batch), else against as many draws of RLOO. It is 0 where rounding, or a handful
    of rare events that the draws happened to miss, may explain the difference.

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
    settings = {"draws": (draws, 2), "adapt_steps": (adapt_steps, 0), "chunk": (chunk or 1, 1)}
    for name, (value, least) in settings.items():
        if value < least:
            raise ValueError(f"compare needs {name} of {least} or more, but was given {value}.")
    for estimator in named.values():
        check_distribution(estimator, dist)
    args, batch = as_jax_arrays(args), math.prod(dist.batch_shape)

    def measure(estimator: Estimator, key: PRNGKeyArray) -> tuple[float, _Moments]:
        init_key, adapt_key, draw_key = jax.random.split(key, 3)
        problem = _Problem(f, dist, estimator, estimator.init(init_key), args, context)
        if adapt_steps and jax.tree.leaves(eqx.filter(problem.params, eqx.is_inexact_array)):
            optimizer = _optimizer(estimator, learning_rate)
            problem = _adapt(problem, optimizer, jax.random.split(adapt_key, adapt_steps))
        seconds, size = _cost(problem, draw_key)
        at_once = min(draws, chunk or max(1, CHUNK_BYTES // size))
        return seconds, jax.tree.map(np.asarray, _moments(problem, draw_key, draws, at_once))

    reference_key, key = jax.random.split(key)
    if takes_key(f) or dist.num_states * batch > EXACT_STATES:
        rloo = RLOO(max(2, *(estimator.num_samples for estimator in named.values())))
        truth, reference = measure(rloo, reference_key)[1], f"as many draws of {_name(rloo)}"
    else:
        gradient = np.asarray(_flatten(eqx.filter_jit(exact_gradient)(f, dist, args=args)))
        zero = np.zeros_like(gradient)
        truth, reference = _Moments(gradient, zero, zero[0], zero[0]), "the exact gradient"

    rows = []
    for i, (name, estimator) in enumerate(named.items()):
        seconds, moments = measure(estimator, jax.random.fold_in(key, i))
        z = _z_scores(moments, truth, draws, batch)
        evaluations = estimator.num_evaluations(dist)
        rows.append(Row(name, evaluations, seconds, moments.mean, moments.variance, z))
    return Comparison(tuple(rows), reference, truth.mean, draws, adapt_steps)


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One estimator. Arrays have an entry for each parameter of the distribution, flattened."""

    name: str
    evaluations: int
    """Of f, for one estimate."""
    seconds: float
    """For one estimate."""
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
        """Whether bias is beyond doubt, or the gradient is not a number."""
        return not self.p_value >= SIGNIFICANCE


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """What `compare` found: a table that prints, in a terminal or a notebook."""

    rows: tuple[Row, ...]
    reference: str
    """What the z-scores are against."""
    gradient: np.ndarray
    """The reference's, flattened."""
    draws: int
    adapt_steps: int

    def __getitem__(self, name: str) -> Row:
        return {row.name: row for row in self.rows}[name]

    @property
    def best(self) -> Row | None:
        """The lowest variance × time among those not biased."""
        sound = [row for row in self.rows if not row.biased]
        return min(sound, key=lambda row: row.variance_times_seconds, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists."""
        rows = [
            {name: _plain(getattr(row, name)) for name in SCALARS + ARRAYS} for row in self.rows
        ]
        settings = {"draws": self.draws, "adapt_steps": self.adapt_steps}
        return settings | {
            "reference": self.reference,
            "gradient": _plain(self.gradient),
            "rows": rows,
        }

    def to_csv(self, path: str | Path | None = None) -> str:
        """A line for each estimator, without the arrays; written to `path` too if there is one."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(SCALARS)
        writer.writerows([getattr(row, name) for name in SCALARS] for row in self.rows)
        if path is not None:
            Path(path).write_text(text.getvalue(), encoding="utf-8")
        return text.getvalue()

    def plot(self, path: str | Path | None = None) -> Any:
        """Variance against evaluations and against time, saved to `path` if there is one; returns
        the two matplotlib axes. On the dotted line variance × cost is that of the best."""
        plt = _import("matplotlib.pyplot", "plotting")
        figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
        positive = [row.variance for row in self.rows if row.variance > 0]
        floor = min(positive, default=1.0) / 10  # zero has no logarithm
        for ax, cost in zip(axes, ("evaluations", "seconds"), strict=True):
            points = [(getattr(row, cost), max(row.variance, floor)) for row in self.rows]
            for i, (row, point) in enumerate(zip(self.rows, points, strict=True)):
                note = " (biased)" if row.biased else " (variance 0)" if row.variance == 0 else ""
                style = {"marker": "osD^v<>pPX*hd8"[i % 14], "color": "black", "fillstyle": "none"}
                ax.loglog(*point, linestyle="none", markersize=9, label=row.name + note, **style)
            ax.margins(0.2)
            ends = np.asarray(ax.get_xlim())
            best = min(x * y for x, y in points)
            ax.plot(ends, best / ends, ":", color="grey", scalex=False, scaley=False)
            ax.set(xlabel={"evaluations": "evaluations of f", "seconds": "time a call (s)"}[cost])
            ax.tick_params(axis="x", which="both", rotation=45)
        axes[0].set(ylabel="variance of the gradient (trace)")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
        if path is not None:
            figure.savefig(path)
        return axes

    def _cells(self) -> list[list[str]]:
        cells: list[list[str]] = [list(HEAD)]
        for row in self.rows:
            numbers = [1e3 * row.seconds, np.linalg.norm(row.mean), row.variance]
            numbers += [row.variance_times_evaluations, 1e3 * row.variance_times_seconds]
            numbers = [f"{number:.3g}" for number in numbers]
            test = [f"{row.largest_z:.2f}", f"{row.p_value:.2g}"]
            mark = "BIASED" if row.biased else "best" if row is self.best else ""
            cells.append([row.name, str(row.evaluations), *numbers, *test, mark])
        return cells

    def _caption(self) -> list[str]:
        return [
            f"{self.draws} draws of each after {self.adapt_steps} steps of adaptation; variance "
            f"summed over {len(self.gradient)} parameters; best: lowest variance × time.",
            f"z against {self.reference}; p: chance of so large a |z| without bias.",
        ]

    def __repr__(self) -> str:
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        pad = lambda i, cell: cell.ljust(widths[i]) if i == 0 else cell.rjust(widths[i])
        lines = ["  ".join(pad(i, cell) for i, cell in enumerate(row)).rstrip() for row in cells]
        rule = "─" * max(map(len, lines))
        return "\n".join([lines[0], rule, *lines[1:], rule, *self._caption()])

    def _repr_html_(self) -> str:
        head, *body = [[html.escape(cell) for cell in row] for row in self._cells()]
        line = lambda tag, row: "<tr>" + "".join(f"<{tag}>{c}</{tag}>" for c in row) + "</tr>"
        table = "".join([line("th", head), *(line("td", row) for row in body)])
        return f"<table>{table}</table><p>{html.escape(' '.join(self._caption()))}</p>"


class _Problem(NamedTuple):
    """An estimator with all that it is called with but the key."""

    f: Callable
    dist: Distribution
    estimator: Estimator
    params: Any
    args: tuple
    context: Array | None

    def value_and_grad(self, key):
        return self.estimator.value_and_grad(
            self.f, self.dist, self.params, key=key, args=self.args, context=self.context
        )


class _Moments(NamedTuple):
    """Of many draws of the gradient, flattened."""

    mean: Any
    variance: Any
    largest: Any  # deviation from the mean, over draws and parameters
    value: Any  # the root mean square of the draws' mean f


@eqx.filter_jit
def _adapt(problem: _Problem, optimizer: Any, keys: PRNGKeyArray) -> _Problem:
    """The problem after one step of the optimizer for each key."""
    learned, fixed = eqx.partition(problem.params, eqx.is_inexact_array)

    def step(carry, key):
        learned, state = carry
        _, grads = problem._replace(params=eqx.combine(learned, fixed)).value_and_grad(key)
        updates, state = optimizer.update(grads.cv, state, learned)
        return (eqx.apply_updates(learned, updates), state), None

    (learned, _), _ = jax.lax.scan(step, (learned, optimizer.init(learned)), keys)
    return problem._replace(params=eqx.combine(learned, fixed))


def _optimizer(estimator: Estimator, learning_rate: float) -> Any:
    optax = _import("optax", f"adapting {_name(estimator)} (unless adapt_steps=0)")
    if isinstance(estimator, Reinforce) and estimator.baseline == "moving_average":
        return optax.sgd(1 - MOVING_AVERAGE_DECAY)
    return optax.adam(learning_rate)


def _cost(problem: _Problem, key: PRNGKeyArray) -> tuple[float, int]:
    """Seconds and bytes that one estimate takes."""
    dynamic, static = eqx.partition(problem, eqx.is_array)
    call = jax.jit(lambda dynamic, key: eqx.combine(dynamic, static).value_and_grad(key))
    call = call.lower(dynamic, key).compile()
    seconds = []
    for _ in range(1 + TIMED_CALLS):
        start = time.perf_counter()
        jax.block_until_ready(call(dynamic, key))
        seconds.append(time.perf_counter() - start)
    # The compiler knows what f and the control variates need, but may decline to say.
    dist = problem.dist
    least = 16 * problem.estimator.num_samples * math.prod(dist.batch_shape + dist.event_shape)
    known = getattr(call.memory_analysis(), "temp_size_in_bytes", 0)
    return float(np.median(seconds[1:])), max(least, known)


@eqx.filter_jit
def _moments(problem: _Problem, key: PRNGKeyArray, draws: int, chunk: int) -> _Moments:
    """A chunk at a time, each with its own mean taken off before squaring, so that float32 does
    not lose a small variance beside a large mean (Chan, Golub, LeVeque 1979)."""

    def draw(index):
        value, grads = problem.value_and_grad(jax.random.fold_in(key, index))
        return _flatten((grads.parameters, value))

    def step(carry, start):
        count, mean, squares, largest = carry
        index = start + jnp.arange(chunk)
        g = jax.vmap(draw)(index)
        inside = (index < draws).astype(g.dtype)[:, None]  # the last chunk may be cut short
        added = jnp.sum(inside)
        here = jnp.sum(inside * g, axis=0) / added
        deviation = inside * (g - here)
        total, change = count + added, here - mean
        squares += jnp.sum(deviation**2, axis=0) + change**2 * (count * added / total)
        largest = jnp.maximum(largest, jnp.max(jnp.abs(deviation[:, :-1])))
        return (total, mean + change * (added / total), squares, largest), None

    struct = jax.eval_shape(draw, 0)
    zero, zeros = jnp.zeros((), struct.dtype), jnp.zeros(struct.shape, struct.dtype)
    starts = jnp.arange(0, draws, chunk)
    (_, mean, squares, largest), _ = jax.lax.scan(step, (zero, zeros, zeros, zero), starts)
    variance = squares / (draws - 1)
    return _Moments(mean[:-1], variance[:-1], largest, jnp.sqrt(mean[-1] ** 2 + variance[-1]))


def _z_scores(moments: _Moments, truth: _Moments, draws: int, batch: int) -> np.ndarray:
    difference, largest = moments.mean - truth.mean, moments.largest + truth.largest
    variance = moments.variance + truth.variance
    explained = ROUNDING * np.finfo(difference.dtype).eps * moments.value / batch
    rare = draws * variance < ENOUGH * largest**2
    explained = explained + np.where(rare, RARE * largest / draws, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = difference / np.sqrt(variance / draws)
    return np.where(np.abs(difference) <= explained, 0, z)


def _flatten(tree: Any) -> Float[Array, "n"]:
    leaves = jax.tree.leaves(tree)
    dtype = compute_dtype(*leaves)
    return jnp.concatenate([leaf.astype(dtype).ravel() for leaf in leaves])


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _named(estimators: Any) -> dict[str, Estimator]:
    """The estimators by name, those of a list named after their settings."""
    if isinstance(estimators, Mapping):
        named = dict(estimators)
    else:
        names = [_name(estimator) for estimator in estimators]
        copy = [names[:i].count(name) + 1 for i, name in enumerate(names)]
        names = [f"{n} #{c}" if c > 1 else n for n, c in zip(names, copy, strict=True)]
        named = dict(zip(names, estimators, strict=True))
    if not named:
        raise ValueError("compare needs at least one estimator, such as [sg.RLOO(2), sg.Rodeo(2)].")
    for name, estimator in named.items():
        if not isinstance(estimator, Estimator):
            raise TypeError(f"compare takes estimators such as sg.RLOO(2), but was given {name}.")
    return named


def _name(module: Any) -> str:
    """`Rodeo(2, operator=Barker())`: the number of samples, and settings not at their default."""
    if not isinstance(module, eqx.Module):
        return eqx.tree_pformat(module)
    settings = []
    for field in dataclasses.fields(module):
        value = getattr(module, field.name)
        if field.name == "num_samples":
            settings.append(f"{value}")
        elif not eqx.tree_equal(value, field.default):
            settings.append(f"{field.name}={_name(value)}")
    return f"{type(module).__name__}({', '.join(settings)})"


def _import(name: str, why: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ImportError(
            f"compare needs {package} for {why}: pip install 'steingrad[experiments]'."
        ) from error
