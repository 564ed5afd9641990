"""RODEO: REINFORCE leave-one-out with control variates from discrete Stein operators."""

import math
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..arrays import as_index
from ..fast import leave_one_out
from ..operators import Gibbs, Operator
from ..surrogates import MLPSurrogate, Surrogate
from .base import Estimator, relative_mean_square, times_square
from .least_squares import Products, make_terms, spread_of, unless_outgrown
from .optimizers import average_or_adam
from .stein import stein_terms


class Rodeo(Estimator):
    r"""$g = \frac1K \sum_k \left[ \left(f(x_k) - \frac1{K-1} \sum_{j \ne k} \big(f(x_j) +
    \alpha (A h_j)(x_j)\big)\right) s(x_k) + \beta \, (A (h^*_k s))(x_k) \right]$.

    $A$ is a discrete Stein `operator` (default: Gibbs). $h_k$ and $h^*_k$ come from a `surrogate`
    (default: a small network) and depend on every sample but $x_k$. $\alpha$ and $\beta$ are
    learned and start at 0, which is plain RLOO. $f$ is evaluated $K$ times, and not at neighbours.

    `loo=False` removes $f(x_j)$ from the baseline, `local=False` the local control variate $\alpha
    (A h_j)(x_j)$, and `global_=False` the global control variate $\beta (A(h^*_k s))(x_k)$.

    The variance is quadratic in $\alpha$ and $\beta$. By default they are `"learned"` by gradient
    descent, as in the paper. With `coefficients="least_squares"` they solve a least-squares problem
    made of moving averages (of decay 0.99) over past steps, as in `Lariat`, without a learning
    rate. `num_samples` is $K$.

    Reference: Shi, Zhou, Hwang, Titsias, Mackey, "Gradient Estimation with Discrete Stein
    Operators", NeurIPS 2022, equation 13.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> estimator = Rodeo(num_samples=2, operator=sg.Barker())
    >>> cv = estimator.init(jax.random.key(0))
    >>> f = lambda x: -jnp.sum((x - 0.45) ** 2, axis=-1)
    >>> value, grads = estimator.value_and_grad(
    ...     f, sg.Bernoulli(jnp.zeros(5)), cv, key=jax.random.key(1))
    >>> grads.parameters.shape, grads.cv.alpha.shape
    ((5,), ())
    """

    class CV(eqx.Module):
        """The surrogate, and either α and β or the averages from which they are solved for."""

        surrogate: Any
        alpha: Float[Array, ""] | None
        beta: Float[Array, ""] | None
        products: Products | None = None

    num_samples: int = eqx.field(static=True, converter=as_index, default=2)
    operator: Operator = Gibbs()
    """The Stein operator (paper: Gibbs; ablation: Barker, MPF, Difference)."""
    surrogate: Surrogate = MLPSurrogate()
    """The surrogate for f at the neighbours (paper: MLPSurrogate)."""
    loo: bool = eqx.field(static=True, default=True)
    """Use the leave-one-out baseline (off only in the paper's ablation)."""
    local: bool = eqx.field(static=True, default=True)
    """Use the local control variate (off only in the paper's ablation)."""
    global_: bool = eqx.field(static=True, default=True)
    """Use the global control variate (off only in the paper's ablation)."""
    coefficients: Literal["learned", "least_squares"] = eqx.field(static=True, default="learned")
    """How α and β are found: learned by gradient descent (paper), or solved for by least
    squares."""
    fewest: ClassVar = (2, "because its control variates are made of the other samples")

    def __check_init__(self):
        if self.coefficients not in ("learned", "least_squares"):
            raise ValueError(
                "Rodeo needs coefficients='learned' or 'least_squares', but was given "
                f"{self.coefficients!r}."
            )

    @property
    def needs_gradient(self):
        return (self.local or self.global_) and self.surrogate.needs_gradient

    @property
    def cv_is_quadratic(self):
        return self.coefficients == "learned"

    @property
    def cancels_constant(self):
        # The Stein terms have mean zero, whatever constant vector is added to the score.
        return self.loo

    def num_evaluations(self, dist):
        if not self.surrogate.needs_objective:
            return self.num_samples
        index = jnp.zeros((*dist.batch_shape, dist.num_coordinates), jnp.int32)
        weights = jax.eval_shape(
            lambda key: self.operator.neighbours(dist, dist.state(index), key=key).weights,
            jax.random.key(0),
        )
        return self.num_samples * (1 + math.prod(weights.shape[-2:]))

    def init(self, key, dist=None):
        surrogate = self.surrogate.init(key)
        if self.coefficients == "learned":
            return self.CV(surrogate, jnp.zeros(()), jnp.zeros(()))
        return self.CV(surrogate, None, None, Products.zero(self.local + self.global_))

    def cv_optimizer(self, learning_rate):
        if self.coefficients == "learned":
            return super().cv_optimizer(learning_rate)
        return average_or_adam(learning_rate, lambda cv: cv.products)

    def gradient(self, cv, dist, at):
        coefficients = self._coefficients(cv)
        return self._terms(cv, dist, at).combine(coefficients)

    def adapt(self, cv, dist, at):
        if self.coefficients == "learned":
            return super().adapt(cv, dist, at)

        @eqx.filter_grad(has_aux=True)
        def mean_square(surrogate):
            terms = self._terms(self.CV(surrogate, None, None), dist, at)
            grad, products = terms.combine_and_products(self._coefficients(cv), factors)
            square, unit = relative_mean_square(grad, dist, at)
            return square, (grad, unit, products)

        spread = spread_of(at)
        factors = cv.products.factors(spread, at)
        surrogate, (grad, unit, products) = mean_square(cv.surrogate)
        following = cv.products.step(products, at.sound_share, spread)
        following = unless_outgrown(following, cv.products, at)
        step = jax.tree.map(jnp.subtract, cv.products, following)
        return grad, self.CV(times_square(surrogate, unit), None, None, step)

    def _coefficients(self, cv):
        if self.coefficients == "least_squares":
            return cv.products.coefficients()
        used = [cv.alpha] * self.local + [cv.beta] * self.global_
        return jnp.stack(used) if used else jnp.zeros(0)

    def _terms(self, cv, dist, at):
        """The RLOO term, and the control variates that α and β multiply."""
        fx, score = at.fx, None if dist.large_scores else dist.score(at.x)
        terms: list = [(leave_one_out(fx) if self.loo else fx, None)]
        if self.local or self.global_:
            local, global_ = stein_terms(
                self.operator, self.surrogate, cv.surrogate, dist, at, score
            )
            terms += [local] * self.local + [global_] * self.global_
        return make_terms(terms, dist, at.x, score)
