"""Advantages for your own policy-gradient loop."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .arrays import compute_dtype, is_concrete

KINDS = ("leave_one_out", "length_weighted")


def advantages(
    rewards: Any, groups: Any = None, kind: str = "leave_one_out", *, lengths: Any = None
) -> Float[Array, " n"]:
    r"""Advantages $A_k = r_k - b_k$ of $n$ samples. The baseline $b_k$ depends on the *other*
    samples of the group, so that $\sum_k A_k \nabla_\eta \log \pi_\eta(x_k)$ is unbiased. The
    `kind` is:

    - `"leave_one_out"`: $b_k = \frac1{N-1} \sum_{j \ne k} r_j$;
    - `"length_weighted"`: $b_k = \sum_{j \ne k} l_j r_j \big/ \sum_{j \ne k} l_j$ with the
      `lengths` $l_j$ of the samples. This is nearly the baseline of least variance if the square of
      the score grows with the length, as it does for sequences of tokens.

    `rewards` and `lengths` have shape `[n]`. `groups`, also `[n]`, are whole numbers: samples with
    the same context (prompt) have the same number. `None` means that all samples are one group. A
    sample that is alone in its group has the baseline 0. If a mean or a standard deviation included
    the sample itself, as is common, the gradient would be biased. Rewards are not differentiated.

    Reference: Kool, van Hoof, Welling 2019, see `RLOO`; Hao et al., "On-Policy RL with Optimal
    Reward Baseline", 2025 (OPO), whose mean includes the sample itself.

    >>> import jax.numpy as jnp
    >>> advantages(jnp.array([1.0, 0.0, 5.0, 2.0]), groups=jnp.array([7, 7, 3, 7]))
    Array([ 0. , -1.5,  5. ,  1.5], dtype=float32)
    >>> advantages(jnp.array([1.0, 0.0, 2.0]), kind="length_weighted", lengths=jnp.array([1, 3, 1]))
    Array([ 0.5 , -1.5 ,  1.75], dtype=float32)
    """
    if kind not in KINDS:
        raise ValueError(
            f"advantages needs kind={KINDS[0]!r} or {KINDS[1]!r}, but was given {kind!r}."
        )
    if (lengths is None) != (kind == "leave_one_out"):
        raise ValueError(
            "advantages takes lengths with kind='length_weighted', and only with it: the lengths "
            "of the samples, of the shape of rewards."
        )
    rewards = jnp.asarray(rewards)
    if jnp.iscomplexobj(rewards):
        raise TypeError(f"advantages takes real rewards, but was given {rewards.dtype}.")
    rewards = jax.lax.stop_gradient(rewards.astype(compute_dtype(rewards)))
    if rewards.ndim != 1:
        raise ValueError(
            "advantages takes rewards of shape [n], one for each sample, but was given shape "
            f"{rewards.shape}. Pass groups=... to say which belong together, such as "
            "jnp.repeat(jnp.arange(prompts), samples) for rewards.ravel()."
        )
    n = len(rewards)
    weights = jnp.ones_like(rewards)
    if lengths is not None:
        weights = jnp.asarray(lengths).astype(rewards.dtype)
    groups = np.zeros(n, np.int32) if groups is None else groups
    if is_concrete(groups) and np.issubdtype(np.asarray(groups).dtype, np.integer):
        # Numbered in NumPy, because hashes of prompts may need all of their 64 bits.
        groups = np.asarray(groups)
        groups = np.unique(groups, return_inverse=True)[1].reshape(groups.shape).astype(np.int32)
    groups = jnp.asarray(groups)
    if not jnp.issubdtype(groups.dtype, jnp.integer):
        raise TypeError(f"advantages takes groups as whole numbers, but was given {groups.dtype}.")
    for name, array in (("groups", groups), ("lengths", weights)):
        if array.shape != rewards.shape:
            raise ValueError(
                f"advantages takes {name} of the shape of rewards, {rewards.shape}, but was given "
                f"shape {np.shape(array)}."
            )
    if n == 0:
        return rewards
    return _centred(rewards, weights, groups)


@jax.jit
def _centred(
    rewards: Float[Array, " n"], weights: Float[Array, " n"], groups: Int[Array, " n"]
) -> Float[Array, " n"]:
    """Each reward minus the weighted mean of the others in its group."""
    order = jnp.lexsort((weights, groups))
    r, weights, groups = rewards[order], weights[order], groups[order]
    last = jnp.append(groups[1:] != groups[:-1], True)  # the largest weight of its group
    number = jnp.cumsum(last, dtype=jnp.int32) - last.astype(jnp.int32)

    total = lambda terms: jax.ops.segment_sum(terms, number, len(r))[number]

    def of_others(terms):
        """The sums over the others. For the largest weight, the sum over the whole group minus its
        own term would lose digits."""
        rest = total(jnp.where(last, 0, terms))
        return jnp.where(last, rest, rest - terms + total(jnp.where(last, terms, 0)))

    of_group = lambda terms: jax.ops.segment_max(terms, number, len(r))[number]
    in_units = lambda terms, unit: terms / jnp.where((unit > 0) & (unit < jnp.inf), unit, 1)
    # Rewards relative to the largest finite one of their group, and then to the mean, so that
    # neither a large constant nor a long sum costs digits. Rewards and weights are in units of the
    # largest, so that no product is too large or too small.
    finite = jnp.isfinite(r)
    largest = of_group(jnp.where(finite, r, -jnp.inf))
    r = r - jnp.where(jnp.isfinite(largest), largest, 0)
    unit = of_group(jnp.where(finite, -r, 0))
    r, weights = in_units(r, unit), in_units(weights, of_group(weights))
    weight, whole = of_others(weights), total(weights)
    r = r - total(jnp.where(finite, weights * r, 0)) / jnp.where(whole > 0, whole, 1)
    alone = weight <= 0
    advantage = r - of_others(weights * r) / jnp.where(alone, 1, weight)
    advantage = jnp.where(alone, rewards[order], advantage * jnp.where(unit > 0, unit, 1))
    return jnp.zeros_like(advantage).at[order].set(advantage)
