"""The main function: an expectation that `jax.grad` differentiates with an estimator."""

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
    raw_keys,
    reverse_only,
    stop_gradient,
    typed_keys,
)
from .estimators import Gradients, base
from .estimators.base import Problem, pose

P = ParamSpec("P")
T = TypeVar("T")


def _takes(arguments: Callable[P, Problem]) -> Callable[[Callable[[Problem], T]], Callable[P, T]]:
    """A decorator for functions of a `Problem`. The decorated function takes the arguments of
    `arguments`, which are so listed only once."""

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

    $q_\eta$ is `dist`. The `estimator` draws its samples with `key`. `cv` are its control variates,
    from `estimator.init(key, dist)`; estimators that learn nothing need none.

    `f(x, *args)` maps states `[..., *event]` to values `[...]`, each state on its own. If `f` has
    an argument named `key`, it gets a random key. Its `args`, and any array that it closes over,
    are differentiated too: if they depend on $\eta$, this direct dependence is added. `context`, of
    shape `[*batch, c]`, is an input of control variates that use more than the samples (`Relax`).
    `relaxation` replaces `f` between the states (`Rebar`, `Relax`) if `f` is not continuous there.

    With `has_aux`, `f` returns a pair, its values and anything else. The result is then `(value,
    aux)`, where `aux` is the second of the pair at the samples and is not differentiated. With
    `batched=False`, `f` takes one state and returns one number: see `per_example`, also for
    `in_axes`.

    With `reduce=False` the result has one value for each element of the batch, of shape `[*batch]`:
    the mean over the samples alone. It can be weighted, masked or used inside the f of another
    `expectation`.

    Reverse-mode differentiation gives

    - with respect to the distribution: the estimator's unbiased $g \approx \nabla_\eta E[f]$, for
      each element of the batch times the cotangent of its value;
    - with respect to `cv`, the control variates: the input of `cv_optimizer(estimator)`. This is a
      convention, because $E[f]$ does not depend on `cv`. If `cv` is learned by descent, it is the
      gradient of the mean of the squares of all numbers in $g'$, where $g'$ is $g$ times the
      incoming cotangent, and 0 if $g$ is below 1e-15 or above 1e15. So descent lowers the variance,
      whatever sign and scale the expectation has in the loss. If `cv` consists of sums or averages
      (`Bronco`, `Lariat`), it is minus their change, whatever the loss. An element of the batch
      whose cotangent is 0 does not count in it;
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
    Derivatives with respect to the distribution would ignore that the samples change with it, so
    they raise an error. Forward mode does too. The gradient along a direction $v$ is an expectation
    too, $E[f(x) \, v^\top \nabla_\eta \log q_\eta(x)]$, and the gradient of this expectation is an
    unbiased estimate of the Hessian times $v$:

    >>> def along(logits, v, key):
    ...     log_q = lambda logits, x: sg.Bernoulli(logits).log_prob(x)
    ...     f = lambda x: x[..., 0] * jax.jvp(lambda l: log_q(l, x), (logits,), (v,))[1]
    ...     return sg.expectation(f, sg.Bernoulli(logits), sg.RLOO(2), key=key)
    >>> jax.grad(along)(jnp.zeros(4), jnp.ones(4), jax.random.key(1)).shape
    (4,)

    Weights, masks and importance ratios for each element of the batch multiply its value. An
    element whose weight is 0 adds 0 to all gradients with respect to the distribution, even if its
    f is not finite:

    >>> weights = jnp.array([1.0, 0.5, 0.0])
    >>> def weighted(logits, key):
    ...     f = lambda x: jnp.sum(x, axis=-1)
    ...     values = sg.expectation(f, sg.Bernoulli(logits), sg.RLOO(2), key=key, reduce=False)
    ...     return jnp.sum(weights * values)
    >>> grad = jax.grad(weighted)(jnp.zeros((3, 4)), jax.random.key(1))
    >>> grad.shape, bool(jnp.any(grad[2] != 0))
    ((3, 4), False)

    An empty batch has the value 0. Inside `jax.shard_map` each device estimates the mean over its
    part of the batch; gradients with respect to shared arrays are summed over the devices, as for
    any function, but those with respect to `cv` are averaged.
    """
    dist, estimator, key = problem.dist, problem.estimator, problem.key
    states = jax.eval_shape(lambda key: estimator.draw(key, dist), key)
    # Arrays that f closes over become leaves of the function, so that they are differentiated.
    convert = lambda f: eqx.filter_closure_convert(f, key, states, *problem.args)
    objective = convert(problem.objective)
    stand_in = None if problem.relaxation is None else convert(problem.relaxation)
    constants = dist.constants()
    # The rest is constant: an operator, for example, may be made of the logits.
    rest = replace(problem, cv=None, objective=None, args=(), relaxation=stand_in)
    differentiable = dist.parameters, problem.cv, (objective, problem.args)
    try:
        value = _expectation(*raw_keys((reverse_only(differentiable), stop_gradient(rest))))
    except jax.errors.UnexpectedTracerError as error:
        if constants:
            raise TypeError(CONSTANT) from error
        raise
    return drawn_with(constants, value, CONSTANT) if constants else value


@eqx.filter_custom_vjp
def _expectation(differentiable, problem):
    (_, _, (objective, args)), problem = typed_keys((differentiable, problem))
    x, weights = base.draw(problem)
    _, f_key, _ = jax.random.split(problem.key, 3)
    fx, aux = objective(f_key, x, *args)
    value = base.average(problem, fx, weights)
    return (value, aux) if problem.has_aux else value


@_expectation.def_fwd
def _forward(perturbed, differentiable, problem):
    parameters, _, objective_and_args = differentiable
    problem, moving = _posed(perturbed, differentiable, problem)
    if problem.on_devices:
        check_shared(moving, (parameters, objective_and_args))
    seen, aux = base.observe(problem)
    value = base.average(problem, seen.values.fx, seen.weights)
    value, aux, seen = drawn_with(parameters, (value, aux, seen))
    return (value, aux) if problem.has_aux else value, raw_keys(seen)


@_expectation.def_bwd
def _backward(seen, cotangent, perturbed, differentiable, problem):
    parameters, cv, objective_and_args = differentiable
    problem, _ = _posed(perturbed, differentiable, problem)
    cotangent = cotangent[0] if problem.has_aux else cotangent
    if problem.reduce:
        cotangent = cotangent / base.batch_size(problem)
    # The samples depend on the parameters, so further derivatives by the parameters raise.
    grads = drawn_with(parameters, base.estimate(problem, typed_keys(seen), cotangent))
    grads = base.scaled(problem, grads, cotangent, parameters)
    found = grads.parameters, grads.cv, grads.args[0]
    if not problem.on_devices:
        return found
    # As always in JAX, gradients are summed over devices; those of control variates are averaged.
    reduce = jax.lax.psum, jax.lax.pmean, jax.lax.psum
    return tuple(map(over_devices, reduce, found, (parameters, cv, objective_and_args)))


def _posed(perturbed, differentiable, problem) -> tuple[Problem, Any]:
    """Returns the complete problem, and the only argument of its objective: those arrays in the
    objective and its arguments that are differentiated."""
    problem = typed_keys(problem)
    _, cv, objective_and_args = differentiable
    moving, still = eqx.partition(objective_and_args, perturbed[2])
    moving = jax.tree.map(jnp.asarray, moving)  # outside jit a scalar arrives as a Python number

    def f(key, x, moving):
        objective, args = typed_keys(eqx.combine(moving, still))
        return objective(key, x, *args)

    def stand_in(key, x, moving):
        return relaxation(key, x, *typed_keys(eqx.combine(moving, still))[1])

    relaxation = problem.relaxation
    posed = replace(
        problem,
        objective=f,
        cv=cv,
        args=(moving,),
        relaxation=None if relaxation is None else stand_in,
        differentiable=True,  # by what is moving; a NumPy f raises
    )
    return posed, moving


@_takes(pose)
def value_and_grad(problem: Problem) -> tuple[Any, Gradients]:
    r"""Returns what `expectation` and its derivatives compute: the mean of $f$ over samples and
    batch, and `Gradients(parameters, cv, args)`. With `has_aux`, `((mean, aux), gradients)`.

    The arguments are those of `expectation`: `f`, `dist`, `estimator`, `cv`, `key`, `args`,
    `context`, `relaxation`, `has_aux`, `batched`, `in_axes`, `reduce`.

    With `reduce=False` the value has one number for each element of the batch, and the gradients
    are those of the sum of these numbers. So `parameters` holds the gradient of each element's own
    value (unless the batch shares them), and `args` the sum over the batch.

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
