"""The Stein control variates of RODEO, as terms with coefficients to be found."""

from typing import Any

import jax
import jax.numpy as jnp

from ..distributions import Distribution
from ..fast import mean_of_others, mean_of_samples
from ..objective import Evaluated
from ..operators import Operator
from ..surrogates import Surrogate
from .least_squares import Change


def stein_terms(
    operator: Operator, surrogate: Surrogate, cv: Any, dist: Distribution, at: Evaluated, score: Any
) -> tuple:
    r"""$-\frac1{K-1} \sum_{j \ne k} (A h_j)(x_j) \, s(x_k)$ and $(A (h^*_k s))(x_k)$, as
    `make_terms` takes them."""
    row = operator.neighbours(dist, at.x, key=at.key)
    h, h_star = surrogate.evaluate(cv, row, at)
    local = -mean_of_others(row.apply(*h)), None
    if score is None:
        return local, (row.apply(*h_star), Change(row.neighbours, row.weights * h_star.neighbours))
    mean = jax.tree.map(mean_of_samples, row.apply_to_score(*h_star, score))
    return local, (jnp.zeros_like(at.fx), mean)
