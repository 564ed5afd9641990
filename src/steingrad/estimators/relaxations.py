"""Control variates at points between the states, as in REBAR and RELAX."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..arrays import expand
from ..objective import Evaluated
from .base import Estimator, mean_of_scores
from .checks import check_key

Control = Callable[[Float[Array, "2 samples ..."]], Float[Array, "2 samples ..."]]
"""The control variate c, a function of z and z̃ (stacked) that returns its two values."""


def initial_log_temperature() -> Float[Array, ""]:
    """The logarithm of 0.1."""
    # A strong dtype: a weakly typed array would change its dtype in an optimiser's first step.
    return jnp.full((), math.log(0.1), float)


def relaxed_estimate(
    control: Control, dist: Any, at: Evaluated, signal: Float[Array, "samples ..."]
) -> Any:
    r"""$\frac1K \sum_k (r_k - c(\tilde z_k)) \, s(x_k) + \nabla_\eta c(z_k) - \nabla_\eta c(\tilde
    z_k)$, where the `signal` $r_k$ is $f(x_k)$, with or without a baseline subtracted."""
    check_key("REBAR or RELAX", at.key)
    count = len(at.x)
    noise, noise_tilde = dist.noise(at.key, (2, count))
    # Since x is a sample, z drawn given x has the distribution of z. Its noise is kept fixed.
    noise = jax.lax.stop_gradient(dist.latent_given(at.x, noise) - dist.location())

    def difference(parameters):
        q = dist.with_parameters(parameters)
        z, z_tilde = q.location() + noise, q.latent_given(at.x, noise_tilde)
        c, c_tilde = control(jnp.stack([z, z_tilde]))
        return jnp.sum(c - c_tilde) / count, c_tilde

    reparameterised, c_tilde = jax.grad(difference, has_aux=True)(dist.parameters)
    score = mean_of_scores(dist, signal - c_tilde, at.x)
    return jax.tree.map(jnp.add, score, reparameterised)


def at_relaxed_points(name: str, cv: Any, dist: Any, at: Evaluated) -> Control:
    """scale · f(σ(z / temperature)), at z and z̃ in one call. Scale and temperature are numbers, or
    arrays with one number for each element of the batch."""
    f = at.f
    if f is None:
        raise ValueError(
            f"{name} evaluates f at relaxed points between the states, but was given values at "
            "the samples only: use `value_and_grad` or `expectation`."
        )
    temperature = expand(jnp.exp(cv.log_temperature), at.x.ndim - 1)
    return lambda z: cv.scale * jax.vmap(f)(dist.relax(z / temperature, 1.0))


def adapt_by_element(estimator: Estimator, cv: Any, dist: Any, at: Evaluated) -> tuple[Any, Any]:
    """`Estimator.adapt` for control variates `at_relaxed_points`. Elements of the batch are left
    out if f or one of its derivatives is not finite at these points.

    Each element gets its own copy of scale and temperature, and the finite gradients of the copies
    are added. (In the gradient of one shared number, NaN times a weight of 0 would still be NaN.)
    """
    shared = lambda cv: (cv.log_temperature, cv.scale)
    copies = tuple(jnp.broadcast_to(number, at.fx.shape[1:]) for number in shared(cv))
    grad, cv_grad = Estimator.adapt(estimator, eqx.tree_at(shared, cv, copies), dist, at)
    total = lambda g: jnp.sum(jnp.where(jnp.isfinite(g), g, 0))
    return grad, eqx.tree_at(shared, cv_grad, tuple(map(total, shared(cv_grad))))
