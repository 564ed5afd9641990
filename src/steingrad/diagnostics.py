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

from .arrays import compute_dtype
from .cv_optimizer import cv_optimizer
from .distributions import Distribution
from .estimators import RLOO, Estimator
from .estimators.base import check_distribution
from .exact import exact_gradient
from .objective import as_jax_arrays, takes_key

EXACT_STATES = 2**16  # enumerate up to here, counted over the whole batch
CHUNK_BYTES = 2**26
TIMED_CALLS, TIMED_SECONDS = 10, 0.1  # at least
SIGNIFICANCE = 1e-4
ROUNDING = 16  # in units of the last place of f
# Bits with large logits hardly ever flip, and where the draws happen to miss it their variance
# misses it too. So a parameter that varies as if it had fewer than ENOUGH of the largest
# deviations is allowed to miss RARE of them (chance e⁻²⁰).
ENOUGH, RARE = 100, 20


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
    relaxation: Callable[..., Float[Array, "..."]] | None = None,
) -> "Comparison":
    r"""Run each estimator on your own $f$ and $q$; tell its variance, its cost and its bias.

    `estimators` is a list, or a dictionary that names them; `f`, `args`, `context` and `relaxation`
    are as in `expectation`. Control variates that learn first take `adapt_steps` steps of
    their `cv_optimizer`; then all stays fixed over
    `draws` independent estimates, made `chunk` at a time (default: what takes about 64 MB).

    Gradients are those of the mean over the batch; the variance is summed over all parameters (the
    trace); the time is that of one `value_and_grad` with all that it returns. What a budget buys is
    variance × evaluations if $f$ is costly, else variance × time.

    Each parameter's z-score, $(\text{mean} - \text{reference}) / \text{standard error}$, is against
    the exact gradient if `f` takes no key and there are at most $2^{16}$ states (over the whole
    batch), else against as many draws of RLOO. It is 0 where rounding, or a few rare events that
    the draws happened to miss, may explain the difference.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> f = lambda x: jnp.sum((x - 0.45) ** 2, axis=-1)
    >>> result = compare(f, sg.Bernoulli(jnp.zeros(3)), [sg.Reinforce(2), sg.RLOO(2)],
    ...                  key=jax.random.key(0), draws=1000)
    >>> result["RLOO(2)"].variance < result["Reinforce(2)"].variance
    True
    >>> [row.biased for row in result.rows], result.reference
    ([False, False], 'the exact gradient')
    """
    named = _named(estimators, dist)
    limits = {"draws": (draws, 2), "adapt_steps": (adapt_steps, 0), "chunk": (chunk, 1)}
    for name, (value, least) in limits.items():
        if value is not None and value < least:
            raise ValueError(f"compare needs {name} of {least} or more, but was given {value}.")
    args = as_jax_arrays(args)

    def measure(estimator: Estimator, key: PRNGKeyArray) -> tuple[float, _Moments]:
        init_key, adapt_key, draw_key = jax.random.split(key, 3)
        settings = {"args": args, "context": context, "relaxation": relaxation}
        estimate = eqx.Partial(estimator.value_and_grad, f, dist, **settings)
        cv = estimator.init(init_key, dist)
        if adapt_steps and jax.tree.leaves(cv):
            optimizer = cv_optimizer(estimator, learning_rate)
            cv = _adapt(estimate, cv, optimizer, adapt_key, adapt_steps)
        estimate = eqx.Partial(estimate, cv)
        seconds, size = _cost(estimate, draw_key)
        at_once = min(draws, chunk or max(1, CHUNK_BYTES // size))
        return seconds, jax.tree.map(np.asarray, _moments(estimate, draw_key, draws, at_once))

    if takes_key(f) or dist.num_states * math.prod(dist.batch_shape) > EXACT_STATES:
        rloo = RLOO(max(2, *(estimator.num_samples for estimator in named.values())))
        _, truth = measure(rloo, jax.random.fold_in(key, len(named)))
        reference = f"as many draws of {_name(rloo)}"
    else:
        gradient = np.asarray(_flatten(eqx.filter_jit(exact_gradient)(f, dist, args=args)))
        truth, reference = _Moments(gradient, 0 * gradient, 0.0, 0.0), "the exact gradient"

    rows = []
    for i, (name, estimator) in enumerate(named.items()):
        seconds, moments = measure(estimator, jax.random.fold_in(key, i))
        rows.append(_row(name, estimator, dist, seconds, moments, truth, draws))
    return Comparison(tuple(rows), draws, adapt_steps, reference, truth.mean)


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One estimator; arrays have an entry for each parameter of the distribution, flattened."""

    name: str
    evaluations: int  # of f, for one estimate
    seconds: float  # for one estimate
    variance: float  # the trace of the covariance
    variance_times_evaluations: float
    variance_times_seconds: float
    largest_z: float
    p_value: float  # the chance that, without bias, one of all the z-scores is as large (Šidák)
    biased: bool  # beyond doubt, p < 1e-4, or not a number
    mean: np.ndarray
    variances: np.ndarray
    z: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """What `compare` found: a table that prints, in a terminal or a notebook."""

    rows: tuple[Row, ...]
    draws: int
    adapt_steps: int
    reference: str  # what the z-scores are against
    gradient: np.ndarray  # the reference's, flattened

    def __getitem__(self, name: str) -> Row:
        return {row.name: row for row in self.rows}[name]

    @property
    def best(self) -> Row | None:
        """The lowest variance × time among those not biased."""
        sound = (row for row in self.rows if not row.biased)
        return min(sound, key=lambda row: row.variance_times_seconds, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists."""
        plain = lambda leaf: leaf.tolist() if isinstance(leaf, np.ndarray) else leaf
        return jax.tree.map(plain, dataclasses.asdict(self))

    def to_csv(self, path: str | Path | None = None) -> str:
        """A line for each estimator, without the arrays; written to `path` too if there is one."""
        names = [field.name for field in dataclasses.fields(Row) if field.type is not np.ndarray]
        rows = [[getattr(row, name) for name in names] for row in self.rows]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([names, *rows])
        if path:
            Path(path).write_text(text.getvalue(), encoding="utf-8")
        return text.getvalue()

    def plot(self, path: str | Path | None = None) -> Any:
        """Variance against evaluations and against time, saved to `path` if there is one; returns
        the two matplotlib axes. On a dotted line variance × cost is that of the best."""
        plt = _import("matplotlib.pyplot", "Comparison.plot")
        figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
        least = min((row.variance for row in self.rows if row.variance), default=1.0)
        y = np.asarray([row.variance or least / 10 for row in self.rows])  # 0 has no logarithm
        for ax, cost in zip(axes, ("evaluations", "seconds"), strict=True):
            x = np.asarray([getattr(row, cost) for row in self.rows])
            for i, row in enumerate(self.rows):
                note = " (biased)" if row.biased else "" if row.variance else " (variance 0)"
                marker = "k" + "osD^v<>pPX*hd8"[i % 14]
                ax.loglog(x[i], y[i], marker, fillstyle="none", label=row.name + note)
            ax.set(xlabel=f"{cost} for one estimate", xmargin=0.2, ymargin=0.2)
            ends = np.asarray(ax.get_xlim())
            best = np.min(x * y, where=[not row.biased for row in self.rows], initial=np.inf)
            ax.plot(ends, best / ends, "k:", scalex=False, scaley=False)
            ax.tick_params(axis="x", which="both", rotation=45)
        counts = sorted({row.evaluations for row in self.rows})
        axes[0].set_xticks(counts, map(str, counts))
        axes[0].set_xticks([], minor=True)
        axes[0].set_ylabel("variance of the gradient (trace)")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
        if path:
            figure.savefig(path)
        return axes

    def _cells(self) -> list[list[str]]:
        head = "estimator,f evals,time/ms,‖mean‖,variance,var × evals,var × ms,max |z|,p,"
        cells: list[list[str]] = [[*head.split(",")]]
        for row in self.rows:
            numbers = (1e3 * row.seconds, np.linalg.norm(row.mean), row.variance)
            numbers += (row.variance_times_evaluations, 1e3 * row.variance_times_seconds)
            numbers = [*(f"{number:.3g}" for number in numbers), f"{row.largest_z:.2f}"]
            mark = "BIASED" if row.biased else "best" if row is self.best else ""
            cells.append([row.name, str(row.evaluations), *numbers, f"{row.p_value:.2g}", mark])
        return cells

    def _caption(self) -> str:
        return (
            f"{self.draws} draws of each after {self.adapt_steps} steps of adaptation; variance "
            f"summed over {len(self.gradient)} parameters; best: lowest variance × time.\n"
            f"z against {self.reference}; p: chance of so large a |z| without bias."
        )

    def __repr__(self) -> str:
        first, *others = zip(*self._cells(), strict=True)
        columns = [[cell.ljust(max(map(len, first))) for cell in first]]
        columns += [[cell.rjust(max(map(len, column))) for cell in column] for column in others]
        head, *lines = ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]
        rule = "─" * max(map(len, [head, *lines]))
        return "\n".join([head, rule, *lines, rule, self._caption()])

    def _repr_html_(self) -> str:
        rows = ["".join(f"<td>{html.escape(c)}</td>" for c in row) for row in self._cells()]
        rows[0] = rows[0].replace("td>", "th>")
        table = f"<table><tr>{'</tr><tr>'.join(rows)}</tr></table>"
        return table + f"<p>{html.escape(self._caption())}</p>"


class _Moments(NamedTuple):
    mean: Any  # of the flattened gradient
    variance: Any
    largest: Any  # deviation from the mean, over draws and parameters
    value: Any  # the root mean square of the draws' mean f


@eqx.filter_jit
def _adapt(estimate: Callable, cv: Any, optimizer: Any, key: PRNGKeyArray, steps: int) -> Any:
    """The control variates after so many steps."""

    def step(carry, key):
        cv, state = carry
        _, grads = estimate(cv, key=key)
        updates, state = optimizer.update(grads.cv, state, cv)
        return (eqx.apply_updates(cv, updates), state), None

    (cv, _), _ = jax.lax.scan(step, (cv, optimizer.init(cv)), jax.random.split(key, steps))
    return cv


def _cost(estimate: Callable, key: PRNGKeyArray) -> tuple[float, int]:
    """Seconds and bytes that one estimate takes."""
    dynamic, static = eqx.partition(estimate, eqx.is_array)
    call = jax.jit(lambda dynamic, key: eqx.combine(dynamic, static)(key=key))
    call = call.lower(dynamic, key).compile()
    output, seconds = jax.block_until_ready(call(dynamic, key)), []
    while len(seconds) < TIMED_CALLS or sum(seconds) < TIMED_SECONDS:
        start = time.perf_counter()
        jax.block_until_ready(call(dynamic, key))
        seconds.append(time.perf_counter() - start)
    # The compiler knows what f and the control variates need, but may decline to say.
    known = getattr(call.memory_analysis(), "temp_size_in_bytes", 0)
    least = 16 * sum(leaf.nbytes for leaf in jax.tree.leaves(output))
    return float(np.median(seconds)), max(known, least)


@eqx.filter_jit
def _moments(estimate: Callable, key: PRNGKeyArray, draws: int, chunk: int) -> _Moments:
    """A chunk at a time, each with its own mean taken off before squaring, so that float32 does
    not lose a small variance beside a large mean (Chan, Golub, LeVeque 1979)."""

    def draw(index):
        value, grads = estimate(key=jax.random.fold_in(key, index))
        return _flatten((grads.parameters, value))

    def step(carry, start):
        count, mean, squares, largest = carry
        index = start + jnp.arange(chunk)
        g = jax.vmap(draw)(index)
        inside = (index < draws).astype(g.dtype)[:, None]  # the last chunk may be cut short
        added = jnp.sum(inside)
        here = g[0] + jnp.sum(inside * (g - g[0]), axis=0) / added  # exact if all are the same
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


def _row(name, estimator, dist, seconds, moments, truth, draws) -> Row:
    with np.errstate(divide="ignore", invalid="ignore"):
        difference, largest = moments.mean - truth.mean, moments.largest + truth.largest
        both = moments.variance + truth.variance
        z = difference / np.sqrt(both / draws)
    scale = ROUNDING * np.finfo(z.dtype).eps * moments.value / math.prod(dist.batch_shape)
    rounding = scale + float(jnp.finfo(dist.dtype).eps) * np.abs(truth.mean)
    rare = np.where(draws * both < ENOUGH * largest**2, RARE * largest / draws, 0)
    z = np.where(np.abs(difference) <= rounding + rare, 0, z)
    largest_z = float(np.max(np.abs(z)))
    one = math.erfc(largest_z / math.sqrt(2))
    p = 1.0 if one == 1 else -math.expm1(z.size * math.log1p(-one))
    cost = estimator.num_evaluations(dist), seconds
    variance = float(np.sum(moments.variance, dtype=np.float64))
    budget = variance, variance * cost[0], variance * seconds
    verdict = largest_z, p, not p >= SIGNIFICANCE
    return Row(name, *cost, *budget, *verdict, moments.mean, moments.variance, z)


def _flatten(tree: Any) -> Float[Array, "n"]:
    leaves = jax.tree.leaves(tree)
    dtype = compute_dtype(*leaves)
    return jnp.concatenate([leaf.astype(dtype).ravel() for leaf in leaves])


def _named(estimators: Any, dist: Distribution) -> dict[str, Estimator]:
    """The estimators by name, those of a list named after their settings."""
    named = dict(estimators) if isinstance(estimators, Mapping) else {}
    for estimator in () if named else estimators:
        name, copies = _name(estimator), [*map(_name, named.values())].count(_name(estimator))
        named[f"{name} #{copies + 1}" if copies else name] = estimator
    if not named:
        raise ValueError("compare needs at least one estimator, such as [sg.RLOO(2), sg.Rodeo(2)].")
    for name, estimator in named.items():
        if not isinstance(estimator, Estimator):
            raise TypeError(f"compare takes estimators such as sg.RLOO(2), but was given {name}.")
        check_distribution(estimator, dist)
    return named


def _name(module: Any) -> str:
    """`Rodeo(2, operator=Barker())`: the number of samples, and settings not at their default."""
    if not isinstance(module, eqx.Module):
        return eqx.tree_pformat(module)
    settings = []
    for field in dataclasses.fields(module):
        value = getattr(module, field.name)
        if field.name == "num_samples" or not eqx.tree_equal(value, field.default):
            settings.append(f"{field.name}={_name(value)}".removeprefix("num_samples="))
    return f"{type(module).__name__}({', '.join(settings)})"


def _import(name: str, why: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{why} needs {name}: pip install 'steingrad[experiments]'.") from error
