"""The policy gradient for rewards at each step, with returns-to-go."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .arrays import as_index, compute_dtype
from .derivatives import drawn_with, on_each_device
from .distributions import Autoregressive, Distribution
from .estimators import Gradients
from .estimators.checks import check_num_samples
from .fast import leave_one_out, mean
from .objective import as_jax_arrays, evaluate, takes_key


def policy_gradient(
    rewards: Callable[..., Float[Array, "..."]],
    dist: Distribution,
    num_samples: int = 2,
    *,
    key: PRNGKeyArray,
    args: tuple = (),
) -> tuple[Float[Array, ""], Gradients]:
    r"""The mean over samples ($K$, `num_samples`) and batch of $\sum_t r_t(x)$, and its gradients,
    with returns-to-go $R_{k,t} = \sum_{u \ge t} r_u(x_k)$ and a leave-one-out baseline for each
    step:

    $$g = \frac1K \sum_k \sum_t \left(R_{k,t} - \frac1{K-1} \sum_{j \ne k} R_{j,t}\right)
    \nabla_\eta \log q_\eta(x_{k,t} \mid x_{k,1} \dots x_{k,t-1}).$$

    `rewards(x, *args)` maps sequences `[..., T, V]` to rewards `[..., T]`, where $r_t$ must not
    depend on tokens after $t$. A token then cannot change earlier rewards, so leaving them out
    keeps $g$ unbiased and removes their noise. A reward for the whole sequence is a reward of the
    last step, and $g$ is then that of `RLOO`. Rewards after an `end` count too; to remove them,
    multiply by `dist.mask(x)`. Tokens after an `end` are certain, and have no score. A discount
    $\gamma$ is a factor $\gamma^t$ in $r_t$.

    If `rewards` has an argument named `key`, it gets a random key. `args` are differentiated too.
    The gradient is one vector–Jacobian product, whatever the number of samples.

    Reference: Sutton, McAllester, Singh, Mansour, "Policy gradient methods for reinforcement
    learning with function approximation", NeurIPS 1999; for the baseline, see `RLOO`.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> step = lambda table, carry, token: (carry, table[0] + token @ table[1:])  # a Markov chain
    >>> q = sg.Autoregressive(step, jnp.zeros((4, 3)), (), length=5, vocabulary=3, end=2)
    >>> rewards = lambda x: x[..., 0] * q.mask(x)  # 1 for each token 0
    >>> value, grads = policy_gradient(rewards, q, 8, key=jax.random.key(0))
    >>> grads.parameters.shape
    (4, 3)
    """
    if not isinstance(dist, Autoregressive):
        raise TypeError(
            "policy_gradient takes an Autoregressive, whose tokens follow each other, but was "
            f"given {type(dist).__name__}. For that use `value_and_grad` with RLOO."
        )
    num_samples = as_index(num_samples)
    check_num_samples(
        "policy_gradient", num_samples, 2, "because the other samples are each sample's baseline"
    )
    parameters, args, key = on_each_device((dist.parameters, as_jax_arrays(args), key), like=dist)
    q: Any = dist.with_parameters(jax.lax.stop_gradient(parameters))
    sample_key, f_key, _ = jax.random.split(key, 3)
    x = q.sample(sample_key, (num_samples,))

    def total(x, *args) -> Any:
        keyed = {"key": f_key} if takes_key(rewards) else {}
        r = jnp.asarray(rewards(x, *args, **keyed))
        if r.shape != x.shape[:-1]:
            raise ValueError(
                f"rewards was given sequences of shape {x.shape} and must return one number for "
                f"each token, of shape {x.shape[:-1]}, but returned shape {r.shape}."
            )
        if jnp.iscomplexobj(r):
            raise TypeError(
                f"rewards must return real numbers, but returned {r.dtype}. Return jnp.real(...) "
                "or jnp.abs(...) of it."
            )
        r = r.astype(compute_dtype(r))
        return jnp.sum(r, axis=-1), r

    values, r = evaluate(total, x, args)
    value = values.fx
    _, args_grad = values.gradients(jnp.ones_like(value) / max(value.size, 1))
    to_go = returns_to_go(r)
    weights = leave_one_out(to_go) / max(num_samples * math.prod(q.batch_shape), 1)
    grad = q.weighted_step_score(weights, x)
    grad = jax.tree.map(lambda g, p: g.astype(p.dtype), grad, parameters)
    return drawn_with(parameters, (mean(value), Gradients(grad, None, args_grad)))


def returns_to_go(rewards: Float[Array, "... T"]) -> Float[Array, "... T"]:
    r"""$\sum_{u \ge t} r_u$ for each step $t$."""
    return jax.lax.cumsum(rewards, axis=rewards.ndim - 1, reverse=True)
