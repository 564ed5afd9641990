"""RELAX: REBAR with a free network in its control variate."""

import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..arrays import as_index, check_whole
from ..distributions import as_distribution
from .base import Estimator
from .optimizers import slow_adam
from .relaxations import (
    adapt_by_element,
    at_relaxed_points,
    initial_log_temperature,
    relaxed_estimate,
)


class Relax(Estimator):
    r"""`Rebar` with $c(z) = \text{scale} \cdot f(\sigma(z / \text{temperature})) + r(y, z)$, where
    $r$ is a network of one hidden layer of LeakyReLU units.

    The inputs of the network are $z$ and, if you pass one, a `context` $y$ such as the data point.
    `init` takes the size of $z$ from the distribution, and `context_size` is the length of the
    context's last axis. It needs bits or one-hot categories. `num_samples` is $K$.

    Reference: Grathwohl, Choi, Wu, Roeder, Duvenaud, "Backpropagation through the Void: Optimizing
    control variates for black-box gradient estimation", ICLR 2018.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> f = lambda x: -jnp.sum((x - 0.45) ** 2, axis=-1)
    >>> estimator, dist = Relax(context_size=3), sg.Bernoulli(jnp.zeros((2, 5)))
    >>> cv = estimator.init(jax.random.key(0), dist)
    >>> value, grads = estimator.value_and_grad(
    ...     f, dist, cv, key=jax.random.key(1), context=jnp.ones((2, 3)))
    >>> grads.parameters.shape, grads.cv.network["w_in"].shape
    ((2, 5), (8, 137))
    """

    class CV(eqx.Module):
        """The learned parameters of the control variate."""

        log_temperature: Float[Array, ""]
        scale: Float[Array, ""]
        network: dict[str, Float[Array, "..."]]

    num_samples: int = eqx.field(static=True, converter=as_index, default=1)
    context_size: int = eqx.field(static=True, converter=as_index, default=0)
    """The length of the context's last axis (0: no context)."""
    hidden: int = eqx.field(static=True, converter=as_index, default=137)
    """The number of hidden units of the network r."""
    needs: ClassVar = "relaxable"
    needs_gradient: ClassVar = True
    relaxes: ClassVar = True

    def __check_init__(self):
        check_whole("Relax", "context_size", self.context_size, 0)
        check_whole("Relax", "number of hidden units", self.hidden, 1)

    def num_evaluations(self, dist):
        return 3 * self.num_samples

    def init(self, key, dist=None):
        """The network starts with Glorot uniform weights and with biases of zero."""
        if dist is None:
            raise ValueError(
                "Relax has a network of the distribution's size, but no distribution was given: "
                "pass the distribution too, init(key, dist), or use Rebar, which has no network."
            )
        dist = as_distribution(dist)
        inputs = self.context_size + math.prod(dist.event_shape)
        glorot = jax.nn.initializers.glorot_uniform()
        in_key, out_key = jax.random.split(key)
        network = {
            "w_in": glorot(in_key, (inputs, self.hidden)),
            "b_in": jnp.zeros(self.hidden),
            "w_out": glorot(out_key, (self.hidden, 1))[:, 0],
            "b_out": jnp.zeros(()),
        }
        return self.CV(initial_log_temperature(), jnp.ones(()), network)

    def cv_optimizer(self, learning_rate):
        return slow_adam(learning_rate)

    def gradient(self, cv, dist, at):
        rebar = at_relaxed_points("Relax", cv, dist, at)
        check_context(self, dist, at.context)

        def control(z):
            flat = z.reshape(*z.shape[: z.ndim - dist.event_ndim], -1)
            return rebar(z) + network(cv.network, at.context, flat)

        return relaxed_estimate(control, dist, at, at.fx)

    def adapt(self, cv, dist, at):
        return adapt_by_element(self, cv, dist, at)


def network(
    weights: dict[str, Float[Array, "..."]],
    context: Float[Array, "... c"] | None,
    z: Float[Array, "... n"],
) -> Float[Array, "..."]:
    """r(context, z), of shape `[...]`."""
    w_context, w_z = jnp.split(weights["w_in"], [len(weights["w_in"]) - z.shape[-1]])
    hidden = z @ w_z + weights["b_in"]
    if context is not None:
        # The context is the same for all samples, for z and for z̃, so one product is enough.
        hidden = hidden + context @ w_context
    return jax.nn.leaky_relu(hidden, 0.3) @ weights["w_out"] + weights["b_out"]


def check_context(estimator: Relax, dist: Any, context: Array | None) -> None:
    """Raise unless the context has the shape that the network was built for."""
    expected = (*dist.batch_shape, estimator.context_size) if estimator.context_size else None
    given = None if context is None else context.shape
    if given != expected:
        raise ValueError(
            f"Relax(context_size={estimator.context_size}) takes a context of shape {expected}, "
            f"but was given {given}. Pass context=... of shape [*batch, context_size]."
        )
