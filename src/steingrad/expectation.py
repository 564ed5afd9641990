"""The front door: an expectation that `jax.grad` differentiates with an estimator."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from .derivatives import (
    CONSTANT,
    check_shared,
    drawn_with,
    over_devices,
    reverse_only,
    stop_gradient,
)
from .estimators import Gradients, base
from .estimators.base import Problem, pose
from .fast import mean

P = ParamSpec("P")
T = TypeVar("T")


def _takes(arguments: Callable[P, Problem]) -> Callable[[Callable[[Problem], T]], Callable[P, T]]:
    """A decorator for functions of a `Problem`, which are called with the arguments it is made of:
    they are listed once."""

    def decorate(function):
        @functools.wraps(function)
        def call(*given: P.args, **settings: P.kwargs) -> T:
            return function(arguments(*given, **settings))

        call.__signature__ = inspect.signature(arguments)  # pyright: ignore
        return call

    return decorate


@_takes(pose)
def expectation(problem: Problem) -> Any:
    r"""$E_{q_\eta}[f(x)]$, averaged over the batch: estimated, and differentiable.

    $q_\eta$ is `dist`. The `estimator` draws its samples with `key`, and `cv` are its control
    variates, from `estimator.init(key, dist)`; those that learn nothing need none.

    `f(x, *args)` maps states `[..., *event]` to values `[...]`, each state on its own. If it has
    an argument named `key`, it is given one. Its `args`, and any array that it closes over, are
    differentiated too: if they depend on $\eta$, that direct dependence is added. `context`, of
    shape `[*batch, c]`, is shown to control variates that look at more than the samples (`Relax`).
    `relaxation` takes the place of `f` between the states (`Rebar`, `Relax`), where `f` jumps.

    With `has_aux`, `f` returns a pair, its values and anything else, and the result is `(value,
    aux)` with what `f` returned at the samples, which is not differentiated. With `batched=False`,
    `f` takes one state and returns one number: see `per_example`, also for `in_axes`.

    Reverse-mode differentiation gives

    - with respect to the distribution: the estimator's unbiased $g \approx \nabla_\eta E[f]$;
    - with respect to `cv`, the control variates: what `cv_optimizer(estimator)` takes. That is a
      convention: $E[f]$ does not depend on `cv`. Where they are learned by descent, it is the
      gradient of the mean over all numbers in $g'$ of their squares, $g'$ being the gradient
      actually passed on. It carries the square of the incoming cotangent, so that descending it
      lowers the variance whatever sign and scale the expectation has in the loss. Where they are
      sums or averages (`Bronco`, `Lariat`), it is the change of these, whatever the loss;
    - with respect to `args` and what `f` closes over: the ordinary gradient of the mean of $f$.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> estimator = sg.Rodeo(num_samples=2)
    >>> cv = estimator.init(jax.random.key(0))
    >>> def loss(logits, scale, cv, key):
    ...     f = lambda x: scale * jnp.sum((x - 0.45) ** 2, axis=-1)
    ...     return -sg.expectation(f, sg.Bernoulli(logits), estimator, cv, key=key)
    >>> grads = jax.grad(loss, (0, 1, 2))(jnp.zeros(4), 2.0, cv, jax.random.key(1))
    >>> [jnp.shape(leaf) for leaf in grads[:2]], grads[2].alpha.shape
    ([(4,), ()], ())

    Derivatives of these gradients with respect to `args`, closed-over arrays and `cv` are right.
    With respect to the distribution they would miss that the samples change with it, and raise; so
    does forward mode. The gradient along a direction $v$ is an expectation too, $E[f(x) \,
    v^\top \nabla_\eta \log q_\eta(x)]$, and its gradient an unbiased estimate of the Hessian
    times $v$:

    >>> def along(logits, v, key):
    ...     log_q = lambda logits, x: sg.Bernoulli(logits).log_prob(x)
    ...     f = lambda x: x[..., 0] * jax.jvp(lambda l: log_q(l, x), (logits,), (v,))[1]
    ...     return sg.expectation(f, sg.Bernoulli(logits), sg.RLOO(2), key=key)
    >>> jax.grad(along)(jnp.zeros(4), jnp.ones(4), jax.random.key(1)).shape
    (4,)

    An empty batch has the value 0. Inside `jax.shard_map` each device estimates the mean over its
    part of the batch; gradients of what the devices share are summed over them, as those of any
    function are, but `cv`'s are averaged.
    """
    dist, estimator, key = problem.dist, problem.estimator, problem.key
    states = jax.eval_shape(lambda key: estimator.draw(key, dist), key)
    # Arrays that f closes over become leaves of the function, and so are differentiated.
    convert = lambda f: eqx.filter_closure_convert(f, key, states, *problem.args)
    objective = convert(problem.objective)
    stand_in = None if problem.relaxation is None else convert(problem.relaxation)
    constants = dist.constants()
    # The rest is constant, for an operator may be made of the logits.
    rest = replace(problem, cv=None, objective=None, args=(), relaxation=stand_in)
    differentiable = dist.parameters, problem.cv, (objective, problem.args)
    try:
        value = _expectation(reverse_only(differentiable), stop_gradient(rest))
    except jax.errors.UnexpectedTracerError as error:
        if constants:
            raise TypeError(CONSTANT) from error
        raise
    return drawn_with(constants, value, CONSTANT) if constants else value


@eqx.filter_custom_vjp
def _expectation(differentiable, problem):
    _, _, (objective, args) = differentiable
    estimator, dist = problem.estimator, problem.dist
    sample_key, f_key, _ = jax.random.split(problem.key, 3)
    x = estimator.draw(sample_key, dist)
    fx, aux = objective(f_key, x, *args)
    weighs = estimator.weighs_samples and fx.size
    weights = estimator.weights(dist, x) if weighs else None
    value = mean(fx if weights is None else base.weighted(fx, weights))
    return (value, aux) if problem.has_aux else value


@_expectation.def_fwd
def _forward(perturbed, differentiable, problem):
    parameters, cv, objective_and_args = differentiable
    moving, still = eqx.partition(objective_and_args, perturbed[2])
    if problem.on_devices:
        check_shared(moving, (parameters, objective_and_args))
    moving = jax.tree.map(jnp.asarray, moving)  # outside jit a scalar arrives as a Python number

    def f(key, x, moving):
        objective, args = eqx.combine(moving, still)
        return objective(key, x, *args)

    def stand_in(key, x, moving):
        return problem.relaxation(key, x, *eqx.combine(moving, still)[1])

    relaxation = None if problem.relaxation is None else stand_in
    found = base.estimate(
        replace(
            problem,
            objective=f,
            cv=cv,
            args=(moving,),
            relaxation=relaxation,
            differentiable=True,  # by what is moving; a NumPy f raises
        )
    )
    found, grads = drawn_with(parameters, found)
    fx, aux = found if problem.has_aux else (found, None)
    return (mean(fx), aux) if problem.has_aux else mean(fx), (grads, max(fx[0].size, 1))


@_expectation.def_bwd
def _backward(residuals, cotangent, perturbed, differentiable, problem):
    parameters, cv, objective_and_args = differentiable
    grads, size = residuals
    cotangent = cotangent[0] if problem.has_aux else cotangent
    grads = base.scaled(problem, grads, cotangent / size, parameters)
    times = lambda g: (cotangent * g.astype(cotangent.dtype)).astype(g.dtype)
    found = grads.parameters, grads.cv, jax.tree.map(times, grads.args[0])
    if not problem.on_devices:
        return found
    # Gradients of f are summed over devices that share an array, as always; control variates want
    # the mean.
    reduce = jax.lax.psum, jax.lax.pmean, jax.lax.psum
    return tuple(map(over_devices, reduce, found, (parameters, cv, objective_and_args)))


@_takes(pose)
def value_and_grad(problem: Problem) -> tuple[Any, Gradients]:
    r"""What `expectation` and its derivatives compute, explicitly: the mean of $f$ over samples
    and batch, and `Gradients(parameters, cv, args)`; with `has_aux`, `((mean, aux), gradients)`.

    The arguments are those of `expectation`: `f`, `dist`, `estimator`, `cv`, `key`, `args`,
    `context`, `relaxation`, `has_aux`, `batched`, `in_axes`.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> f = lambda x, w: x @ w
    >>> value, grads = sg.value_and_grad(f, sg.Bernoulli(jnp.zeros(3)), sg.RLOO(2),
    ...                                  key=jax.random.key(0), args=(jnp.ones(3),))
    >>> grads.parameters.shape, grads.args[0].shape
    ((3,), (3,))
    """
    found = base.value_and_grad(problem)
    constants = problem.dist.constants()
    return drawn_with(constants, found) if constants else found
