"""The result of `compare`, as a table to print, save and plot."""

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
    """The results of one estimator. Arrays have an entry for each parameter, flattened."""

    name: str
    """The name in `estimators`, or a name made of the settings."""
    evaluations: int
    """Evaluations of f for one estimate."""
    seconds: float
    """Seconds for one estimate."""
    bias_squared: float
    """The squared bias, summed over the parameters and corrected for noise."""
    bias_squared_error: float
    """The standard error of `bias_squared`; NaN if there are too few draws."""
    variance: float
    """The trace of the covariance."""
    mean_squared_error: float
    """Bias² + variance, the error of one estimate."""
    variance_times_evaluations: float
    """The measure to compare if f is costly."""
    variance_times_seconds: float
    """The measure to compare if f is cheap."""
    cosine: float
    """The cosine between one estimate and the reference, averaged over the draws."""
    cosine_of_mean: float
    """The cosine between the mean of all draws and the reference, below 1 by bias (and noise)."""
    largest_z: float
    """The largest |z| of all parameters."""
    p_value: float
    """The probability of a z-score as large in any parameter if there is no bias (Šidák)."""
    judged: float
    """The share of parameters whose difference rare events cannot explain."""
    biased: bool
    """Whether p < 1e-4, or p is NaN."""
    undecided: str
    """Why the draws do not decide whether there is bias; empty if they do."""
    declared: bool
    """Whether the estimator declares itself biased."""
    mean: np.ndarray
    """The mean of the draws."""
    variances: np.ndarray
    """The variance of the draws, for each parameter."""
    z: np.ndarray
    """(mean − reference) / standard error."""

    @property
    def verdict(self) -> str:
        """The verdict on bias; empty if no bias was found."""
        if self.declared:
            return "biased (declared)"
        if self.biased:
            return "BIASED"
        return "more draws" if self.undecided else ""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The result of `compare`, which prints as a table in a terminal or a notebook."""

    rows: tuple[Row, ...]
    """One row for each estimator, in the order of `estimators`."""
    draws: int
    """The number of draws of each estimator."""
    adapt_steps: int
    """The number of steps of adaptation before the draws."""
    reference: str
    """The reference for bias and z-scores, in words."""
    gradient: np.ndarray
    """The gradient of the reference, flattened."""
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    """The names of the estimators that were left out, and why."""

    def __getitem__(self, name: str) -> Row:
        return {row.name: row for row in self.rows}[name]

    @property
    def best(self) -> Row | None:
        """The row with the lowest variance × time among the unbiased estimators; `None` if the
        draws decide of none that it is unbiased."""
        sound = (row for row in self.rows if not row.verdict)
        return min(sound, key=lambda row: row.variance_times_seconds, default=None)

    @property
    def least_error(self) -> Row | None:
        """The row with the lowest mean squared error of one estimate, biased or not; `None` if
        the draws are too few to measure any."""
        known = (row for row in self.rows if not row.undecided)
        numbers = (row for row in known if np.isfinite(row.mean_squared_error))
        return min(numbers, key=lambda row: row.mean_squared_error, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists."""
        plain = lambda leaf: leaf.tolist() if isinstance(leaf, np.ndarray) else leaf
        return jax.tree.map(plain, dataclasses.asdict(self))

    def to_csv(self, path: str | Path | None = None) -> str:
        """One line for each estimator, without the arrays. They are also written to `path` if
        given."""
        names = [field.name for field in dataclasses.fields(Row) if field.type is not np.ndarray]
        rows = [[getattr(row, name) for name in names] for row in self.rows]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([names, *rows])
        if path:
            Path(path).write_text(text.getvalue(), encoding="utf-8")
        return text.getvalue()

    def plot(self, path: str | Path | None = None) -> Any:
        """Plot variance against evaluations and against time, and save the figure to `path` if
        given. Returns the two matplotlib axes. On a dotted line variance × cost is constant."""
        plt = _import("matplotlib.pyplot", "Comparison.plot")
        figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
        least = min((row.variance for row in self.rows if row.variance), default=1.0)
        y = np.asarray([row.variance or least / 10 for row in self.rows])  # 0 has no logarithm
        sound = [not row.verdict for row in self.rows]
        for ax, cost in zip(axes, ("evaluations", "seconds"), strict=True):
            x = np.asarray([getattr(row, cost) for row in self.rows])
            for i, row in enumerate(self.rows):
                biased = " (biased)" if row.biased or row.declared else f" ({row.verdict})"
                note = biased if not sound[i] else "" if row.variance else " (variance 0)"
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
        names: dict[str, list[str]] = {}
        for row in self.rows:
            if row.verdict == "more draws":
                names.setdefault(row.undecided, []).append(row.name)
        for reason, those in names.items():
            lines.append(f"more draws: the bias of {', '.join(those)} is undecided: {reason}.")
        if names:
            lines.append(
                "Their z-scores and variances are not to be trusted. Compare again with "
                f"draws={10 * self.draws} or more before you choose."
            )
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
