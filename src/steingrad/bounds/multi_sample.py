"""The main function: a multi-sample bound that `jax.grad` differentiates with an estimator."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..arrays import as_index, cast, check_whole
from ..derivatives import CONSTANT, DRAWN, drawn_with, stop_gradient
from ..distributions import Distribution, as_distribution
from ..distributions.copies import side_by_side
from ..estimators import Estimator
from ..estimators.checks import check_call, check_distribution, kind
from ..expectation import expectation
from ..fast import mean
from ..objective import as_jax_arrays, bind
from .base import BoundEstimator, log_mean_exp


def multi_sample_bound(
    log_w: Callable[..., Float[Array, "..."]],
    dist: Any,
    estimator: BoundEstimator | Estimator,
    cv: Any = None,
    *,
    key: PRNGKeyArray,
    num_samples: int | None = None,
    args: tuple = (),
) -> Float[Array, ""]:
    r"""$E \left[ \log \frac1K \sum_k w(x_k) \right]$ with $x_1 \dots x_K \sim q_\eta$, averaged
    over the batch: estimated, and differentiable.

    With $w(x) = p(y, x) / q_\eta(x)$ this is the importance-weighted bound on $\log p(y)$, which is
    tighter for a larger $K$. `log_w(x, *args)` maps states `[..., *event]` to log-weights `[...]`,
    each state on its own. $q_\eta$ is `dist`. If `log_w` depends on $\eta$ itself (by $-\log
    q_\eta$), on `args` or on arrays that it closes over, this direct dependence is differentiated
    too. If it has an argument named `key`, it gets a random key.

    There are two kinds of estimators:

    - `VIMCO(K)`, `OVIS(K)` and `LocalDisARM(K)` are made for such bounds. Their `num_samples` is
      $K$. They learn nothing.
    - All estimators of `expectation` see the $K$ samples as one state with $K d$ coordinates, and
      the bound as their f. Give $K$ as `num_samples`. The estimator's own `num_samples` is then the
      number of groups of $K$ samples: `RLOO(2)` compares two bounds. `StraightThrough()` and
      `ReinMax()` are biased, as always. `cv` are the estimator's control variates, from
      `estimator.init(key, copies(dist, K))`.

    The derivatives are those of `expectation`. With `VIMCO`, `OVIS` and `LocalDisARM` forward mode
    works too.

    Reference: Burda, Grosse, Salakhutdinov, "Importance Weighted Autoencoders", ICLR 2016.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> def bound(logits, w, estimator, key, **more):
    ...     q = sg.Bernoulli(logits)
    ...     log_w = lambda x: x @ w - q.log_prob(x)
    ...     return sg.multi_sample_bound(log_w, q, estimator, key=key, **more)
    >>> key, w = jax.random.key(0), jnp.ones(3)
    >>> grads = jax.grad(bound, (0, 1))(jnp.zeros(3), w, sg.VIMCO(5), key)
    >>> jax.tree.map(jnp.shape, grads)
    ((3,), (3,))
    >>> jax.grad(bound)(jnp.zeros(3), w, sg.RLOO(2), key, num_samples=5).shape
    (3,)
    """
    dist = as_distribution(dist)
    num_samples = as_index(num_samples)
    if isinstance(estimator, BoundEstimator):
        return _by_bound_estimator(log_w, dist, estimator, cv, key, num_samples, args)
    if not isinstance(estimator, Estimator):
        raise TypeError(
            "multi_sample_bound needs an estimator such as VIMCO(5), or RLOO(2) with "
            f"num_samples=5, but was given {kind(estimator)}."
        )
    if num_samples is None:
        name = type(estimator).__name__
        raise ValueError(
            f"multi_sample_bound needs to know the number K of samples in the bound, but {name} "
            f"has only its number of groups, num_samples={estimator.num_samples}. Pass "
            "num_samples=K to multi_sample_bound."
        )
    check_whole("multi_sample_bound", "num_samples", num_samples, 1)
    check_call(log_w, dist, key, args)
    product, states = side_by_side(dist, num_samples)
    objective = bind(log_w, dist)

    def f(x, *args, key):
        return log_mean_exp(objective(key, states(x), *args)[0])

    return expectation(f, product, estimator, cv, key=key, args=args)


def _by_bound_estimator(
    log_w: Callable,
    dist: Distribution,
    estimator: BoundEstimator,
    cv: Any,
    key: PRNGKeyArray,
    num_samples: int | None,
    args: tuple,
) -> Float[Array, ""]:
    _check(log_w, dist, estimator, cv, key, num_samples, args)
    sample_key, f_key = jax.random.split(key)
    constant = stop_gradient(dist)
    x = estimator.draw(sample_key, constant)
    weights = bind(log_w, dist)(f_key, x, *as_jax_arrays(tuple(args)))[0]
    value = mean(estimator.bound(weights))
    if 0 in dist.batch_shape:
        return value
    wide = cast(constant, weights.dtype)
    grad = estimator.gradient(wide, x.astype(weights.dtype), weights)
    grad = jax.tree.map(lambda g: g / math.prod(dist.batch_shape), grad)
    value = _with_gradient(value, dist.parameters, grad)
    constants = dist.constants()
    return drawn_with(constants, value, CONSTANT) if constants else value


@eqx.filter_custom_jvp
def _with_gradient(value: Array, parameters: Any, grad: Any) -> Array:
    """`value`, with this further gradient with respect to the parameters."""
    return value


@_with_gradient.def_jvp
def _(primals, tangents):
    (value, parameters, grad), (moved_value, moved, _) = primals, tangents
    out = _with_gradient(value, parameters, grad)
    step = jnp.zeros_like(value) if moved_value is None else moved_value
    grad = drawn_with(parameters, grad, DRAWN)
    is_none = lambda leaf: leaf is None
    pairs = zip(jax.tree.leaves(moved, is_leaf=is_none), jax.tree.leaves(grad), strict=True)
    for tangent, g in pairs:
        if tangent is not None:
            step += jnp.sum(g * tangent.astype(g.dtype)).astype(step.dtype)
    return out, step


def _check(log_w, dist, estimator, cv, key, num_samples, args):
    """Raise unless the arguments are right for an estimator of bounds."""
    check_call(log_w, dist, key, args)
    check_distribution(estimator, dist)
    name = type(estimator).__name__
    if cv is not None:
        raise ValueError(f"{name} learns nothing: its cv is None, but was given {kind(cv)}.")
    if num_samples not in (None, estimator.num_samples):
        raise ValueError(
            f"{name} has the number of samples of the bound, {estimator.num_samples}, but "
            f"multi_sample_bound was given num_samples={num_samples}. Leave it out."
        )
