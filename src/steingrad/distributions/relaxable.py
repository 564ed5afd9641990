"""Distributions whose states are the corners of a cube or a simplex."""

import abc
from typing import ClassVar

from jaxtyping import Array, Float, PRNGKeyArray

from .base import Distribution


class Relaxable(Distribution):
    r"""States made of continuous variables. $x$ is the corner nearest to $z = $ `location` $+$
    noise, and $\sigma(z / \tau)$ (or softmax) is a point between the states.

    $z$ has the shape of a state.
    """

    relaxable: ClassVar = True

    @abc.abstractmethod
    def noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Noise for `z`, of shape `[*shape, *batch, *event]`."""

    @abc.abstractmethod
    def location(self) -> Float[Array, "..."]:
        r"""The numbers to which the noise is added. They are finite: a value of probability 0 is
        treated as if it had probability $e^{-100}$, because ∞ − ∞ is not defined."""

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
