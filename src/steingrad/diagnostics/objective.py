"""Check that f is a function of each state alone, as estimators assume."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from ..arrays import expand
from ..distributions import as_distribution
from ..objective import bind, takes_key
from .measure import check_not_empty

DRAWS = 4


def check_objective(
    f: Callable[..., Any],
    dist: Any,
    *,
    key: PRNGKeyArray,
    args: tuple = (),
    num_samples: int = 4,
    tolerance: float = 1e-3,
) -> None:
    r"""Raise unless `f(x, *args)` returns, for every state of `x`, a finite value that is the same
    at each call and does not depend on the other samples or the other elements of the batch.

    Batch normalisation, a contrastive loss or a mean over a wrong axis mixes the states. Then
    $f(x_k)$ also depends on $x_j$, and gradients are silently wrong. The check draws `num_samples`
    samples of `dist` with `key`, replaces a random half of the states, and compares f at the states
    that stayed. It then evaluates one sample alone. Differences up to `tolerance` times the
    standard deviation of f are ignored. Run it before training; it may miss a rare dependence.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> from steingrad.diagnostics import check_objective
    >>> q, w = sg.Bernoulli(jnp.zeros((8, 3))), jnp.arange(3.0)
    >>> check_objective(lambda x: x @ w, q, key=jax.random.key(0))
    >>> normalised = lambda x: x @ w - jnp.mean(x @ w, axis=-1, keepdims=True)
    >>> check_objective(normalised, q, key=jax.random.key(0))
    Traceback (most recent call last):
        ...
    ValueError: f mixes the states that it is given: ...
    """
    dist = as_distribution(dist)
    check_not_empty("check_objective", dist)
    sample_key, other_key, mask_key, f_key = jax.random.split(key, 4)
    bound = bind(f, dist)
    objective = lambda x, *args: bound(f_key, x, *args)[0]
    shape = (num_samples,)
    x = dist.sample(sample_key, shape)
    before = np.asarray(objective(x, *args), np.float64)
    if not np.isfinite(before).all():
        raise ValueError(
            f"f returned {before[~np.isfinite(before)][0]} at a sample of this "
            f"{type(dist).__name__}, but every state needs a finite value."
        )
    spread = max(before.std(), float(np.finfo(np.float32).eps) * np.abs(before).max())
    differ = lambda a, b: np.abs(a - b) > tolerance * spread + 1e-30
    if differ(before, np.asarray(objective(x, *args), np.float64)).any():
        raise ValueError(
            "f returned other values when it was called again with the same states. Let its "
            "randomness come from an argument named `key`."
        )
    for draw in range(DRAWS):
        others = dist.sample(jax.random.fold_in(other_key, draw), shape)
        stays = jax.random.bernoulli(jax.random.fold_in(mask_key, draw), 0.5, before.shape)
        mixed = jnp.where(expand(stays, x.ndim), x, others)
        after = np.asarray(objective(mixed, *args), np.float64)
        changed = differ(before, after) & np.asarray(stays)
        if changed.any():
            at = tuple(int(i) for i in np.argwhere(changed)[0])
            raise ValueError(
                "f mixes the states that it is given: at sample and element "
                f"{at} it was {before[at]:.6g}, and {after[at]:.6g} when only other states had "
                "changed. Each value must depend on its own state alone: look for batch "
                "normalisation, or a mean or a sum over a wrong axis."
            )
    if takes_key(f):
        return  # the random numbers of f depend on the shape of x
    alone = np.asarray(objective(x[:1], *args), np.float64)
    if differ(before[:1], alone).any():
        raise ValueError(
            "f returned another value for the first sample when it was the only one. Its values "
            "must not depend on the number of samples."
        )
