"""A sample that lets gradients through, with a biased estimator."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .arrays import cast, compute_dtype
from .derivatives import drawn_with, stop_gradient
from .distributions import Distribution, as_distribution
from .estimators import Estimator
from .estimators.checks import check_call, check_distribution, kind
from .objective import Evaluated

AGAIN = (
    "What `sample` lets through was differentiated by the parameters of its distribution: this is "
    "a second derivative. The sample was drawn with these parameters, so the derivative of the "
    "first derivative at a fixed sample means nothing. First derivatives are right, in forward and "
    "in reverse mode. If the parameters are constants, put jax.lax.stop_gradient around them."
)


def sample(key: PRNGKeyArray, dist: Any, estimator: Estimator) -> Any:
    r"""One state $x \sim q_\eta$ for each element of the batch, of shape `[*batch, *event]`, that
    lets gradients through to $\eta$. **Biased.**

    The state is exact, except that `GumbelSoftmax()` returns points between the states. Its
    derivative is that of the biased `estimator` (`StraightThrough`, `ReinMax`, `GumbelSoftmax`):
    where a loss has the gradient $v$ with respect to $x$, the parameters of `dist` get $J v$, the
    estimate for $\nabla f = v$. So `f(sample(key, dist, estimator))` and its gradient are what
    `value_and_grad(f, dist, estimator, key=key)` returns. In forward mode, $x$ moves by the
    transpose of $J$. For a `Joint` the sample is what f sees: a dictionary or a tuple of parts.

    This is the form in which straight-through estimators are written in most programs. Nothing has
    to be a function f: the sample can be used anywhere in the rest of the computation, several
    times, and with other samples. Unbiased estimators have no such form, because they need f at
    several samples; with them, write `expectation`. The estimator has one sample
    (`num_samples=1`). For several, map over keys: `jax.vmap(lambda key: sg.sample(key, dist,
    estimator))(jax.random.split(key, 4))` has the samples on its first axis.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> def loss(logits, key):
    ...     x = sg.sample(key, sg.Bernoulli(logits), sg.ReinMax())
    ...     return jnp.sum((x - 0.45) ** 2)
    >>> sg.sample(jax.random.key(0), sg.Bernoulli(jnp.zeros(4)), sg.ReinMax())
    Array([0., 0., 1., 1.], dtype=float32)
    >>> jax.grad(loss)(jnp.zeros(4), jax.random.key(0))
    Array([-0.225, -0.225,  0.275,  0.275], dtype=float32)
    """
    dist = as_distribution(dist)
    _check(key, dist, estimator)
    # The keys of `expectation`, so that the sample is the same.
    sample_key, _, own_key = jax.random.split(key, 3)
    constant = stop_gradient(dist)
    x = estimator.draw(sample_key, constant)[0]
    return dist.view(_let_through(dist.parameters, estimator, constant, x, own_key))


@eqx.filter_custom_jvp
def _let_through(
    parameters: Any, estimator: Estimator, dist: Distribution, x: Array, key: PRNGKeyArray
) -> Array:
    return x


@_let_through.def_jvp
def _(primals, tangents):
    (parameters, estimator, dist, x, key), (moved, *_) = primals, tangents
    out = _let_through(parameters, estimator, dist, x, key)
    fill = lambda t, p: jnp.zeros_like(p) if t is None else t
    moved = jax.tree.map(fill, moved, parameters, is_leaf=lambda leaf: leaf is None)
    pull = partial(_pull, estimator, drawn_with(parameters, dist, AGAIN), x, key)
    (step,) = jax.linear_transpose(pull, x)(moved)
    return out, step


def _pull(
    estimator: Estimator,
    dist: Distribution,
    x: Float[Array, "..."],
    key: PRNGKeyArray,
    v: Float[Array, "..."],
) -> Any:
    """The estimate for ∇f = v. It is linear in v."""
    dtype = compute_dtype(dist.dtype)
    wide = lambda array: array[None].astype(dtype)
    fx = jnp.zeros((1, *dist.batch_shape), dtype)
    at = Evaluated(wide(x), fx, wide(v), key=key)
    return cast(estimator.gradient(None, cast(dist, dtype), at), dist.parameters)


def _check(key: Any, dist: Any, estimator: Any) -> None:
    if not isinstance(estimator, Estimator):
        raise TypeError(
            f"sample needs an estimator such as ReinMax(), but was given {kind(estimator)}: write "
            "sample(key, dist, ReinMax())."
        )
    check_call(sample, dist, key, ())
    if not (estimator.biased and estimator.needs_gradient):
        name = type(estimator).__name__
        raise ValueError(
            "sample lets gradients through with StraightThrough, ReinMax or GumbelSoftmax only, "
            f"but was given {name}, which needs the values of f. Write what follows the sample as "
            f"a function f of states [..., *event], and call expectation(f, dist, {name}("
            f"{estimator.num_samples}), key=key), which has the same place in your loss. If {name} "
            "learns control variates, pass them after the estimator."
        )
    if estimator.num_samples != 1:
        raise ValueError(
            "sample draws one state for each element of the batch, but the estimator has "
            f"num_samples={estimator.num_samples}. Use num_samples=1, and for several samples "
            "jax.vmap(lambda key: sample(key, dist, estimator))(jax.random.split(key, n))."
        )
    check_distribution(estimator, dist)
