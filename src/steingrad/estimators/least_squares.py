"""Coefficients of control variates that are solved for, from what the past steps have shown."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

WARM_UP = 10  # steps without control variates: fewer say too little about their coefficients


class Products(eqx.Module):
    r"""Moving averages of the products of an estimate $g_0$ and its control variates $G_1 \dots
    G_M$: entry $m, n$ is that of $G_m G_n$, with $g_0$ in the first row and column."""

    matrix: Float[Array, "terms terms"]
    weight: Float[Array, ""]
    """The average of ones, $1 - \\text{decay}^\\text{steps}$: how much has been seen."""

    @classmethod
    def zero(cls, num_terms: int) -> "Products":
        return cls(jnp.zeros((1 + num_terms, 1 + num_terms)), jnp.zeros(()))

    def coefficients(self, decay: float, ridge: float) -> Float[Array, " terms"]:
        r"""The $c$ that makes $g_0 + \sum_m c_m G_m$ smallest in mean square; 0 at first.

        The ridge is relative, so that the units of a term do not matter: every term is scaled to
        mean square 1. A term that vanishes gets 0, and terms that depend on each other share.
        """
        gram, target = self.matrix[1:, 1:], self.matrix[1:, 0]
        square = jnp.diagonal(gram)
        scale = jnp.where(square > 0, jax.lax.rsqrt(jnp.where(square > 0, square, 1)), 0)
        gram = scale[:, None] * gram * scale + ridge * jnp.eye(len(gram), dtype=gram.dtype)
        solution = -scale * jnp.linalg.solve(gram, scale * target)
        enough = self.weight > 1 - decay ** (WARM_UP - 0.5)
        return jnp.where(enough, solution, 0)


def average_step(old, new, decay: float):
    """Moving averages minus what they become with new numbers, for gradient descent to subtract."""
    return jax.tree.map(lambda o, n: (1 - decay) * (o - n.astype(o.dtype)), old, new)
