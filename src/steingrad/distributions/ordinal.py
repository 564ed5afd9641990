"""Independent coordinates that take real values out of a finite list."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..arrays import is_concrete, take
from .base import as_logits
from .categorical import IndependentLogits


class Ordinal(IndependentLogits):
    r"""Independent coordinates on a finite list of real values: $q(x_i = v_a) =
    \operatorname{softmax}(\text{logits}_i)_a$.

    `logits` has shape `[*batch, d, m]` and `values` names the $m$ values, distinct and constant
    (they are not differentiated). A sample has shape `[*batch, d]` and holds values, not indices.

    >>> import jax, jax.numpy as jnp
    >>> q = Ordinal(jnp.zeros((4, 3)), values=(-1.0, 0.0, 2.5))
    >>> q.sample(jax.random.key(1))
    Array([ 0.,  0., -1., -1.], dtype=float32)
    """

    logits: Float[Array, "*batch d m"]
    values: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, logits: Any, values: Sequence[int | float] | Array | np.ndarray):
        self.logits = as_logits("Ordinal", logits, ("d", "m"))
        self.values = check_values("Ordinal", values, self.dtype)
        if len(self.values) != self.logits.shape[-1]:
            raise ValueError(
                f"Ordinal needs one logit for each value, but was given {len(self.values)} values "
                f"and logits of shape {self.logits.shape}, whose last axis must be as long."
            )

    @property
    def event_shape(self):
        return (self.num_coordinates,)

    @property
    def mean(self) -> Float[Array, "*batch d"]:
        """Σ_a v_a q(v_a)."""
        values = jnp.asarray(self.values, self._logits.dtype)
        return jnp.sum(jax.nn.softmax(self._logits) * values, axis=-1).astype(self.dtype)

    def slope(self, gradient):
        probs = jax.nn.softmax(self._logits)
        values = jnp.asarray(self.values, probs.dtype)
        centred = values - jnp.sum(probs * values, axis=-1, keepdims=True)
        return jnp.sum(gradient * values, axis=-1), jnp.sum(probs * centred**2, axis=-1)

    def with_parameters(self, parameters):
        return Ordinal(parameters, self.values)

    def log_prob(self, x):
        log_probs = jax.nn.log_softmax(self._logits)
        return jnp.sum(take(log_probs, self.index(x)[..., None])[..., 0], axis=-1)

    def index(self, x):
        return value_index("Ordinal", x, self.values)

    def state(self, index):
        return values_in("Ordinal", self.values, self.dtype)[index]

    def linear_change(self, gradient, x, values, coordinates=None):
        return value_change(gradient, x, jnp.asarray(self.values, x.dtype)[values], coordinates)


def check_values(name: str, values: Any, dtype: Any) -> tuple[float, ...]:
    """The values of a coordinate as a tuple, rounded where states have less than 32 bits, so that
    the mean is that of the states; raise unless they are at least two, finite, and distinct in the
    type of the states."""
    if not is_concrete(values):
        raise TypeError(
            f"{name}'s values are constants: pass a tuple or a NumPy array of numbers, not an "
            "array that JAX is tracing."
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
            f"{name}'s values {array.tolist()} are not distinct in its type, {dtype}, where they "
            f"are {rounded.tolist()}. Move them apart, or use parameters of a wider type."
        )
    return tuple((rounded if jnp.dtype(dtype).itemsize < 4 else array).tolist())


def values_in(name: str, values: tuple[float, ...], dtype: Any) -> Float[Array, "m"]:
    """The values in a type, where they are still distinct: a distribution may have been cast to
    another one since it was built, as models are by `jax.tree.map`."""
    return jnp.asarray(check_values(name, values, dtype), dtype)


def value_index(
    name: str, x: Float[Array, "... d"], values: tuple[float, ...]
) -> Int[Array, "... d"]:
    # The nearest value, so that rounding to another type on the way does not matter.
    distance = jnp.abs(x[..., None] - values_in(name, values, x.dtype))
    return jnp.argmin(distance, axis=-1).astype(jnp.int32)


def value_change(
    gradient: Float[Array, "... d"],
    x: Float[Array, "... d"],
    new: Float[Array, "... c n"],
    coordinates: Int[Array, "... c"] | None,
) -> Float[Array, "... c n"]:
    """∇ᵢ · (yᵢ − xᵢ) for real-valued coordinates."""
    # In the gradient's type: in that of the states a difference may be rounded.
    new, x = new.astype(gradient.dtype), x.astype(gradient.dtype)
    return take(gradient, coordinates)[..., None] * (new - take(x, coordinates)[..., None])
