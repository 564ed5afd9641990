"""RODEO: REINFORCE leave-one-out with control variates from discrete Stein operators."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import estimators as sg
from .. import stein, surrogates
from ..arrays import leave_one_out, pack
from ..derivatives import derivative
from ..evaluated import Evaluated
from ..least_squares import Products, Terms, spread_of, unless_outgrown
from ..module import Estimator, relative_mean_square, times_square
from ..optimizers import Adam


class Rodeo(Estimator):
    """`steingrad.Rodeo(num_samples=2, operator=Gibbs(), surrogate=MLPSurrogate(), loo=True,
    local=True, global_=True, coefficients="learned")`. In PyTorch the operator is `Gibbs`, and the
    surrogate is an `MLPSurrogate`, a `PooledSurrogate` or a `LinearSurrogate`.

    >>> import torch, steingrad.torch as sgt
    >>> logits, estimator = torch.zeros(3, requires_grad=True), sgt.Rodeo(2)
    >>> estimator(lambda x: x.sum(-1) ** 2, logits).backward()
    >>> estimator.cv.surrogate["w_in"].shape
    torch.Size([2, 100])
    """

    class CV(NamedTuple):
        """The surrogate, and either α and β or the averages from which they are solved for."""

        surrogate: Any
        alpha: Tensor | None
        beta: Tensor | None
        products: Products | None = None

    kind = sg.Rodeo

    def check_settings(self):
        stein.check("Rodeo", self.estimator.operator, self.estimator.surrogate)

    def init(self, dist, seed):
        surrogate = surrogates.init(self.estimator.surrogate, seed)
        if self.estimator.coefficients == "learned":
            return self.CV(surrogate, torch.zeros(()), torch.zeros(()))
        count = self.estimator.local + self.estimator.global_
        return self.CV(surrogate, None, None, Products.zero(count))

    def cv_optimizer(self, cv):
        if self.estimator.coefficients == "learned":
            return super().cv_optimizer(cv)
        return Adam(cv, self.cv_learning_rate, learned=cv.surrogate)

    def gradient(self, cv, dist, at):
        return self._terms(cv, dist, at).combine(self._coefficients(cv, at))

    def adapt(self, cv, dist, at):
        if self.estimator.coefficients == "learned":
            return super().adapt(cv, dist, at)
        spread = spread_of(at)
        scale = cv.products.unit(spread)
        factors = cv.products.factors(spread, scale, at)

        def mean_square(surrogate):
            terms = self._terms(self.CV(surrogate, None, None), dist, at)
            grad = terms.combine(self._coefficients(cv, at))
            square, unit = relative_mean_square(grad, at)
            return square, (grad, unit, terms.products(factors))

        surrogate, (grad, unit, products) = derivative(mean_square, cv.surrogate)
        following = cv.products.step(products, at.sound_share, spread, scale)
        # Of one vector of all averages, so that each operation is done once.
        step = pack(cv.products) - unless_outgrown(pack(following), cv.products, at)
        return grad, self.CV(times_square(surrogate, unit), None, None, step)

    def _coefficients(self, cv: Any, at: Evaluated) -> Tensor:
        if self.estimator.coefficients == "least_squares":
            return cv.products.coefficients()
        used = [cv.alpha] * self.estimator.local + [cv.beta] * self.estimator.global_
        return torch.stack(used) if used else at.fx.new_zeros(0)

    def _terms(self, cv: Any, dist: Any, at: Evaluated) -> Terms:
        """The RLOO term, and the control variates that α and β multiply."""
        own, score = self.estimator, dist.score(at.x)
        terms: list = [(leave_one_out(at.fx) if own.loo else at.fx, None)]
        if own.local or own.global_:
            local, global_ = stein.stein_terms(
                own.operator, own.surrogate, cv.surrogate, dist, at, score
            )
            terms += [local] * own.local + [global_] * own.global_
        return Terms.of(terms, score)
