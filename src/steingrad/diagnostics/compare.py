"""`compare`: measure several estimators on the same problem."""

import dataclasses
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..arrays import as_index, check_whole
from ..distributions import Distribution, as_distribution
from ..estimators import RLOO, Estimator
from ..exact import exact_gradient
from ..objective import as_jax_arrays, bind, takes_key
from . import measure
from .measure import GROUPS, Moments, Problem
from .progress import progress
from .table import Comparison, Row

EXACT_STATES = 2**16  # the most states to enumerate, over the whole batch
SIGNIFICANCE = 1e-4
ROUNDING = 16  # in units of the last place of f
# Bits with large logits hardly ever flip. If the draws miss a flip, so does their variance. So if
# the variance of a parameter is that of fewer than ENOUGH of the largest deviations, up to RARE
# more of them may have been missed (with probability e⁻²⁰), and a large z-score is no evidence. If
# it is that of fewer than RARE of the parameter's own largest deviations, a small z-score is no
# evidence either.
ENOUGH, RARE = 100, 20
# Reasons for which the draws do not decide whether there is bias.
FEW = "too few draws, or too few rare events among them, were made"
MISSED = "the difference may come from states that are so rare that the draws missed them"
NOTHING = "all estimates are 0, so nothing of the gradient has been seen"
BLANK = "all draws of the reference are 0, so nothing of the gradient has been seen"
JAX = Path(jax.__file__).parent


def compare(
    f: Callable[..., Float[Array, "..."]],
    dist: Any,
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
) -> Comparison:
    r"""Measure the bias, the variance and the cost of each estimator on your own $f$ and $q$.

    `estimators` is a list, or a dictionary from names to estimators. `f`, `dist`, `args`, `context`
    and `relaxation` are as in `expectation`, and all random numbers come from `key`. Control
    variates are first adapted by `adapt_steps` steps of their `cv_optimizer`, with this
    `learning_rate`. They then stay fixed over `draws` independent estimates, made `chunk` at a time
    (default: about 64 MB). An estimator that does not fit is left out, and the table says why.

    Gradients are those of the mean over the batch. Variance (the trace) and squared bias are summed
    over all parameters. Their sum is the mean squared error of one estimate, by which biased and
    unbiased estimators can be compared: `least_error` has the lowest. Averaging many estimates, as
    an optimiser does, removes the variance but not the bias. Compare unbiased estimators by
    variance × evaluations if $f$ is costly, otherwise by variance × time: `best` has the lowest
    variance × time. The time is that of one `value_and_grad`.

    The reference is the exact gradient if `f` takes no key and there are at most $2^{16}$ states
    (over the whole batch), otherwise the mean of as many draws of RLOO. The z-score of a parameter
    is $(\text{mean} - \text{reference}) / \text{standard error}$. It is 0 if rounding, or a few
    rare events that the draws missed, may explain the difference. The verdict on bias is "more
    draws" if rare events may explain most differences, if a large z-score is not above what the
    states that the draws may have missed contribute to the exact gradient, if all estimates are 0,
    or if there are too few draws. Such an estimator is neither `best` nor `least_error`, because
    its measured variance misses the rare events too.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> f = lambda x: jnp.sum((x - 0.45) ** 2, axis=-1)
    >>> result = compare(f, sg.Bernoulli(jnp.zeros(3)),
    ...                  [sg.Reinforce(2), sg.RLOO(2), sg.StraightThrough(2)],
    ...                  key=jax.random.key(0), draws=5000)
    >>> result["RLOO(2)"].variance < result["Reinforce(2)"].variance
    True
    >>> [row.verdict for row in result.rows], result.reference
    (['', '', 'biased (declared)'], 'the exact gradient')
    """
    named = _named(estimators)
    dist = as_distribution(dist)
    measure.check_not_empty("compare", dist)
    draws, adapt_steps, chunk = map(as_index, (draws, adapt_steps, chunk))
    check_whole("compare", "number of draws", draws, 2)
    check_whole("compare", "number of adapt_steps", adapt_steps, 0)
    if chunk is not None:
        check_whole("compare", "chunk", chunk, 1)
    args = as_jax_arrays(args)
    settings = {"args": args, "context": context, "relaxation": relaxation}
    problem = Problem(f, dist, settings, adapt_steps, learning_rate)
    refusals = {name: problem.refusal(estimator, key) for name, estimator in named.items()}
    skipped = {name: error for name, error in refusals.items() if error is not None}
    if len(skipped) == len(named):
        raise next(iter(skipped.values()))

    def run(estimator: Estimator, key: PRNGKeyArray, direction: Any) -> tuple[float, Moments]:
        adapt_key, draw_key = jax.random.split(key)
        estimate = problem.adapted(estimator, adapt_key)
        seconds, size = measure.cost(estimate, draw_key)
        at_once = min(-(-draws // GROUPS), chunk or max(1, measure.CHUNK_BYTES // size))
        found = measure.moments(estimate, draw_key, draws, at_once, direction)
        return seconds, jax.tree.map(np.asarray, found)

    with progress(len(named) + 1) as show:
        show("the reference", 0)
        if takes_key(f) or dist.num_states * math.prod(dist.batch_shape) > EXACT_STATES:
            rloo = RLOO(max(2, *(estimator.num_samples for estimator in named.values())))
            _, truth = run(rloo, jax.random.fold_in(key, len(named)), None)
            reference = f"as many draws of {_name(rloo)}"
            missed = lambda samples: None
        else:
            exact = eqx.filter_jit(exact_gradient)(f, dist, args=args)
            gradient = np.asarray(measure.flatten(exact))
            groups = np.broadcast_to(gradient, (GROUPS, *gradient.shape))
            truth = Moments(gradient, 0 * gradient, 0 * gradient, 0.0, groups, 1.0)
            reference = "the exact gradient"
            missed = lambda samples: float(missed_gradient(f, dist, args, jnp.asarray(samples)))
        rows = []
        for i, (name, estimator) in enumerate(named.items()):
            if name not in skipped:
                show(name, i + 1)
                measured = run(estimator, jax.random.fold_in(key, i), jnp.asarray(truth.mean))
                may_miss = missed(float(draws * estimator.num_samples))
                rows.append(_row(name, estimator, dist, *measured, truth, draws, may_miss))
    reasons = {name: _reason(error) for name, error in skipped.items()}
    return Comparison(tuple(rows), draws, adapt_steps, reference, truth.mean, reasons)


def _row(
    name,
    estimator,
    dist,
    seconds,
    moments: Moments,
    truth: Moments,
    draws: int,
    missed: float | None,
) -> Row:
    """`missed` is what `missed_gradient` returns; `None` if the reference is not exact."""
    with np.errstate(divide="ignore", invalid="ignore"):
        difference, own = moments.mean - truth.mean, moments.largest + truth.largest
        largest = np.max(own)  # the size that an event has, also for parameters that saw none
        both = moments.variance + truth.variance
        z = difference / np.sqrt(both / draws)
    scale = ROUNDING * np.finfo(z.dtype).eps * moments.value / math.prod(dist.batch_shape)
    rounding = scale + float(jnp.finfo(dist.dtype).eps) * np.abs(truth.mean)
    # How many deviations as large as the largest one have this variance.
    number = lambda size: draws * (np.sqrt(both) / np.where(size > 0, size, 1)) ** 2
    few = (number(own) < RARE) & (own > 0)
    rare = np.where(number(largest) < ENOUGH, RARE * largest / draws, 0)
    if largest == 0 and _may_all_be_the_mode(dist, draws * estimator.num_samples):
        few, rare = np.ones_like(few), np.full_like(both, np.inf)  # events of unknown size
    size, alarm = np.abs(difference), np.abs(z) > _critical(z.size)
    explained = (size <= rare + rounding) & (alarm | few)
    # Estimates that are all the same, and not 0, do not depend on what the samples missed.
    same, zero = not np.any(moments.largest), not np.any(moments.mean)
    missing = alarm & ~explained & (size <= 2 * (missed or 0)) & (zero or not same)
    z = np.where((size <= rounding) | explained | missing, 0, z)
    # A difference that rare events may explain is evidence neither for nor against bias. Nor is a
    # difference from a reference that has seen no event.
    blank = missed is None and not np.any(truth.largest) and not np.any(truth.mean)
    undecided = blank or missing.any()
    judged = 0.0 if undecided else float(np.mean((size <= rounding) | ~explained))
    largest_z = float(np.max(np.abs(z)))
    one = math.erfc(largest_z / math.sqrt(2))
    p = 1.0 if one == 1 else -math.expm1(z.size * math.log1p(-one))
    variance = float(np.sum(moments.variance, dtype=np.float64))
    bias_squared, bias_squared_error = _bias_squared(difference, both, moments, truth, draws)
    evaluations = estimator.num_evaluations(dist)
    biased, reason = not p >= SIGNIFICANCE, ""
    if judged < 0.5 and not biased:
        reason = MISSED if missing.any() else FEW
        reason = NOTHING if same and zero else BLANK if blank else reason
    return Row(
        name=name,
        evaluations=evaluations,
        seconds=seconds,
        bias_squared=bias_squared,
        bias_squared_error=bias_squared_error,
        variance=variance,
        mean_squared_error=bias_squared + variance,
        variance_times_evaluations=variance * evaluations,
        variance_times_seconds=variance * seconds,
        cosine=float(moments.cosine),
        cosine_of_mean=float(measure.cosine(jnp.asarray(moments.mean), jnp.asarray(truth.mean))),
        largest_z=largest_z,
        p_value=p,
        judged=judged,
        biased=biased,
        undecided=reason,
        declared=estimator.biased,
        mean=moments.mean,
        variances=moments.variance,
        z=z,
    )


def _critical(count: int) -> float:
    """The |z| that none of `count` parameters exceeds, except with a probability of
    `SIGNIFICANCE`."""
    one = -math.expm1(math.log1p(-SIGNIFICANCE) / count)
    return NormalDist().inv_cdf(1 - one / 2)


@eqx.filter_jit
def missed_gradient(
    f: Callable, dist: Distribution, args: tuple, samples: Float[Array, ""]
) -> Float[Array, ""]:
    r"""The norm of the part of the exact gradient that so many samples may miss, $\nabla_\eta
    \sum_{x \in R} q_\eta(x) (f(x) - E[f])$.

    $R$ are rare states. All samples miss them with a probability of `SIGNIFICANCE` or more, and
    among the rare states they have the largest $|f(x) - E[f]|$.
    """
    probs = dist.probabilities()
    fx = jnp.moveaxis(bind(f, dist)(None, dist.enumerate_batch(), *args)[0], 0, -1)
    fx = jnp.where(probs > 0, fx.astype(probs.dtype), 0)
    centred = fx - jnp.sum(probs * fx, axis=-1, keepdims=True)
    most = (-math.log(SIGNIFICANCE) / samples).astype(probs.dtype)
    rare = probs <= most
    order = jnp.argsort(jnp.where(rare, -jnp.abs(centred), jnp.inf), axis=-1)
    mass = jnp.cumsum(jnp.take_along_axis(probs, order, axis=-1), axis=-1)
    mass = jnp.take_along_axis(mass, jnp.argsort(order, axis=-1), axis=-1)
    of_rare = jnp.where(rare & (mass <= most), centred, 0)
    mean = lambda q: jnp.mean(jnp.sum(q.probabilities() * of_rare, axis=-1))
    gradient = jax.grad(lambda p: mean(dist.with_parameters(p)))(dist.parameters)
    gradient = dist.by_given(gradient)
    return jnp.linalg.norm(measure.flatten(gradient))


def _may_all_be_the_mode(dist: Distribution, samples: int) -> bool:
    """Whether it is likely enough that all samples are the most probable state. If so, equal
    estimates are no evidence that the variance is 0."""
    if dist.num_states * math.prod(dist.batch_shape) > EXACT_STATES:
        return False
    log_mode = jnp.sum(jnp.log(jnp.max(dist.probabilities(), axis=-1)))
    return samples * float(log_mode) > math.log(SIGNIFICANCE)


def _bias_squared(difference, both, moments: Moments, truth: Moments, draws: int):
    r"""$\|b\|^2$ and its standard error, from $d = b + e$, where $e$ is the noise of the means.

    $E\|d\|^2 = \|b\|^2 + \operatorname{tr} C$ with $C = \operatorname{Cov}(e)$, and its variance is
    $4 b^\top C b + 2 \operatorname{tr} C^2$ for normal $e$. The terms that need more of $C$ than
    its diagonal come from the means of groups of draws.
    """
    d = np.asarray(difference, np.float64)
    noise = float(np.sum(both, dtype=np.float64)) / draws
    bias_squared = max(float(d @ d) - noise, 0.0)
    groups = np.asarray(moments.groups, np.float64) - np.asarray(truth.groups, np.float64)
    groups = groups[np.isfinite(groups).all(axis=-1)]
    count = len(groups)
    if count < 3:
        return bias_squared, math.nan
    deviations = groups - np.mean(groups, axis=0)
    products = deviations @ deviations.T  # between groups, so there is no n × n matrix
    # The variance of a deviation is 1 − 1/count times that of a group's mean.
    spread = 1 - 1 / count
    trace = np.mean(products[~np.eye(count, dtype=bool)] ** 2) / spread**2 / count**2
    along = np.var(deviations @ d, ddof=1) / count - trace  # dᵀCd contains the noise of d itself
    return bias_squared, float(np.sqrt(4 * max(along, 0.0) + 2 * trace))


def _named(estimators: Any) -> dict[str, Estimator]:
    """The estimators by name. Those of a list are named after their settings."""
    named = dict(estimators) if isinstance(estimators, Mapping) else {}
    for estimator in () if named else estimators:
        name, copies = _name(estimator), [*map(_name, named.values())].count(_name(estimator))
        named[f"{name} #{copies + 1}" if copies else name] = estimator
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
        if field.name == "num_samples" or not eqx.tree_equal(value, field.default):
            settings.append(f"{field.name}={_name(value)}".removeprefix("num_samples="))
    return f"{type(module).__name__}({', '.join(settings)})"


def _reason(error: Exception) -> str:
    """The first sentence of an error message; its type and place too if no `raise` raised it."""
    sentence = str(error).split(". ")[0].split("\n")[0].strip().removesuffix(".")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not Path(frame.filename).is_relative_to(JAX)]
    if not own or (own[-1] is frames[-1] and (own[-1].line or "").startswith("raise ")):
        return sentence
    last = own[-1]
    where = f"{last.name}, line {last.lineno} of {Path(last.filename).name}"
    return f"{type(error).__name__} in {where}: {sentence}"
