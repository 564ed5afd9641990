"""Distributions whose states are the corners of a cube or a simplex, and the points between."""

import abc
from typing import ClassVar

from jaxtyping import Array, Float, PRNGKeyArray

from .base import Distribution


class Relaxable(Distribution):
    r"""States that come from continuous variables: $x$ is the corner nearest to $z = $ `location`
    $+$ noise, and $\sigma(z / \tau)$, or softmax, is a point between the states.

    $z$ has the shape of a state.
    """

    relaxable: ClassVar = True

    @abc.abstractmethod
    def noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Noise for `z`, of shape `[*shape, *batch, *event]`."""

    @abc.abstractmethod
    def location(self) -> Float[Array, "..."]:
        r"""What the noise is added to. It is finite: a value of probability 0 counts as one of
        probability $e^{-100}$, because differences of infinite numbers are not defined."""

    @abc.abstractmethod
    def latent_given(
        self, x: Float[Array, "..."], noise: Float[Array, "..."]
    ) -> Float[Array, "..."]:
        """`z` given the state, as a differentiable function of the parameters and of fresh
        noise."""

    @abc.abstractmethod
    def relax(
        self, z: Float[Array, "..."], temperature: float | Float[Array, ""]
    ) -> Float[Array, "..."]:
        r"""$\sigma(z / \tau)$, or softmax: a point inside the cube or the simplex."""
