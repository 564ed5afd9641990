"""Coordinates that take real values out of a finite list."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..arrays import is_concrete, take
from .base import Distribution


class RealValued(Distribution):
    """The base class of distributions whose coordinates take `values` from one list. A state holds
    values, not indices."""

    values: eqx.AbstractVar[tuple[float, ...]]

    @property
    def event_shape(self):
        return (self.num_coordinates,)

    @property
    def num_values(self):
        return len(self.values)

    def index(self, x):
        # The nearest value, so that rounding to another dtype does not matter.
        distance = jnp.abs(x[..., None] - self._values_in(x.dtype))
        return jnp.argmin(distance, axis=-1).astype(jnp.int32)

    def state(self, index):
        return self._values_in(self.dtype)[index]

    def linear_change(self, gradient, x, values, coordinates=None):
        # In the gradient's dtype, because the dtype of the states may round a difference.
        new = jnp.asarray(self.values, x.dtype)[values].astype(gradient.dtype)
        step = new - take(x.astype(gradient.dtype), coordinates)[..., None]
        return take(gradient, coordinates)[..., None] * step

    def squared_step(self, x, values):
        # In units of the root mean square, so that no square is too large or small for the dtype.
        numbers = np.asarray(self.values, np.float64)
        unit = float(np.max(np.abs(numbers)))
        differences = numbers[:, None] / unit - numbers / unit
        unit *= math.sqrt(np.sum(differences**2) / (len(numbers) * (len(numbers) - 1)))
        step = jnp.asarray(numbers, x.dtype)[values] - x[..., None]
        return (step / unit) ** 2

    def between(self, p: Float[Array, "... d m"]) -> Float[Array, "... d"]:
        """The mean of the values with these probabilities."""
        return jnp.sum(p * jnp.asarray(self.values, p.dtype), axis=-1)

    def by_value(self, gradient: Float[Array, "... d"]) -> Float[Array, "... d m"]:
        """The gradient with respect to the probabilities in `between`."""
        return gradient[..., None] * jnp.asarray(self.values, gradient.dtype)

    def _values_in(self, dtype: Any) -> Float[Array, "m"]:
        """The values in `dtype`, checked to be distinct there: a distribution may have been cast to
        another dtype since it was built, for example by `jax.tree.map`."""
        return jnp.asarray(check_values(type(self).__name__, self.values, dtype), dtype)


def check_values(name: str, values: Any, dtype: Any) -> tuple[float, ...]:
    """Returns the values as a tuple. Raises unless there are two or more, finite and distinct in
    the dtype of the states. If this dtype has less than 32 bits, the values are rounded to it, so
    that the mean is that of the states."""
    if not is_concrete(values):
        raise TypeError(
            f"{name}'s values must be constants, but a JAX tracer was given. Pass a "
            "tuple or a NumPy array of numbers."
        )
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or len(array) < 2 or len(set(array.tolist())) < len(array):
        raise ValueError(
            f"{name} needs a list of two or more distinct values, but was given {values}."
        )
    rounded = array.astype(dtype).astype(np.float64)
    if not np.isfinite(rounded).all():
        raise ValueError(
            f"{name} needs finite values, but as {dtype} those given are {rounded.tolist()}."
        )
    if len(set(rounded.tolist())) < len(array):
        raise ValueError(
            f"{name}'s values {array.tolist()} are not distinct in its dtype, {dtype}, where they "
            f"are {rounded.tolist()}. Move them apart, or use a wider dtype."
        )
    return tuple((rounded if jnp.dtype(dtype).itemsize < 4 else array).tolist())
