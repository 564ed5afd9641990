"""The Gibbs operator: resample one coordinate given the others."""

from typing import ClassVar, Literal

import equinox as eqx

from ..distributions.base import Distribution
from ..distributions.neighbours import Neighbours
from ..fast import sum_of_events
from .base import CoordinateOperator


class Gibbs(CoordinateOperator):
    r"""The Gibbs operator: $(A h)(x) = \frac1d \sum_i \sum_{v} q(v \mid x_{-i}) \,
    (h(x_{i \to v}) - h(x))$.

    `scan="random"` is that of the paper: a coordinate is chosen at random, which gives the factor
    $1/d$. With `scan="own"`, component $i$ of the global control variate uses the update of
    coordinate $i$ alone, without the $1/d$. It needs independent coordinates, and with $h = f$ and
    $\beta = 1$ it gives the local expectation gradient. All else is the same for both.
    `num_coordinates` is the number of coordinates to visit, drawn at random, instead of all.

    Reference: Shi et al., "Gradient Estimation with Discrete Stein Operators", NeurIPS 2022,
    section 3.

    >>> import jax.numpy as jnp, steingrad as sg
    >>> q = sg.Bernoulli(jnp.array([0.5, -1.0]))
    >>> h = lambda x: x[..., 0] * x[..., 1] + x[..., 0]
    >>> states = q.enumerate()
    >>> applied = Gibbs().apply(h, q, states)
    >>> bool(jnp.abs(jnp.sum(jnp.exp(q.log_prob(states)) * applied)) < 1e-6)
    True
    """

    scan: Literal["random", "own"] = eqx.field(static=True, default="random")
    """The update that a component of the global control variate uses: that of a random coordinate
    (paper), or that of its own coordinate."""
    averages: ClassVar = True

    def __check_init__(self):
        if self.scan not in ("random", "own"):
            raise ValueError(f"Gibbs needs scan='random' or scan='own', not {self.scan!r}.")

    @property
    def _own(self):
        return self.scan == "own"

    def offsets(self, dist: Distribution):
        if self.scan == "own" and not dist.is_product:
            raise ValueError(
                "Gibbs(scan='own') needs a distribution of independent coordinates (Bernoulli, "
                f"Categorical, Ordinal), but was given {type(dist).__name__}. Use scan='random'."
            )
        return

    def weights(self, dist, x, values, coordinates):
        weights = Neighbours(dist, x, values, coordinates).conditional() / dist.num_coordinates
        return weights, -sum_of_events(weights, axes=2)
