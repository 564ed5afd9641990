"""Zanella's locally balanced operators, with the special cases MPF and Barker."""

import abc
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..arrays import as_index
from ..distributions.base import Distribution
from ..fast import sum_of_events
from .base import CoordinateOperator, check_damping, damped_log_ratio


def as_neighbourhood(given: str | Sequence[int]) -> str | tuple[int, ...]:
    return given if isinstance(given, str) else tuple(given)


class LocallyBalanced(CoordinateOperator):
    """The base class of Zanella's operators, without the balancing function."""

    neighbourhood: str | tuple[int, ...] = eqx.field(
        static=True, converter=as_neighbourhood, default="full"
    )
    """The values of a coordinate that are neighbours: "full" (any other value), "sparse" (one step
    up or down), or a list of steps such as (-1, 1)."""
    damping: float = eqx.field(static=True, default=0.0)
    """A constant added to the denominator of probability ratios (paper: 1e-3 for MPF and
    Difference, which makes them biased)."""

    def __check_init__(self):
        name = type(self).__name__
        check_damping(name, self.damping)
        if isinstance(self.neighbourhood, str) and self.neighbourhood not in ("full", "sparse"):
            raise ValueError(
                f"{name} needs neighbourhood='full', neighbourhood='sparse' or a list of steps "
                f"such as (-1, 1), but was given {self.neighbourhood!r}."
            )

    @abc.abstractmethod
    def rate(self, log_ratio: Float[Array, "..."]) -> Float[Array, "..."]:
        r"""$\kappa(t)$ from $\log t$."""

    def offsets(self, dist: Distribution):
        return neighbourhood_offsets(type(self).__name__, self.neighbourhood, dist)

    def weights(self, dist, x, values, coordinates):
        weights = self.rate(damped_log_ratio(dist, x, values, coordinates, self.damping))
        return weights, -sum_of_events(weights, axes=2)


class Zanella(LocallyBalanced):
    r"""A locally balanced jump process: $(A h)(x) = \sum_{y \sim x} \kappa\!\left(
    \frac{q(y)}{q(x)}\right) (h(y) - h(x))$.

    `kappa` is any balancing function, $\kappa(t) = t\,\kappa(1/t)$ (checked when built). The
    neighbours of $x$ differ from $x$ in one coordinate, which takes any other value
    (`neighbourhood="full"`), moves by one step up or down of its cyclic index (`"sparse"`), or
    moves by the steps you list (a symmetric set such as `(-2, -1, 1, 2)`).

    `damping` adds a constant to the denominator, $q(y_i \mid x_{-i}) / (q(x_i \mid x_{-i}) +
    \text{damping})$, as the paper's code does with $10^{-3}$. This breaks $E_q[A h] = 0$ (except
    for Barker's rule, where it changes the rates symmetrically), so it is off by default.
    `num_coordinates` is the number of coordinates to visit, drawn at random, instead of all.

    Reference: Zanella, "Informed proposals for local MCMC in discrete spaces", JASA 2020;
    Shi et al. 2022, section 3.

    >>> import jax.numpy as jnp, steingrad as sg
    >>> operator = Zanella(lambda t: jnp.minimum(1.0, t))    # Metropolis
    >>> q = sg.Bernoulli(jnp.array([0.0, 1.0]))
    >>> operator.neighbours(q, jnp.array([0.0, 1.0])).weights[:, 0].round(3)
    Array([1.   , 0.368], dtype=float32)
    """

    kappa: Any = eqx.field(static=True, default=None)
    """The balancing function κ, which has κ(t) = t κ(1/t)."""

    def __init__(
        self,
        kappa: Callable[[Float[Array, "..."]], Float[Array, "..."]],
        neighbourhood: str | Sequence[int] = "full",
        damping: float = 0.0,
        num_coordinates: int | None = None,
    ):
        self.kappa, self.neighbourhood = kappa, as_neighbourhood(neighbourhood)
        self.damping, self.num_coordinates = damping, as_index(num_coordinates)

    def __check_init__(self):
        check_balancing(self.kappa)

    def rate(self, log_ratio):
        return self.kappa(jnp.exp(log_ratio))


class MPF(LocallyBalanced):
    r"""Minimum probability flow: Zanella's operator with $\kappa(t) = \sqrt t$.

    `neighbourhood`, `damping` and `num_coordinates` are those of `Zanella`.

    Reference: Sohl-Dickstein et al., "Minimum probability flow learning", ICML 2011.

    >>> import jax.numpy as jnp, steingrad as sg
    >>> MPF().neighbours(sg.Bernoulli(jnp.log(jnp.array([4.0]))), jnp.zeros(1)).weights
    Array([[2.]], dtype=float32)
    """

    def rate(self, log_ratio):
        return jnp.exp(0.5 * log_ratio)


class Barker(LocallyBalanced):
    r"""Barker's rule: Zanella's operator with $\kappa(t) = t / (1 + t)$.

    `neighbourhood`, `damping` and `num_coordinates` are those of `Zanella`.

    Reference: Barker, "Monte Carlo calculations of the radial distribution functions for a
    proton-electron plasma", Australian Journal of Physics 1965.

    >>> import jax.numpy as jnp, steingrad as sg
    >>> Barker().neighbours(sg.Bernoulli(jnp.log(jnp.array([4.0]))), jnp.zeros(1)).weights
    Array([[0.8]], dtype=float32)
    """

    def rate(self, log_ratio):
        return jax.nn.sigmoid(log_ratio)


def check_balancing(kappa: Callable[[Float[Array, "..."]], Float[Array, "..."]]) -> None:
    """Raise unless κ(t) = t·κ(1/t), tried on a grid of ratios from e⁻⁶ to e⁶."""
    t = np.exp(np.linspace(-6, 6, 41))
    with jax.ensure_compile_time_eval():
        left = np.asarray(kappa(jnp.asarray(t, float)), np.float64)
        right = t * np.asarray(kappa(jnp.asarray(1 / t, float)), np.float64)
    wrong = ~np.isclose(left, right, rtol=1e-4)
    if wrong.any():
        at = np.flatnonzero(wrong)[0]
        raise ValueError(
            "Zanella needs a balancing function, κ(t) = t·κ(1/t), such as t/(1+t), √t or min(1, t);"
            f" the one given has κ({t[at]:.4g}) = {left[at]:.4g} but t·κ(1/t) = {right[at]:.4g}."
        )


def neighbourhood_offsets(
    name: str, neighbourhood: str | Sequence[int], dist: Distribution
) -> tuple[int, ...]:
    """The steps of a neighbourhood, each state counted once."""
    m = dist.num_values
    if neighbourhood == "full":
        return tuple(range(1, m))
    if neighbourhood == "sparse":
        # With two values, up and down are the same state: one neighbour, not two.
        return (1,) if m == 2 else (1, m - 1)
    steps = tuple(int(step) for step in neighbourhood)
    offsets = {step % m for step in steps}
    if any(abs(step) >= m or step == 0 for step in steps):
        raise ValueError(
            f"{name}'s neighbourhood {steps} has a step that a {type(dist).__name__} of {m} values "
            f"lacks: steps go from 1 to {m - 1}, up or down."
        )
    if offsets != {-offset % m for offset in offsets} or not offsets:
        raise ValueError(
            f"{name}'s neighbourhood {steps} is not symmetric: add the opposite of each step, "
            f"modulo the {m} values of this {type(dist).__name__}."
        )
    return tuple(sorted(offsets))
