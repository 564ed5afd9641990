"""Exact expectations and gradients by enumeration, for small spaces."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .distributions import as_distribution
from .fast import mean
from .objective import bind, needs_key


def exact_expectation(
    f: Callable[..., Float[Array, "..."]], dist: Any, *, args: tuple = (), reduce: bool = True
) -> Float[Array, "..."]:
    r"""$\sum_x q(x) f(x)$, averaged over the batch: what `expectation` estimates.

    `f`, `dist` (the distribution $q$), `args` and `reduce` are those of `expectation`. The sum is
    over all $m^d$ states, at most $2^{20}$, and is differentiable. With `reduce=False` it may stand
    inside the f of another expectation, exact or estimated.

    >>> import jax.numpy as jnp, steingrad as sg
    >>> float(exact_expectation(lambda x: jnp.prod(x, -1), sg.Bernoulli(jnp.zeros(3))))
    0.125
    """
    dist = as_distribution(dist)
    if needs_key(f):
        raise ValueError(
            "f takes a key, so it is random, and no sum over states is exact. Bind the key, "
            "functools.partial(f, key=key), for one draw of its noise, or take the mean of many "
            "estimates, as `compare` does."
        )
    fx = jnp.moveaxis(bind(f, dist)(None, dist.enumerate_batch(), *args)[0], 0, -1)
    probs = dist.probabilities()
    # States with probability zero contribute nothing, even if f is infinite there.
    fx = jnp.where(probs > 0, fx.astype(probs.dtype), 0)
    values = jnp.sum(probs * fx, axis=-1)
    return mean(values) if reduce else values


def exact_gradient(f: Callable[..., Float[Array, "..."]], dist: Any, *, args: tuple = ()) -> Any:
    r"""$\nabla_\eta \sum_x q_\eta(x) f(x)$, shaped like the distribution's parameters: what the
    gradient of `expectation` estimates. `f`, `dist` and `args` are those of `expectation`.

    >>> import jax.numpy as jnp, steingrad as sg
    >>> exact_gradient(lambda x: jnp.sum(x, -1), sg.Bernoulli(jnp.zeros(3)))
    Array([0.25, 0.25, 0.25], dtype=float32)
    """
    dist = as_distribution(dist)
    of = lambda parameters: exact_expectation(f, dist.with_parameters(parameters), args=args)
    return dist.by_given(jax.grad(of)(dist.parameters))
