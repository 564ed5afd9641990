"""RELAX: REBAR with a free network in its control variate, or with RODEO's surrogate as one."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..distributions.base import Distribution
from ..surrogates import MLPSurrogate, PooledSurrogate
from ..surrogates.base import event_axes, mean_of_others, mean_of_samples, others
from .base import check_estimate, check_num_samples, check_params, check_samples
from .rebar import Rebar, at_relaxed_points, relaxed, relaxed_estimate


class Relax(Rebar):
    r"""`Rebar` with $c(z) = \text{scale} \cdot f(\sigma(z / \text{temperature})) + r(y, z)$, where
    $r$ is a network of one hidden layer of LeakyReLU units.

    The network sees $z$ and, if you pass one, a `context` $y$ such as the data point. It must know
    their sizes: `num_inputs` is $d$ for `Bernoulli` and $d \cdot m$ for `Categorical`, and
    `context_size` the length of the context's last axis.

    With a `surrogate` this is the modified RELAX of the RODEO paper: $c_k(z) = \text{scale} \cdot
    h_k(\sigma(z / \text{temperature}))$ with RODEO's $h_k(y) = \frac1{K-1} \sum_{j \ne k} H(f_j,
    \nabla f_j^\top (y - x_j))$, and the leave-one-out baseline subtracted from $f(x_k)$. No other
    network, and $f$ is evaluated at the samples only, $K \ge 2$ times, with its gradient. The scale
    starts at 0, so that it starts as plain RLOO, like RODEO itself.

    Reference: Grathwohl, Choi, Wu, Roeder, Duvenaud, "Backpropagation through the Void: Optimizing
    control variates for black-box gradient estimation", ICLR 2018; Shi et al. 2022, section 6.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> f = lambda x: -jnp.sum((x - 0.45) ** 2, axis=-1)
    >>> estimator = Relax(num_inputs=5, context_size=3)
    >>> params = estimator.init(jax.random.key(0))
    >>> value, grads = estimator.value_and_grad(
    ...     f, sg.Bernoulli(jnp.zeros((2, 5))), params, key=jax.random.key(1),
    ...     context=jnp.ones((2, 3)))
    >>> grads.parameters.shape, grads.cv["network"]["w_in"].shape
    ((2, 5), (8, 137))
    >>> modified = Relax(num_samples=2, surrogate=sg.MLPSurrogate())
    >>> modified.num_evaluations(sg.Bernoulli(jnp.zeros(5)))
    2
    """

    num_inputs: int | None = eqx.field(static=True, default=None)
    context_size: int = eqx.field(static=True, default=0)
    hidden: int = eqx.field(static=True, default=137)
    surrogate: MLPSurrogate | None = None

    def __check_init__(self):
        if self.surrogate is not None:
            check_num_samples(
                "Relax with a surrogate", self.num_samples, 2, "h_k being made of the other samples"
            )
            if isinstance(self.surrogate, PooledSurrogate):
                raise ValueError(
                    "Relax evaluates the surrogate's network for each pair of samples: pass an "
                    "MLPSurrogate, not a PooledSurrogate."
                )
            if self.num_inputs is not None or self.context_size:
                raise ValueError(
                    "Relax has either a network of its own (num_inputs, context_size) or RODEO's "
                    "surrogate, but was given both."
                )
        elif self.num_inputs is None or self.num_inputs < 1:
            raise ValueError(
                "Relax needs the size of its network's input: pass num_inputs=d for Bernoulli or "
                "num_inputs=d*m for Categorical (and context_size=c for a context of shape "
                f"[*batch, c]), but was given num_inputs={self.num_inputs}. Rebar has no network."
            )
        if self.context_size < 0 or self.hidden < 1:
            raise ValueError(
                "Relax needs context_size of 0 or more and 1 or more hidden units, but was given "
                f"{self.context_size} and {self.hidden}."
            )

    @property
    def relaxes(self):
        return self.surrogate is None

    def num_evaluations(self, dist):
        return super().num_evaluations(dist) if self.surrogate is None else self.num_samples

    def init(self, key: PRNGKeyArray) -> dict[str, Any]:
        """The network's weights are Glorot uniform, its biases zero."""
        params = super().init(key)
        if self.surrogate is not None:
            return params | {"scale": jnp.zeros(()), "surrogate": self.surrogate.init(key)}
        glorot = jax.nn.initializers.glorot_uniform()
        in_key, out_key = jax.random.split(key)
        assert self.num_inputs is not None
        network = {
            "w_in": glorot(in_key, (self.context_size + self.num_inputs, self.hidden)),
            "b_in": jnp.zeros(self.hidden),
            "w_out": glorot(out_key, (self.hidden, 1))[:, 0],
            "b_out": jnp.zeros(()),
        }
        return params | {"network": network}

    def estimate(self, params, dist, x, fx, dfx=None, *, key=None, f=None, context=None):
        if self.surrogate is not None:
            return self._modified(self.surrogate, params, dist, x, fx, dfx, key)
        check_samples(self, dist, x, fx)
        rebar = at_relaxed_points(self, params, dist, f)
        check_params(self, params, "log_temperature", "scale", "network")
        check_inputs(self, dist, context)

        def control(z):
            flat = z.reshape(*z.shape[: z.ndim - dist.event_ndim], self.num_inputs)
            return rebar(z) + network(params["network"], context, flat)

        return relaxed_estimate(control, dist, x, fx, key)

    def _modified(self, surrogate, params, dist, x, fx, dfx, key):
        check_estimate(self, dist, x, fx, dfx)
        check_params(self, params, "log_temperature", "scale", "surrogate")
        x_j, f_j, df_j = others(x), others(fx), others(dfx)

        @jax.vmap
        def control(z):
            y = relaxed(params, dist, z).astype(dfx.dtype)
            # H(f_j, t_j(y_k)) for each pair of samples, as in MLPSurrogate.
            step = y - x_j.astype(dfx.dtype)
            t = jnp.sum(df_j * step, axis=event_axes(x, fx))
            h, _ = surrogate.network(params["surrogate"], f_j, t)
            return params["scale"].astype(fx.dtype) * mean_of_samples(h)

        return relaxed_estimate(control, dist, x, fx - mean_of_others(fx), key)


def network(
    params: dict[str, Float[Array, "..."]],
    context: Float[Array, "... c"] | None,
    z: Float[Array, "... n"],
) -> Float[Array, "..."]:
    """r(context, z), of shape `[...]`."""
    params = jax.tree.map(lambda p: p.astype(z.dtype), params)
    w_context, w_z = jnp.split(params["w_in"], [len(params["w_in"]) - z.shape[-1]])
    hidden = z @ w_z + params["b_in"]
    if context is not None:
        # The same for every sample, for z and for z̃: one product serves them all.
        hidden = hidden + context.astype(z.dtype) @ w_context
    return jax.nn.leaky_relu(hidden, 0.3) @ params["w_out"] + params["b_out"]


def check_inputs(estimator: Relax, dist: Distribution, context: Array | None) -> None:
    """Raise unless the network was built for this distribution and this context."""
    size = math.prod(dist.event_shape)
    if estimator.num_inputs != size:
        raise ValueError(
            f"Relax(num_inputs={estimator.num_inputs}) was given a {type(dist).__name__} with "
            f"{size} logits: build it with num_inputs={size}."
        )
    expected = (*dist.batch_shape, estimator.context_size) if estimator.context_size else None
    given = None if context is None else context.shape
    if given != expected:
        raise ValueError(
            f"Relax(context_size={estimator.context_size}) takes a context of shape {expected}, "
            f"but was given {given}. Pass context=... of shape [*batch, context_size]."
        )
