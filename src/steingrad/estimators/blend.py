"""A blend of an estimate with the score-function estimate, by least squares."""

import functools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..arrays import expand
from ..distributions.base import Distribution
from ..fast import TINY, mean, mean_of_samples, sum_of_events
from ..objective import Evaluated
from .least_squares import Products

DECAY = 0.998
WARM_UP = 20  # steps without a blend: too few to know the coefficients
# A term whose part that the score does not explain is smaller than this share is left out.
RIDGE = 1e-4


def blend(
    grad: Any,
    products: Products,
    baseline: Float[Array, ""],
    dist: Distribution,
    at: Evaluated,
) -> tuple[Any, Products]:
    r"""Returns $g + c_1 (g_{SF} - g) + c_2 \bar s$, and the products with this step's terms added.

    $g_{SF} = \frac1K \sum_k (f(x_k) - b) s(x_k)$ and $\bar s = \frac1K \sum_k s(x_k)$. The mean of
    both added terms is 0 if $g$ is unbiased and $b$, $c_1$ and $c_2$ come from past steps.
    """
    c1, c2 = coefficients(products)
    spread = at.only_sound(jnp.mean(jnp.abs(at.fx - baseline), axis=0))
    unit, score = products.unit(spread), dist.score(at.x)
    weigh = lambda w: jax.tree.map(lambda s: mean_of_samples(expand(w, s.ndim) * s), score)
    by_score = jax.tree.map(jnp.subtract, weigh(at.fx - baseline), grad)
    scores = jax.tree.map(lambda s: unit * mean_of_samples(s), score)
    terms = grad, by_score, scores
    blended = jax.tree.map(lambda g, a, s: g + c1 * a + c2 * s, *terms)
    # f may be finite at the samples and not at further points, on which g depends.
    finite = functools.reduce(
        jnp.logical_and, map(partial(all_finite, dist), jax.tree.leaves(grad))
    )
    factors = jnp.where(finite, products.factors(spread, at), 0)
    share = mean(at.only_sound(finite.astype(spread.dtype)))
    found = inner_products(terms, factors, len(dist.batch_shape))
    return blended, products.step(found, share, spread, DECAY)


def all_finite(dist: Distribution, leaf: Float[Array, "..."]) -> Bool[Array, "..."]:
    """Which elements of the batch have finite numbers only."""
    return jnp.all(jnp.isfinite(leaf), axis=tuple(range(len(dist.batch_shape), leaf.ndim)))


def coefficients(products: Products) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The coefficients that minimise the mean square, the first one between 0 and 1; 0 in the
    first steps."""
    p = products.matrix
    # The score is eliminated first: then each coefficient has a formula of its own.
    slope = lambda row: p[row, 2] / (p[2, 2] + TINY)
    square, cross = p[1, 1] - slope(1) * p[1, 2], p[0, 1] - slope(0) * p[1, 2]
    known = (products.weight > 1 - DECAY ** (WARM_UP - 0.5)) & (square > RIDGE * p[1, 1])
    c1 = jnp.where(known, jnp.clip(-cross / jnp.where(known, square, 1), 0, 1), 0)
    return c1, jnp.where(known, -(slope(0) + c1 * slope(1)), 0)


def inner_products(
    terms: tuple[Any, ...], factors: Float[Array, "..."], batch_ndim: int
) -> Float[Array, "terms terms"]:
    """The inner products of vectors shaped like the parameters, averaged over the batch, where each
    vector is multiplied by its element's factor. An element with the factor 0 may be NaN."""
    weigh = lambda leaf: jnp.where(
        expand(factors, leaf.ndim) > 0, expand(factors, leaf.ndim) * leaf, 0
    )
    leaves = [list(map(weigh, jax.tree.leaves(term))) for term in terms]

    def product(m: int, n: int) -> Float[Array, ""]:
        pairs = zip(leaves[m], leaves[n], strict=True)
        return functools.reduce(
            jnp.add, (mean(sum_of_events(a * b, a.ndim - batch_ndim)) for a, b in pairs)
        )

    rows = [[product(min(m, n), max(m, n)) for n in range(len(terms))] for m in range(len(terms))]
    return jnp.asarray(rows)
