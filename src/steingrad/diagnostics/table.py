"""What `compare` found, as a table that prints, is saved and is drawn."""

import csv
import dataclasses
import html
import importlib
import io
from pathlib import Path
from typing import Any

import jax
import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One estimator; arrays have an entry for each parameter of the distribution, flattened."""

    name: str
    """As in `estimators`, or its `repr`."""
    evaluations: int
    """Of f, for one estimate."""
    seconds: float
    """For one estimate."""
    bias_squared: float
    """Summed over the parameters, less what noise alone would make it."""
    bias_squared_error: float
    """Its standard error; not a number if there are too few draws."""
    variance: float
    """The trace of the covariance."""
    mean_squared_error: float
    """Bias² + variance: that of one estimate."""
    variance_times_evaluations: float
    """What counts if f is costly."""
    variance_times_seconds: float
    """What counts otherwise."""
    cosine: float
    """Of one estimate with the reference, averaged over the draws."""
    cosine_of_mean: float
    """Of the mean of all draws: below 1 by bias (and by what noise is left)."""
    largest_z: float
    """Of all parameters."""
    p_value: float
    """The chance that, without bias, one of all the z-scores is as large (Šidák)."""
    judged: float
    """The share of parameters whose difference rare events do not excuse."""
    biased: bool
    """Beyond doubt, p < 1e-4, or not a number."""
    declared: bool
    """Biased by design: the estimator says so itself."""
    mean: np.ndarray
    """Of the draws."""
    variances: np.ndarray
    """Of the draws."""
    z: np.ndarray
    """(mean − reference) / standard error."""

    @property
    def verdict(self) -> str:
        """About its bias; nothing if it seems to have none."""
        if self.declared:
            return "biased (declared)"
        if self.biased:
            return "BIASED"
        return "more draws" if self.judged < 0.5 else ""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """What `compare` found: a table that prints, in a terminal or a notebook."""

    rows: tuple[Row, ...]
    """In the order of `estimators`."""
    draws: int
    """Of each estimator."""
    adapt_steps: int
    """Before them."""
    reference: str
    """What bias and z-scores are against."""
    gradient: np.ndarray
    """The reference's, flattened."""
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    """Name → why it does not fit."""

    def __getitem__(self, name: str) -> Row:
        return {row.name: row for row in self.rows}[name]

    @property
    def best(self) -> Row | None:
        """The lowest variance × time among those not biased."""
        sound = (row for row in self.rows if not (row.biased or row.declared))
        return min(sound, key=lambda row: row.variance_times_seconds, default=None)

    @property
    def least_error(self) -> Row | None:
        """The lowest mean squared error of one estimate, biased or not."""
        numbers = (row for row in self.rows if np.isfinite(row.mean_squared_error))
        return min(numbers, key=lambda row: row.mean_squared_error, default=None)

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
        sound = [not (row.biased or row.declared) for row in self.rows]
        for ax, cost in zip(axes, ("evaluations", "seconds"), strict=True):
            x = np.asarray([getattr(row, cost) for row in self.rows])
            for i, row in enumerate(self.rows):
                note = " (biased)" if not sound[i] else "" if row.variance else " (variance 0)"
                marker = "k" + "osD^v<>pPX*hd8"[i % 14]
                ax.loglog(x[i], y[i], marker, fillstyle="none", label=row.name + note)
            ax.set(xlabel=f"{cost} for one estimate", xmargin=0.2, ymargin=0.2)
            ends = np.asarray(ax.get_xlim())
            best = np.min(x * y, where=sound, initial=np.inf)
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
        head = "estimator,f evals,time/ms,bias²,± error,variance,MSE,var × ms,cosine,max |z|,p,"
        cells: list[list[str]] = [[*head.split(",")]]
        for row in self.rows:
            numbers = (1e3 * row.seconds, row.bias_squared, row.bias_squared_error, row.variance)
            numbers += (row.mean_squared_error, 1e3 * row.variance_times_seconds)
            numbers = [*(f"{number:.3g}" for number in numbers), f"{row.cosine:.2f}"]
            known = row.verdict != "more draws"
            test = [f"{row.largest_z:.2f}", f"{row.p_value:.2g}"] if known else ["", ""]
            marks = [row.verdict, "best" * (row is self.best)]
            marks.append("least error" * (row is self.least_error))
            mark = ", ".join(filter(None, marks))
            cells.append([row.name, str(row.evaluations), *numbers, *test, mark])
        return cells

    def _caption(self) -> str:
        lines = [
            f"{self.draws} draws of each after {self.adapt_steps} steps of adaptation, against "
            f"{self.reference}; sums over {len(self.gradient)} parameters.",
            "MSE: bias² + variance of one estimate; least error: the lowest. best: lowest "
            "variance × time among the unbiased.",
            "cosine: of one estimate with the reference, on average. p: chance of so large a |z| "
            "without bias.",
        ]
        if any(row.verdict == "more draws" for row in self.rows):
            lines.append("more draws: rare events, or too few draws, leave its bias undecided.")
        lines += [f"Left out: {name}. {reason}." for name, reason in self.skipped.items()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        first, *others, marks = zip(*self._cells(), strict=True)
        columns = [[cell.ljust(max(map(len, first))) for cell in first]]
        columns += [[cell.rjust(max(map(len, column))) for cell in column] for column in others]
        head, *lines = ["  ".join(row).rstrip() for row in zip(*columns, marks, strict=True)]
        rule = "─" * max(map(len, [head, *lines]))
        return "\n".join([head, rule, *lines, rule, self._caption()])

    def _repr_html_(self) -> str:
        rows = ["".join(f"<td>{html.escape(c)}</td>" for c in row) for row in self._cells()]
        rows[0] = rows[0].replace("td>", "th>")
        table = f"<table><tr>{'</tr><tr>'.join(rows)}</tr></table>"
        return table + f"<p>{html.escape(self._caption())}</p>"


def _import(name: str, why: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{why} needs {name}: pip install 'steingrad[experiments]'.") from error
