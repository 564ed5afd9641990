"""Independent coordinates that take real values out of a finite list."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .base import as_logits
from .independent import LogitOfEachValue
from .values import RealValued, check_values


class Ordinal(RealValued, LogitOfEachValue):
    r"""Independent coordinates on a finite list of real values: $q(x_i = v_a) =
    \operatorname{softmax}(\text{logits}_i)_a$.

    `logits` has shape `[*batch, d, m]`. `values` are the $m$ values, which are distinct constants
    and are not differentiated. A sample has shape `[*batch, d]` and holds values, not indices.

    >>> import jax, jax.numpy as jnp
    >>> q = Ordinal(jnp.zeros((4, 3)), values=(-1.0, 0.0, 2.5))
    >>> q.sample(jax.random.key(1))
    Array([0. , 0. , 0. , 2.5], dtype=float32)
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

    def slope(self, gradient):
        probs = self.soften(1.0)
        values = jnp.asarray(self.values, probs.dtype)
        centred = values - self.between(probs)[..., None]
        return jnp.sum(gradient * values, axis=-1), jnp.sum(probs * centred**2, axis=-1)

    def with_parameters(self, parameters):
        return Ordinal(parameters, self.values)
