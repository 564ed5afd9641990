"""The front door: an expectation that `jax.grad` differentiates with an estimator."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .arrays import mean
from .derivatives import (
    CONSTANT,
    check_shared,
    drawn_with,
    on_each_device,
    over_devices,
    reverse_only,
    stop_gradient,
)
from .distributions import Distribution
from .estimators import Estimator, Gradients
from .estimators.base import check_call, check_cv, check_gradient, scale_cv
from .objective import Bound, as_jax_arrays, bind, per_example


def expectation(
    f: Callable[..., Float[Array, "..."]],
    dist: Distribution,
    estimator: Estimator,
    cv: Any = None,
    *,
    key: PRNGKeyArray,
    args: tuple = (),
    context: Array | None = None,
    relaxation: Callable[..., Float[Array, "..."]] | None = None,
    has_aux: bool = False,
    batched: bool = True,
    in_axes: Sequence[int | None] | None = None,
) -> Any:
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
    check_call(f, dist, estimator, key, args)
    f = _on_batches(f, batched, in_axes)
    check_gradient(estimator, f)
    if cv is not None:  # the value alone needs none
        check_cv(estimator, cv, dist)
    parameters, args, context, key = on_each_device(
        (dist.parameters, as_jax_arrays(args), context, key), like=(cv, dist)
    )
    dist = dist.with_parameters(parameters)
    struct = jax.eval_shape(lambda key: estimator.sample(key, dist), key)
    stands_in = estimator.relaxes and relaxation is not None
    how = {"relaxed": estimator.goes_by_gradient and not stands_in, "has_aux": has_aux}
    keyed = lambda key, x, *args: bind(f, dist, key, **how)(x, *args)
    # Arrays that f closes over become leaves of `keyed`, and so are differentiated.
    keyed = eqx.filter_closure_convert(keyed, key, struct, *args)
    relaxed = None
    if relaxation is not None and stands_in:
        relaxation = _on_batches(relaxation, batched, in_axes)
        relaxed = lambda key, x, *args: bind(relaxation, dist, key, relaxed=True)(x, *args)
        relaxed = eqx.filter_closure_convert(relaxed, key, struct, *args)
    closed_over = dist.closed_over()
    try:
        value = _expectation(
            reverse_only((dist.parameters, cv, (keyed, args))),
            *stop_gradient((dist, estimator)),  # an operator may be made of the logits
            key,
            (*stop_gradient((context, relaxed)), has_aux),
        )
    except jax.errors.UnexpectedTracerError as error:
        if closed_over:
            raise TypeError(CONSTANT) from error
        raise
    constants = dist.with_parameters(stop_gradient(dist.parameters))
    return drawn_with((constants, closed_over), value, CONSTANT)


@eqx.filter_custom_vjp
def _expectation(differentiable, dist, estimator, key, others):
    parameters, _, (keyed, args) = differentiable
    sample_key, f_key, _ = jax.random.split(key, 3)
    dist = dist.with_parameters(parameters)
    x = estimator.sample(sample_key, dist)
    out = keyed(f_key, x, *args)
    *_, has_aux = others
    value = lambda fx: mean(estimator.weigh(dist, x, fx) if fx.size else fx)
    return (value(out[0]), out[1]) if has_aux else value(out)


@_expectation.def_fwd
def _forward(perturbed, differentiable, dist, estimator, key, others):
    context, relaxed, has_aux = others
    parameters, cv, keyed_and_args = differentiable
    moving, still = eqx.partition(keyed_and_args, perturbed[2])
    check_shared(moving, (parameters, keyed_and_args))
    moving = jax.tree.map(jnp.asarray, moving)  # outside jit a scalar arrives as a Python number

    def f(x, moving, key):
        keyed, args = eqx.combine(moving, still)
        return keyed(key, x, *args)

    def relaxation(x, moving, key):
        _, args = eqx.combine(moving, still)
        return relaxed(key, x, *args)

    return estimator.value_and_grad(
        Bound(f),
        dist.with_parameters(parameters),
        cv,
        key=key,
        args=(moving,),
        context=context,
        relaxation=None if relaxed is None else Bound(relaxation),
        has_aux=has_aux,
    )


@_expectation.def_bwd
def _backward(grads, cotangent, perturbed, differentiable, dist, estimator, key, others):
    def scaled(factor, tree):
        return jax.tree.map(lambda g: (factor * g.astype(factor.dtype)).astype(g.dtype), tree)

    parameters, cv, keyed_and_args = differentiable
    *_, has_aux = others
    cotangent = cotangent[0] if has_aux else cotangent
    sum_, mean_ = partial(over_devices, jax.lax.psum), partial(over_devices, jax.lax.pmean)
    # Of f, the sum over devices that share an array, as always; control variates want the mean.
    return (
        sum_(scaled(cotangent, grads.parameters), parameters),
        mean_(scale_cv(estimator, cotangent, grads.cv), cv),
        sum_(scaled(cotangent, grads.args[0]), keyed_and_args),
    )


def value_and_grad(
    f: Callable[..., Float[Array, "..."]],
    dist: Distribution,
    estimator: Estimator,
    cv: Any = None,
    *,
    key: PRNGKeyArray,
    args: tuple = (),
    context: Array | None = None,
    relaxation: Callable[..., Float[Array, "..."]] | None = None,
    has_aux: bool = False,
    batched: bool = True,
    in_axes: Sequence[int | None] | None = None,
) -> tuple[Any, Gradients]:
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
    check_call(f, dist, estimator, key, args)
    found = estimator.value_and_grad(
        _on_batches(f, batched, in_axes),
        dist,
        cv,
        key=key,
        args=args,
        context=context,
        relaxation=relaxation if relaxation is None else _on_batches(relaxation, batched, in_axes),
        has_aux=has_aux,
    )
    return drawn_with(dist.closed_over(), found)


def _on_batches(f: Callable, batched: bool, in_axes: Sequence[int | None] | None) -> Callable:
    if batched and in_axes is not None:
        raise ValueError(
            "in_axes says how an f on one example is mapped over the batch: it goes with "
            "batched=False."
        )
    return f if batched else per_example(f, in_axes)
