"""Least-squares coefficients of control variates, from moving averages over past steps."""

import functools
import math
import operator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..arrays import expand
from ..distributions.base import Distribution
from ..distributions.neighbours import Neighbours
from ..fast import leave_one_out, mean, sum_of_events, sum_of_samples
from ..objective import Evaluated

DECAY = 0.99
RIDGE = 1e-4
WARM_UP = 10  # steps without control variates: too few to know their coefficients
LIMIT = 10.0  # an f that is spread this many times more than usual counts no more than this
ACCIDENT = 1e-4  # elements whose influence is smaller do not count at all
LARGEST = 120.0  # the largest exponent of the unit, in the range of float32
# If f in the last ninety steps or so is spread less than the unit by this factor, or the estimate
# is smaller than its average by this factor, f has become smaller, and the averages begin anew.
SMALLER, RECENT_DECAY = 30.0, 0.9


class Terms(NamedTuple):
    r"""An estimate and its control variates, $G_m = \sum_r w_{mr} b_r$ for $m = 0 \dots M$.

    The basis $b$ consists of the $K$ scores and of the vectors that some terms add. So no array has
    the size terms × batch × parameters.
    """

    weights: Float[Array, "terms basis ..."]
    basis: Any
    """Shaped like the distribution's parameters, with an axis for $r$ before the batch axes."""
    num_scores: int
    """How many of the basis are scores. The others are vectors that are linear in f."""

    @classmethod
    def of(cls, terms: list[tuple[Float[Array, "samples ..."], Any]], score: Any) -> "Terms":
        r"""Each term is $\frac1K \sum_k w_k s_k + v$, given as $w$ and $v$ (or `None`)."""
        added = [m for m, (_, vector) in enumerate(terms) if vector is not None]
        weights = jnp.stack([weights for weights, _ in terms])
        unit = jnp.eye(len(terms), dtype=weights.dtype)[:, added]
        unit = unit.reshape(*unit.shape, *[1] * (weights.ndim - 2))
        unit = jnp.broadcast_to(unit, (*unit.shape[:2], *weights.shape[2:]))
        weights = jnp.concatenate([weights / weights.shape[1], unit], axis=1)
        vectors = [terms[m][1] for m in added]
        stack = lambda s, *vectors: jnp.concatenate([s, *(v[None] for v in vectors)])
        return cls(weights, jax.tree.map(stack, score, *vectors), terms[0][0].shape[0])

    def products(self, factors: Float[Array, "..."]) -> Float[Array, "terms terms"]:
        r"""$G_m^\top G_n$, averaged over the batch, each element times the square of its factor."""
        # The factors bring f to size 1. It is in the weights of the scores and in the vectors.
        scores = self.num_scores
        weights = jnp.concatenate(
            [self.weights[:, :scores] * factors, self.weights[:, scores:]], axis=1
        )
        scaled = lambda b: b.at[scores:].multiply(expand(factors, b.ndim - 1))
        axes = lambda b: b.ndim - self.weights[0].ndim
        product = lambda b: sum_of_events(b[:, None] * b, axes(b))
        inner = jax.tree.map(lambda b: product(scaled(b)), self.basis)
        inner = functools.reduce(operator.add, jax.tree.leaves(inner))
        weights, inner = (a.reshape(*a.shape[:2], -1) for a in (weights, inner))
        products = jnp.einsum("mrb,rqb,nqb->mn", weights, inner, weights, precision="highest")
        return products / weights.shape[-1]

    def combine(self, coefficients: Float[Array, " terms"]) -> Any:
        r"""$G_0 + \sum_m c_m G_m$ for each element of the batch."""
        weights = self.weights[0] + jnp.tensordot(coefficients, self.weights[1:], axes=1)
        weigh = lambda b: sum_of_samples(expand(weights, b.ndim) * b)
        return jax.tree.map(weigh, self.basis)

    def combine_and_products(
        self, coefficients: Float[Array, " terms"], factors: Float[Array, "..."]
    ) -> tuple[Any, Array]:
        """Returns `combine(coefficients)` and `products(factors)`."""
        return self.combine(coefficients), self.products(jax.lax.stop_gradient(factors))


class Change(NamedTuple):
    r"""$\frac1K \sum_k \sum_n c_{kn} (s(y_{kn}) - s(x_k))$, computed by `vector`."""

    neighbours: Neighbours
    coefficients: Float[Array, "samples ... c n"]

    def vector(self, factor: Any = 1.0) -> Any:
        """The sum, times a factor."""
        factor = factor / len(self.coefficients)
        return self.neighbours.weighted_score_change(self.coefficients * factor)


class LargeTerms(NamedTuple):
    r"""`Terms` if scores are too large to keep one for each sample. One vector–Jacobian product of
    the log-probability gives $G_0 + \sum_m c_m G_m$, and one for each term gives its $G_m$."""

    weights: Float[Array, "terms samples ..."]
    changes: dict[int, Change]
    """The vectors that some of the terms add, by the number of the term."""
    dist: Distribution
    x: Float[Array, "samples ..."]

    def combine(self, coefficients: Float[Array, " terms"]) -> Any:
        factors = self._factors(coefficients)
        weights = jnp.tensordot(factors, self.weights, axes=1)
        total = self.dist.weighted_score(weights / len(self.x), self.x)
        for m, change in self.changes.items():
            total = jax.tree.map(jnp.add, total, change.vector(factors[m]))
        return total

    def combine_and_products(
        self, coefficients: Float[Array, " terms"], factors: Float[Array, "..."]
    ) -> tuple[Any, Array]:
        factors = jax.lax.stop_gradient(factors)
        score = lambda weights: self.dist.weighted_score(weights / len(self.x), self.x)
        vectors = jax.vmap(score)(jax.lax.stop_gradient(self.weights) * factors)
        for m, change in self.changes.items():
            add = lambda v, c, m=m: v.at[m].add(c)
            vectors = jax.tree.map(add, vectors, change.vector(factors[..., None, None]))
        flat = [v.reshape(len(v), -1) for v in jax.tree.leaves(jax.lax.stop_gradient(vectors))]
        products = [jnp.matmul(v, v.T, precision="highest") for v in flat]
        size = 1 if self.dist.shares_parameters else math.prod(self.dist.batch_shape)
        return self.combine(coefficients), functools.reduce(operator.add, products) / size

    def _factors(self, coefficients):
        return jnp.concatenate([jnp.ones(1, coefficients.dtype), coefficients])


def make_terms(
    terms: list[tuple[Float[Array, "samples ..."], Any]], dist: Distribution, x: Array, score: Any
) -> Terms | LargeTerms:
    """The terms, each a pair as in `Terms.of`. If `score` is `None`, because it would be too large,
    the second of a pair is a `Change` or `None`."""
    if score is not None:
        return Terms.of(terms, score)
    changes = {m: change for m, (_, change) in enumerate(terms) if change is not None}
    return LargeTerms(jnp.stack([weights for weights, _ in terms]), changes, dist, x)


class Products(eqx.Module):
    r"""Moving averages of $G_m^\top G_n$, with the estimate itself, $G_0$, in the first row and
    column. They are in units of the square of f's spread, so that f may have any size."""

    matrix: Float[Array, "terms terms"]
    weight: Float[Array, ""]
    """The moving average of 1, which shows how many steps there have been."""
    log_unit: Float[Array, ""]
    """The logarithm to base 2 of the mean spread of f, the unit."""
    recent_spread: Float[Array, ""]
    """The largest spread of f in the last steps."""
    recent_square: Float[Array, ""]
    """The largest product of the estimate with itself in the last steps."""

    @classmethod
    def zero(cls, num_terms: int) -> "Products":
        # Arrays of their own, so that they can be donated.
        return cls(jnp.zeros((1 + num_terms, 1 + num_terms)), *(jnp.zeros(()) for _ in range(4)))

    def unit(self, spread: Float[Array, "..."]) -> Float[Array, ""]:
        """The spread of f in past steps or, if it is not known yet, in this step."""
        now = mean(spread)
        first = jnp.where((now > 0) & jnp.isfinite(now), now, 1)
        return jnp.where(self.matrix[0, 0] > 0, jnp.exp2(self.log_unit), first)

    def influence(
        self,
        spread: Float[Array, "..."],
        distance: Float[Array, "..."] | float = 0.0,
        middle: Float[Array, ""] | float = 0.0,
    ) -> Float[Array, "..."]:
        """A factor for each element of the batch, below 1 if its f is spread more than `LIMIT`
        units, so that one accident does not outweigh all that was learned before. The `distance`
        of f from its mean so far, `middle`, is limited in the same way, in units that include the
        mean itself."""
        unit = self.unit(spread)
        within = lambda size, limit: jnp.where(
            size > limit, limit / jnp.where(size > 0, size, 1), 1
        )
        return jnp.minimum(
            within(spread, LIMIT * unit), within(distance, LIMIT * (unit + jnp.abs(middle)))
        )

    def factors(self, spread: Float[Array, "..."], at: Evaluated, *far: Any) -> Float[Array, "..."]:
        """The factors of the batch's elements in `combine_and_products`: their `influence`, in
        units of f's spread, or 0 for those that are not sound or had an accident. (Terms that are
        made of the past would seem to be tiny beside such an f.)"""
        influence = self.influence(spread, *far)
        return at.only_sound(jnp.where(influence > ACCIDENT, influence, 0) / self.unit(spread))

    def step(
        self,
        products: Float[Array, "terms terms"],
        weight: Float[Array, ""],
        spread: Float[Array, "..."],
        decay: float = DECAY,
    ) -> "Products":
        """The new averages. `products` are in units of `unit(spread)`."""
        unit, now = self.unit(spread), mean(spread)
        # The unit is a moving average, too. No element of the batch counts more than `LIMIT`.
        growth = 1 + (1 - decay) * (mean(jnp.minimum(spread / unit, LIMIT)) - weight)
        growth = jnp.where(now > 0, growth, 1)
        # Nor does a step count that is far from the past in one of the terms alone. Such a step is
        # not the first one that a term is known from: the term would seem to be tiny ever after.
        past, new = jnp.diagonal(self.matrix), jnp.diagonal(products) * self.weight
        excess = jnp.max(jnp.where(past > 0, new / (LIMIT**2 * jnp.where(past > 0, past, 1)), 0))
        known = (past > 0) | (excess <= 1)
        products = jnp.where(known & known[:, None], products, 0) / jnp.maximum(excess, 1)
        log_unit = jnp.clip(jnp.log2(unit) + jnp.log2(growth), -LARGEST, LARGEST)
        # As long as f did not vary, the unit was not known, and the averages are of no use.
        old = jnp.where(self.matrix[0, 0] > 0, self.matrix, 0)
        recent = lambda past, new: jnp.maximum(jnp.where(now > 0, RECENT_DECAY, 1) * past, new)
        return Products(
            (decay * old + (1 - decay) * products) / growth**2,
            decay * self.weight + (1 - decay) * weight,
            log_unit,
            recent(self.recent_spread, now),
            recent(self.recent_square, products[0, 0]) / growth**2,
        )

    def coefficients(self, decay: float = DECAY, ridge: float = RIDGE) -> Float[Array, " terms"]:
        r"""The $c$ that minimise the mean square of $G_0 + \sum_m c_m G_m$; 0 in the first steps.

        Each term is scaled to mean square 1 before `ridge` is added. So a term that vanishes gets
        the coefficient 0, and terms that are linearly dependent share theirs.
        """
        gram, target = self.matrix[1:, 1:], self.matrix[1:, 0]
        square = jnp.diagonal(gram)
        present = square > 0
        scale = jnp.where(present, jax.lax.rsqrt(jnp.where(present, square, 1)), 0)
        gram = scale[:, None] * gram * scale + ridge * jnp.eye(len(gram), dtype=gram.dtype)
        c = -scale * jnp.linalg.solve(gram, scale * target)
        return jnp.where(self.weight > 1 - decay ** (WARM_UP - 0.5), c, 0)


def unless_outgrown(averages: Any, products: Products, at: Evaluated) -> Any:
    """New averages, or zeros if f has become far smaller than the old `products`.

    The estimate of this step must not depend on that: its coefficients may not see its samples.
    """
    square = products.matrix[0, 0]
    unit = jnp.where(square > 0, jnp.exp2(products.log_unit), 0)
    smaller = unit > SMALLER * products.recent_spread
    smaller = smaller | (square > SMALLER**2 * products.recent_square * products.weight)
    return unless(at.has_outgrown(unit) | smaller, averages)


def unless(forget: Bool[Array, ""], averages: Any) -> Any:
    """The same averages, or zeros if `forget`."""
    return jax.tree.map(lambda leaf: jnp.where(forget, 0, leaf), averages)


def spread_of(at: Evaluated) -> Float[Array, "..."]:
    """How far f at the samples of each element of the batch is from f at the other samples; 0 for
    elements that are not sound."""
    return at.only_sound(jnp.max(jnp.abs(leave_one_out(at.fx)), axis=0))
