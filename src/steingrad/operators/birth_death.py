"""The birth-death operator and its one-sided form, the difference operator."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp

from ..arrays import is_log_zero
from ..distributions.base import Distribution
from ..fast import sum_of_events
from .base import CoordinateOperator, check_damping, damped_log_ratio


class OneStep(CoordinateOperator):
    """The base class of operators that move a coordinate to its next or previous value."""

    damping: float = eqx.field(static=True, default=0.0)
    """A constant added to the denominator of probability ratios (paper: 1e-3 for MPF and
    Difference, which makes them biased)."""
    averages: ClassVar = True

    def __check_init__(self):
        check_damping(type(self).__name__, self.damping)

    def check_full_support(self, dist: Distribution) -> None:
        if not dist.full_support:
            raise ValueError(
                f"{type(self).__name__} moves to the next value of a coordinate whatever its "
                f"probability, but this {type(dist).__name__} has neighbours of probability 0. Use "
                "Gibbs, MPF, Barker or Zanella, which never move to them."
            )


class BirthDeath(OneStep):
    r"""Birth and death: $(A h)(x) = \frac1d \sum_i b_i(x) \, (h(\mathrm{inc}_i x) - h(x)) +
    (h(\mathrm{dec}_i x) - h(x))$ with $b_i(x) = q(\mathrm{inc}_i x) / q(x)$.

    $\mathrm{inc}_i$ and $\mathrm{dec}_i$ move coordinate $i$ to the next and to the previous value,
    cyclically. With two values they are the same state, and both terms count. `damping` (off by
    default) adds a constant to the denominator of $b_i$, which breaks $E_q[A h] = 0$. Values of
    probability 0 break it too, so with logits of $-\infty$ the weights are NaN. `num_coordinates`
    is the number of coordinates to visit, drawn at random, instead of all.

    Reference: Shi et al. 2022, section 3.

    >>> import jax.numpy as jnp, steingrad as sg
    >>> q = sg.Ordinal(jnp.log(jnp.array([[1.0, 2.0, 4.0]])), values=(0, 1, 2))
    >>> row = BirthDeath().neighbours(q, jnp.array([0.0]))
    >>> row.values, row.weights
    (Array([[1, 2]], dtype=int32), Array([[2., 1.]], dtype=float32))
    """

    def offsets(self, dist: Distribution):
        self.check_full_support(dist)
        return (1, dist.num_values - 1)

    def weights(self, dist, x, values, coordinates):
        birth = jnp.exp(damped_log_ratio(dist, x, values[..., :1], coordinates, self.damping))
        birth = nan_if_impossible(birth, dist, x, values[..., 1:], coordinates)
        weights = jnp.concatenate([birth, jnp.ones_like(birth)], -1) / dist.num_coordinates
        return weights, -sum_of_events(weights, axes=2)


class Difference(OneStep):
    r"""The difference operator: $(A h)(x) = \frac1d \sum_i h(\mathrm{dec}_i x) - b_i(x) \, h(x)$
    with $b_i(x) = q(\mathrm{inc}_i x) / q(x)$.

    `damping` (off by default; the paper's ablation uses $10^{-3}$) adds a constant to the
    denominator of $b_i$, which breaks $E_q[A h] = 0$. Values of probability 0 break it too, so with
    logits of $-\infty$ the weights are NaN. `num_coordinates` is the number of coordinates to
    visit, drawn at random, instead of all.

    Reference: Yang et al., "Goodness-of-fit testing for discrete distributions via Stein
    discrepancy", ICML 2018; Shi et al. 2022, section 3.

    >>> import jax.numpy as jnp, steingrad as sg
    >>> row = Difference().neighbours(sg.Bernoulli(jnp.log(jnp.array([4.0]))), jnp.zeros(1))
    >>> row.weights, row.self_weight
    (Array([[1.]], dtype=float32), Array(-4., dtype=float32))
    """

    def offsets(self, dist: Distribution):
        self.check_full_support(dist)
        return (dist.num_values - 1,)

    def weights(self, dist, x, values, coordinates):
        up = dist.shift(x, (1,), coordinates)
        birth = jnp.exp(damped_log_ratio(dist, x, up, coordinates, self.damping))
        birth = nan_if_impossible(birth, dist, x, values, coordinates)
        birth = birth / dist.num_coordinates
        return jnp.full_like(birth, 1 / dist.num_coordinates), -sum_of_events(birth, axes=2)


def nan_if_impossible(birth, dist, x, down, coordinates):
    """NaN where dec(x) has probability 0. The operator then moves from x to a state that is never
    visited, and its mean is not 0."""
    return jnp.where(is_log_zero(dist.log_ratio(x, down, coordinates)), jnp.nan, birth)
