"""The base class of all estimators, and the steps from f to an estimate that they share."""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Shaped

from ..arrays import cast, compute_dtype, expand
from ..derivatives import device_axes, drawn_with, on_each_device, stop_gradient
from ..distributions.base import Distribution, check_inside
from ..distributions.foreign import as_distribution
from ..fast import mean, mean_of_samples, mean_of_squares
from ..objective import (
    Evaluated,
    Values,
    as_jax_arrays,
    bind,
    evaluate,
    has_gradient,
    per_example,
)
from .checks import (
    check_call,
    check_cv,
    check_distribution,
    check_evaluated,
    check_further,
    check_gradient,
    check_num_samples,
    kind,
)
from .optimizers import adam, largest

SMALLEST = 1e-15
"""Estimates below this size, or above its inverse, adapt no control variates that are learned by
descent: the gradient of their mean square is at the end of the range of float32."""


class Gradients(NamedTuple):
    """Gradients of the mean of f over samples and batch."""

    parameters: Any
    """The estimate g of the gradient with respect to the distribution's parameters. It is unbiased
    unless the estimator is `biased`."""
    cv: Any
    """The gradient of the mean of g² with respect to the control variates. For control variates
    that are sums or averages it is their old value minus their new value."""
    args: tuple
    """The gradients with respect to `args`; `None` for arguments that are not floating-point."""


class Estimator(eqx.Module):
    r"""An estimator of $\nabla_\eta E_{q_\eta}[f(x)]$. It is immutable. Its fields are settings.

    A subclass defines, in this order: `CV` (a module of what it learns), its fields, `biased`,
    `needs` and other flags, `__check_init__`, the properties, `init` and `cv_optimizer`, `draw`,
    `weights`, `propose`, `gradient` and `adapt`. Only `num_samples` and `gradient` are required.

    The inputs of these methods have been checked, and their floating-point arrays have one dtype.
    """

    num_samples: eqx.AbstractVar[int]
    """The number of samples, K."""
    fewest: ClassVar[tuple[int, str]] = (1, "the points at which f is evaluated")
    """The least `num_samples`, and the reason."""
    biased: ClassVar[bool] = False
    """Whether the mean of the estimate differs from the gradient by design."""
    needs: ClassVar[Any] = None
    """The property that a distribution must have, such as `"has_mean"`; `None` if the estimator
    takes any distribution."""
    instead: ClassVar[str] = "RLOO and Rodeo take any distribution."
    """The advice in the error message if a distribution lacks the property in `needs`."""
    needs_gradient: ClassVar[Any] = False
    r"""Whether $\nabla f$ is needed, at the samples or, if `relaxes`, between the states."""
    relaxes: ClassVar[Any] = False
    """Whether f, or its `relaxation`, is evaluated at points between the states."""
    samples_are_states: ClassVar[Any] = True
    """Whether `draw` returns states. `GumbelSoftmax` can return points between the states."""
    weighs_samples: ClassVar[Any] = False
    """Whether the estimate of E[f] is a sum of f weighted by the method `weights`."""
    looks_further: ClassVar[Any] = False
    """Whether f is also evaluated at the further points that the method `propose` returns."""
    cv_is_quadratic: ClassVar[Any] = True
    """Whether `Gradients.cv` is the gradient of the mean square of the estimate. If so, a factor of
    the estimate enters `Gradients.cv` squared, otherwise not at all."""
    cancels_constant: ClassVar[Any] = False
    r"""Whether the mean of the estimate stays the same if a constant vector is added to all scores.
    If so, $\log q$ need not be normalised."""

    def __check_init__(self):
        check_num_samples(type(self).__name__, self.num_samples, *self.fewest)

    def __init_subclass__(cls, **keywords: Any):
        super().__init_subclass__(**keywords)
        if "sample" in vars(cls):
            raise TypeError(
                f"{cls.__name__} overrides `sample`, which checks its arguments and calls `draw`. "
                "Override `draw(self, key, dist)` instead."
            )

    def __repr__(self) -> str:
        return eqx.tree_pformat(self) + (" (biased)" if self.biased else "")

    @property
    def goes_by_gradient(self) -> bool:
        r"""Whether the mean of the estimate depends on $\nabla f$, so that it is wrong if $\nabla
        f$ is 0 between the states. For other estimators the gradient only lowers the variance."""
        return self.relaxes or (self.biased and self.needs_gradient)

    def num_evaluations(self, dist: Distribution) -> int:
        """How many times f is evaluated for one estimate."""
        return self.num_samples

    def init(self, key: PRNGKeyArray, dist: Any = None) -> Any:
        """The initial control variates, a module of arrays; `None` if the estimator learns nothing.

        Some estimators need the shape of `dist`, and raise an error without it.
        """
        return None

    def cv_optimizer(self, learning_rate: Any) -> optax.GradientTransformation:
        """The optimiser that updates the control variates; see `steingrad.cv_optimizer`."""
        return adam(learning_rate)

    def draw(self, key: PRNGKeyArray, dist: Distribution) -> Float[Array, "samples ..."]:
        """The points at which to evaluate f, of shape `[K, *batch, *event]`."""
        return dist.sample(key, (self.num_samples,))

    def weights(
        self, dist: Distribution, x: Float[Array, "samples ..."]
    ) -> Float[Array, "samples ..."]:
        r"""The weights $w_k$, of shape `[K, *batch]`, with which $\sum_k w_k f(x_k)$ estimates
        $E[f]$. Called only if `weighs_samples`; otherwise each weight is $1/K$."""
        raise NotImplementedError

    def propose(self, cv: Any, dist: Distribution, at: Evaluated) -> tuple[Any, Any]:
        """Returns further points at which to evaluate f without its gradient, of shape `[n, K,
        *batch, *event]`, and a memo of how they were chosen, which `gradient` and `adapt` get as
        `at.memo`. Called only if `looks_further`."""
        raise NotImplementedError

    @abc.abstractmethod
    def gradient(self, cv: Any, dist: Distribution, at: Evaluated) -> Any:
        """The estimate for each element of the batch, shaped like the distribution's parameters."""

    def adapt(self, cv: Any, dist: Distribution, at: Evaluated) -> tuple[Any, Any]:
        """Returns the estimate, and the gradient of its mean square with respect to `cv`.

        If the control variates are not learned by descent but are sums or averages, the second
        result is `cv` minus its new value, which plain gradient descent subtracts.
        """

        @eqx.filter_grad(has_aux=True)
        def mean_square(cv):
            grad = self.gradient(cv, dist, at)
            square, unit = relative_mean_square(grad, dist, at)
            return square, (grad, unit)

        cv_grad, (grad, unit) = mean_square(cv)
        return grad, times_square(cv_grad, unit)

    def is_sound(self, dist: Distribution, at: Evaluated) -> Bool[Array, "..."]:
        """Which elements of the batch may enter what is learned, of shape `[*batch]`: those whose
        values and gradients are finite."""
        sound = jnp.all(jnp.isfinite(at.fx), axis=0)
        if at.dfx is None:
            return sound
        axes = (0, *range(-at.event_ndim, 0))
        return sound & jnp.all(jnp.isfinite(at.dfx), axis=axes)

    def sample(self, key: PRNGKeyArray, dist: Distribution) -> Float[Array, "samples ..."]:
        """The points at which to evaluate f, of shape `[K, *batch, *event]`, for `estimate`."""
        check_distribution(self, dist)
        return self.draw(key, dist)

    def evaluated(
        self,
        cv: Any,
        dist: Distribution,
        x: Shaped[Array | np.ndarray, "samples ..."],
        fx: Shaped[Array | np.ndarray, "samples ..."],
        dfx: Float[Array | np.ndarray, "samples ..."] | None = None,
        *,
        fy: Shaped[Array | np.ndarray, "points samples ..."] | None = None,
        key: PRNGKeyArray | None = None,
        f: Callable[[Array], Array] | None = None,
        context: Array | None = None,
    ) -> Evaluated:
        """Check your own evaluations of f, and collect them for `further_points`."""
        check_distribution(self, dist)
        check_cv(self, cv, dist)
        # States and values may be integers, as from a simulator, or half-precision numbers.
        given: Any = [a if a is None else jnp.asarray(a) for a in (x, fx, dfx, fy)]
        if any(jnp.iscomplexobj(array) for array in jax.tree.leaves(given)):
            raise TypeError(
                "f and its gradient must be real numbers, but were complex: pass real arrays."
            )
        dtype = compute_dtype(dist.dtype, *jax.tree.leaves(given))
        given = jax.tree.map(lambda array: array.astype(dtype), given)
        objective = None
        if f is not None:
            bound = bind(f, dist, relaxed=self.goes_by_gradient)
            objective = lambda x: bound(key, x.astype(dist.dtype))[0].astype(dtype)
        at = Evaluated(*given, f=objective, key=key, context=context)
        check_evaluated(self, dist, at)
        if self.samples_are_states:
            check_inside(dist, at.x)
        return at

    def further_points(
        self, cv: Any, dist: Distribution, at: Evaluated
    ) -> Float[Array, "points samples ..."] | None:
        """The further points at which to evaluate f, without its gradient; `None` if there are
        none. `at` is the result of `evaluated`."""
        return self.propose(*of_one_type(cv, dist, at))[0] if self.looks_further else None

    def estimate(
        self,
        cv: Any,
        dist: Distribution,
        x: Shaped[Array | np.ndarray, "samples ..."],
        fx: Shaped[Array | np.ndarray, "samples ..."],
        dfx: Float[Array | np.ndarray, "samples ..."] | None = None,
        **more: Any,
    ) -> Any:
        r"""The estimate of $\nabla_\eta E[f]$ for each element of the batch, shaped like the
        distribution's parameters, which may be a sum over the batch (`shares_parameters`).

        `x` comes from `sample`. `fx`, of shape `[K, *batch]`, holds f at `x`. `dfx`, shaped like
        `x`, holds the gradient of f (if `needs_gradient`). A few settings need more: a `key` (an
        operator that draws coordinates), `f` itself (`ExactSurrogate`), a `context` (`Relax`), or
        `fy`, f at the `further_points`, which were chosen with the same `key` (`Bronco`).
        """
        at = self.evaluated(cv, dist, x, fx, dfx, **more)
        if 0 in dist.batch_shape:
            return jax.tree.map(jnp.zeros_like, dist.parameters)
        cv, dist, at = of_one_type(cv, dist, at)
        if self.looks_further:
            y, memo = self.propose(cv, dist, at)
            check_further(type(self).__name__, y, at)
            at = dataclasses.replace(at, memo=memo)
        return self.gradient(cv, dist, at)

    def value_and_grad(
        self, f: Callable[..., Any], dist: Any, cv: Any = None, **settings: Any
    ) -> tuple[Any, Gradients]:
        """Returns the mean of f over samples and batch, and its gradients: the same as
        `steingrad.value_and_grad(f, dist, self, cv, **settings)`."""
        return value_and_grad(pose(f, dist, self, cv, **settings))

    def per_element(
        self, f: Callable[..., Any], dist: Any, cv: Any = None, **settings: Any
    ) -> tuple[Any, Gradients]:
        """Returns f at the samples, and the gradients of `value_and_grad` without the mean over the
        batch: `parameters` has one gradient for each element of the batch, and `cv` belongs to
        these. `args` still holds the gradient of the mean."""
        return per_element(pose(f, dist, self, cv, **settings))


class Problem(eqx.Module):
    """The checked and complete description of an expectation to estimate."""

    objective: Any
    """f as a function of a key, states and further arguments. It returns values and aux."""
    dist: Distribution
    estimator: Estimator
    cv: Any
    key: PRNGKeyArray
    args: tuple
    context: Any
    relaxation: Callable[..., Any] | None
    """The function that replaces the objective between the states; `None` if none does."""
    on_devices: bool = eqx.field(static=True)
    """Whether arrays differ between devices, as inside `jax.shard_map`."""
    has_aux: bool = eqx.field(static=True)
    differentiable: bool = eqx.field(static=True)
    """Whether f has a gradient. A function that runs outside JAX has none."""
    reduce: bool = eqx.field(static=True)
    """Whether the value is the mean over the batch, or one number for each of its elements."""


def pose(
    f: Callable[..., Any],
    dist: Any,
    estimator: Estimator,
    cv: Any = None,
    *,
    key: PRNGKeyArray,
    args: tuple = (),
    context: Array | None = None,
    relaxation: Callable[..., Any] | None = None,
    has_aux: bool = False,
    batched: bool = True,
    in_axes: Sequence[int | None] | None = None,
    reduce: bool = True,
) -> Problem:
    """Check the arguments of `expectation` or `value_and_grad`, and collect them in a `Problem`."""
    if isinstance(estimator, type) and issubclass(estimator, Estimator):
        raise TypeError(
            f"The estimator is a class, not an instance: write {estimator.__name__}(...)."
        )
    if isinstance(dist, Estimator) or isinstance(estimator, Distribution):
        raise TypeError("dist and estimator are in the wrong order: pass f, dist, estimator.")
    if not isinstance(estimator, Estimator):
        raise TypeError(f"The estimator must be one such as RLOO(2), not {kind(estimator)}.")
    dist = as_distribution(dist)
    by_gradient = estimator.goes_by_gradient
    check_call(f, dist, key, args)
    check_distribution(estimator, dist)
    if cv is not None:  # no cv is needed for the value alone
        check_cv(estimator, cv, dist)
    if batched and in_axes is not None:
        raise ValueError(
            "in_axes maps an f of one example over the batch, so it needs batched=False, but "
            "batched is True. Pass batched=False, or leave in_axes out."
        )
    on_devices = bool(device_axes((dist, cv, args, context, key)))
    differentiable, args = has_gradient(f), tuple(as_jax_arrays(args))
    if not differentiable:
        check_gradient(estimator)
    if on_devices:
        parameters, args, context, key = on_each_device(
            (dist.parameters, args, context, key), like=(cv, dist)
        )
        dist = dist.with_parameters(parameters)
    on_batches = lambda f: f if batched else per_example(f, in_axes)
    stand_in = None
    if relaxation is not None and estimator.relaxes:
        stand_in = bind(on_batches(relaxation), dist, relaxed=True)
    by_gradient = by_gradient and stand_in is None
    objective = bind(on_batches(f), dist, relaxed=by_gradient, has_aux=has_aux)
    rest = (stand_in, on_devices, has_aux, differentiable, bool(reduce))
    return Problem(objective, dist, estimator, cv, key, args, context, *rest)


class Seen(eqx.Module):
    """The samples of a problem, and f there."""

    x: Float[Array, "samples ..."]
    values: Values
    weights: Float[Array, "samples ..."] | None
    """The weights of the samples in the estimate of E[f]; `None` if each is 1/K."""


def per_element(problem: Problem) -> tuple[Any, Gradients]:
    """See `Estimator.per_element`."""
    # Derivatives at fixed samples would be wrong, so there are none.
    constant = dataclasses.replace(problem, dist=stop_gradient(problem.dist))
    seen, aux = observe(constant)
    grads = by_given(constant, estimate(constant, seen, 1 / batch_size(problem)))
    fx = seen.values.fx
    if seen.weights is not None:
        fx = weighted(fx, seen.weights)
    return drawn_with(problem.dist, ((fx, aux) if problem.has_aux else fx, grads))


def value_and_grad(problem: Problem) -> tuple[Any, Gradients]:
    """Returns the mean of f over samples and batch, and its gradients. If the problem does not
    `reduce`, one mean over the samples for each element of the batch, and the gradients of their
    sum. With `has_aux` the first result is a pair: the value, and the aux of f."""
    constant = dataclasses.replace(problem, dist=stop_gradient(problem.dist))
    seen, aux = observe(constant)
    cotangent = 1 / batch_size(problem) if problem.reduce else 1.0
    grads = estimate(constant, seen, cotangent)
    grads = by_given(constant, scaled(problem, grads, cotangent, problem.dist.parameters))
    value = average(problem, seen.values.fx, seen.weights)
    return drawn_with(problem.dist, ((value, aux) if problem.has_aux else value, grads))


def by_given(problem: Problem, grads: Gradients) -> Gradients:
    """The gradients, with those of the parameters by the arrays that the user gave."""
    return grads._replace(parameters=problem.dist.by_given(grads.parameters))


def batch_size(problem: Problem) -> int:
    """The number of elements of the batch; 1 for an empty batch, whose mean is 0."""
    return max(math.prod(problem.dist.batch_shape), 1)


def average(
    problem: Problem,
    fx: Float[Array, "samples ..."],
    weights: Float[Array, "samples ..."] | None,
) -> Float[Array, "..."]:
    """The estimate of E[f]: the mean over samples and batch, or over the samples alone."""
    fx = fx if weights is None else weighted(fx, weights)
    return mean(fx) if problem.reduce else mean_of_samples(fx)


def draw(problem: Problem) -> tuple[Array, Array | None]:
    """Returns the samples, and their weights in the estimate of E[f], `None` if each is 1/K."""
    estimator, dist = problem.estimator, problem.dist
    sample_key, _, _ = jax.random.split(problem.key, 3)
    x = estimator.draw(sample_key, dist)
    return x, estimator.weights(dist, x) if estimator.weighs_samples and x.size else None


def observe(problem: Problem) -> tuple[Seen, Any]:
    """Draw samples and evaluate f there. Returns what `estimate` needs, and the aux of f."""
    if problem.cv is None:
        check_cv(problem.estimator, problem.cv, problem.dist)
    x, weights = draw(problem)
    _, f_key, _ = jax.random.split(problem.key, 3)
    values, aux = evaluate(
        partial(problem.objective, f_key),
        x,
        problem.args,
        needs_gradient=bool(problem.estimator.needs_gradient and x.size),
        differentiable=problem.differentiable,
    )
    return Seen(x, values, weights), aux


def estimate(problem: Problem, seen: Seen, cotangent: Any) -> Gradients:
    """Estimate the gradient, and adapt `cv`. `dist` is a constant here.

    `cotangent` is the derivative of the loss with respect to the mean of f over the samples of an
    element of the batch: one number for all elements, or an array of shape `[*batch]`. The
    gradients with respect to `args` are those of the loss. The others become those of the loss by
    `scaled`.
    """
    estimator, dist, x, fx = problem.estimator, problem.dist, seen.x, seen.values.fx
    cotangent = jnp.asarray(cotangent, fx.dtype)
    share = 1 / len(fx) if seen.weights is None else seen.weights.astype(fx.dtype)
    of_samples = jnp.ones_like(fx) * (cotangent * share)
    dfx, args_grad = seen.values.gradients(of_samples, two_passes=seen.weights is not None)
    if x.size == 0:
        grad, cv_grad = jax.tree.map(jnp.zeros_like, (dist.parameters, problem.cv))
        return Gradients(grad, cv_grad, args_grad)
    _, f_key, own_key = jax.random.split(problem.key, 3)
    again = problem.objective if problem.relaxation is None else problem.relaxation
    f = lambda y: again(f_key, y.astype(x.dtype), *problem.args)[0].astype(fx.dtype)
    factors = cotangent / nonzero(largest_of(cotangent))
    at = Evaluated(x, fx, dfx, f=f, key=own_key, context=problem.context, factors=factors)
    situation: Any = problem.cv, dist.counted(factors), at
    if problem.on_devices:
        situation = on_each_device(situation)
    return Gradients(*run(estimator, *situation), args_grad)


def weighted(
    fx: Float[Array, "samples ..."], weights: Float[Array, "samples ..."]
) -> Float[Array, "samples ..."]:
    r"""$K w_k f(x_k)$, whose mean is the estimate of $E[f]$."""
    return jnp.where(weights != 0, len(fx) * weights.astype(fx.dtype) * fx, 0)


def run(estimator: Estimator, cv: Any, dist: Distribution, at: Evaluated) -> tuple[Any, Any]:
    """Returns the estimate, and the gradient for the control variates."""
    wide_cv, dist, at = prepare(estimator, cv, dist, at)
    if estimator.looks_further:
        y, memo = estimator.propose(wide_cv, dist, at)
        assert at.f is not None
        at = dataclasses.replace(at, fy=jax.vmap(at.f)(y), memo=memo)
    grad, cv_grad = learn(estimator, wide_cv, dist, at)
    return grad, cv_grad if wide_cv is cv else cast(cv_grad, cv)


def prepare(
    estimator: Estimator, cv: Any, dist: Distribution, at: Evaluated
) -> tuple[Any, Distribution, Evaluated]:
    """Cast all arguments to one dtype and, if something is learned, find the elements of the batch
    that may enter it."""
    cv, dist, at = of_one_type(cv, dist, at)
    if cv is None:
        return cv, dist, at
    sound = estimator.is_sound(dist, at)
    if at.factors is not None:
        sound = sound & (at.factors != 0)
    at = dataclasses.replace(at, sound=sound)
    dfx = at.dfx
    if dfx is not None:
        dfx = jnp.where(expand(sound, dfx.ndim - 1), dfx, 0)
    return cv, dist, dataclasses.replace(at, fx=at.only_sound(at.fx), dfx=dfx)


def learn(estimator: Estimator, cv: Any, dist: Distribution, at: Evaluated) -> tuple[Any, Any]:
    """`Estimator.adapt`, made safe: whatever f returned, nothing enters the control variates that
    is not finite. The estimate itself is NaN for an element of the batch whose f is not finite."""
    grad, cv_grad = estimator.adapt(cv, dist, at)
    # What was finite may have overflowed. Then nothing is learned from this step.
    useful = jnp.isfinite(largest(cv_grad))
    if at.sound is not None:
        useful = useful & jnp.any(at.sound)
    return stamp(grad, dist, at), jax.tree.map(lambda g: jnp.where(useful, g, 0), cv_grad)


def stamp(grad: Any, dist: Distribution, at: Evaluated) -> Any:
    """The estimate, with NaN at the elements of the batch where f is not finite."""
    if at.sound is None:
        return grad
    sound = at.sound if at.factors is None else at.sound | (at.factors == 0)
    sound = jnp.all(sound) if dist.shares_parameters else sound
    return jax.tree.map(lambda g: jnp.where(expand(sound, g.ndim), g, jnp.nan), grad)


def of_one_type(cv: Any, dist: Distribution, at: Evaluated) -> tuple[Any, Distribution, Evaluated]:
    """Cast all arguments to the dtype of f's values, so that no formula has to convert anything."""
    situation, dtype = (cv, dist, at), at.fx.dtype
    leaves = filter(eqx.is_inexact_array, jax.tree.leaves(situation))
    return situation if all(leaf.dtype == dtype for leaf in leaves) else cast(situation, dtype)


def relative_mean_square(
    grad: Any, dist: Distribution, at: Evaluated
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns the mean square of an estimate in units of its size, and the unit, a power of two.
    The square of a very small or large number would leave the range of float32. Numbers that are
    not finite, because f is not finite between the states, count as 0."""
    if at.sound is not None and not dist.shares_parameters:
        sound = at.sound
        grad = jax.tree.map(lambda g: jnp.where(expand(sound, g.ndim), g, 0), grad)
    grad = jax.tree.map(lambda g: jnp.where(jnp.isfinite(g), g, 0), grad)
    if at.factors is not None:
        grad = times_factors(grad, dist, at.factors)
    unit = power_of_two(jax.lax.stop_gradient(largest(grad)))
    return mean_of_squares(jax.tree.map(lambda g: g / unit.astype(g.dtype), grad)), unit


def power_of_two(size: Float[Array, ""]) -> Float[Array, ""]:
    """The least power of two above `size`; 1 if it is 0 or not finite."""
    _, exponent = jnp.frexp(size)
    power = jnp.ldexp(jnp.ones((), size.dtype), exponent)
    return jnp.where((size > 0) & jnp.isfinite(size), power, 1)


def times_square(tree: Any, unit: Float[Array, ""]) -> Any:
    """Multiply by the square of `unit`, a power of two. If the square is below 10⁻³⁰ or above 10³⁰,
    the result is 0, so that nothing is learned from numbers at the ends of float32's range."""
    inside = (unit > SMALLEST) & (unit < 1 / SMALLEST)
    factor = jnp.where(inside, jnp.where(inside, unit, 0) ** 2, 0)
    return jax.tree.map(lambda g: g * factor.astype(g.dtype), tree)


def scaled(problem: Problem, grads: Gradients, cotangent: Any, parameters: Any) -> Gradients:
    """Turn the gradients of `estimate` into those of the loss, and cast them to the dtypes of the
    parameters. The gradients with respect to `args` stay unchanged."""
    size, cv_grad = largest_of(cotangent), grads.cv
    if problem.estimator.cv_is_quadratic:
        cv_grad = jax.tree.map(lambda g: g * jnp.asarray(size**2, g.dtype), cv_grad)
    # A sum over the batch has its factors, relative to the largest, already.
    grad = times_factors(grads.parameters, problem.dist, cotangent, size)
    return Gradients(cast(grad, parameters), cv_grad, grads.args)


def times_factors(grad: Any, dist: Distribution, factors: Any, of_sums: Any = 1) -> Any:
    """Multiply each element's numbers by its factor, and sums over the batch, which belong to
    shared parameters, by `of_sums`. A factor of 0 gives 0, also if the estimate is not finite."""

    def times(g, factor):
        factor = expand(jnp.asarray(factor, g.dtype), g.ndim)
        return factor * jnp.where((factor == 0) & ~jnp.isfinite(g), 0, g)

    shares = dist.by_part(lambda part, _: bool(part.shares_parameters))
    of_part = lambda shared, part: jax.tree.map(
        lambda g: times(g, of_sums if shared else factors), part
    )
    return jax.tree.map(of_part, shares, grad)


def largest_of(cotangent: Any) -> Float[Array, ""]:
    """The largest absolute value; 0 if there is none."""
    return jnp.max(jnp.abs(jnp.asarray(cotangent)), initial=0)


def nonzero(size: Float[Array, ""]) -> Float[Array, ""]:
    """The same number, or 1 if it is 0."""
    return jnp.where(size == 0, 1, size)


def mean_of_scores(
    dist: Distribution, weights: Float[Array, "samples ..."], x: Float[Array, "samples ..."]
) -> Any:
    r"""$\frac1K \sum_k w_k s(x_k)$, shaped like the parameters."""
    return jax.tree.map(lambda g: g / len(x), dist.weighted_score(weights, x))
