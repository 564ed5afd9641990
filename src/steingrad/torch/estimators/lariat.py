"""Lariat: REINFORCE leave-one-out with control variates whose coefficients are solved for."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ... import estimators as sg
from ...estimators.lariat import SHRINK
from .. import stein, surrogates
from ..arrays import expand, inner, leave_one_out, mean_of_others, pack, power_of_two, tree_map
from ..derivatives import derivative
from ..evaluated import Evaluated
from ..least_squares import Products, Terms, spread_of, unless_outgrown
from ..module import Estimator, relative_mean_square, times_square
from ..optimizers import Adam


class Averages(NamedTuple):
    """Moving averages over past steps."""

    products: Products
    value: Tensor
    memory: tuple[Tensor, Tensor] | None


class Lariat(Estimator):
    """`steingrad.Lariat(num_samples=2, values=True, gradients=True, weighted=False, memory=None,
    context_size=0, hidden=0, surrogate=None, operator=Gibbs(), decay=0.99, ridge=1e-4)`.

    >>> import torch, steingrad.torch as sgt
    >>> logits, estimator = torch.zeros(3, requires_grad=True), sgt.Lariat(3)
    >>> estimator(lambda x: x.sum(-1) ** 2, logits).backward()
    >>> estimator.cv.averages.products.matrix.shape
    torch.Size([6, 6])
    """

    class CV(NamedTuple):
        """The averages, and what is learned by descent: the context's network and the surrogate."""

        averages: Averages
        context: dict[str, Tensor] | None
        surrogate: Any

    kind = sg.Lariat

    def check_settings(self):
        if self.estimator.surrogate is not None:
            stein.check("Lariat", self.estimator.operator, self.estimator.surrogate)

    def init(self, dist, seed):
        memory = context = surrogate = None
        if self.estimator._remembers:
            memory = torch.zeros(dist.state_shape), torch.zeros(dist.state_shape)
        if self.estimator.context_size:
            context = self._init_context(dist, seed)
        if self.estimator.surrogate is not None:
            surrogate = surrogates.init(self.estimator.surrogate, seed)
        products = Products.zero(self.estimator.num_terms)
        return self.CV(Averages(products, torch.zeros(()), memory), context, surrogate)

    def cv_optimizer(self, cv):
        return Adam(cv, self.cv_learning_rate, learned=(cv.context, cv.surrogate))

    def gradient(self, cv, dist, at):
        return self._terms(cv, dist, at).combine(self._coefficients(cv))

    def adapt(self, cv, dist, at):
        own, past = self.estimator, cv.averages.products
        spread, context, surrogate = spread_of(at), None, None
        scale = past.unit(spread)
        # If all samples of an element are equal, an accident shows in its distance, not its spread.
        middle = self._value(cv, at)
        far = (at.fx - middle).abs().amax(0), middle
        factors, coefficients = past.factors(spread, scale, at, *far), self._coefficients(cv)
        if own.context_size == 0 and cv.surrogate is None:
            terms = self._terms(cv, dist, at)
            grad, products = terms.combine(coefficients), terms.products(factors)
        else:

            def loss(learned):
                context, surrogate = learned
                fixed = tree_map(Tensor.detach, context)
                terms = self._terms(self.CV(cv.averages, fixed, surrogate), dist, at)
                grad = terms.combine(coefficients)
                square, unit = relative_mean_square(grad, at)
                fit = self._context_loss(context, cv, dist, at) if own.context_size else 0.0
                return square + fit, (grad, unit, terms.products(factors))

            learned, (grad, unit, products) = derivative(loss, (cv.context, cv.surrogate))
            context = times_square(learned[0], power_of_two(scale))
            surrogate = times_square(learned[1], unit)
        weight, influence = at.sound_share, at.only_sound(past.influence(spread, scale, *far))
        value = weight * middle + (influence * (at.fx - middle)).mean()
        memory = None
        if own._remembers:
            of_sound = expand(at.only_sound(torch.ones_like(influence)), at.fx.ndim - 1)
            of_sound = expand(of_sound, of_sound.ndim + dist.state_axes)
            slope, variance = dist.slope(expand(influence, grad.ndim) * grad)
            if own.gradients:
                slope, variance = expand(influence, grad.ndim) * at.dfx, torch.ones_like(at.dfx)
            batch = lambda v: v.reshape(-1, *dist.state_shape).mean(0)
            memory = batch(slope), batch(variance * of_sound)
        average = lambda old, new: own.decay * old + (1 - own.decay) * new
        following = Averages(
            past.step(products, weight, spread, scale, own.decay),
            average(cv.averages.value, value),
            tree_map(average, cv.averages.memory, memory),
        )
        size = cv.averages.value / past.weight.clamp(min=1 - own.decay)
        forget = at.has_outgrown(size)
        # Of one vector of all averages, so that each operation is done once.
        following = unless_outgrown(torch.where(forget, 0, pack(following)), past, at)
        return grad, self.CV(pack(cv.averages) - following, context, surrogate)

    def _coefficients(self, cv: Any) -> Tensor:
        return cv.averages.products.coefficients(self.estimator.decay, self.estimator.ridge)

    def _terms(self, cv: Any, dist: Any, at: Evaluated) -> Terms:
        own, fx, score = self.estimator, at.fx, dist.score(at.x)
        # Each term is a pair: the weights of the K scores, and a vector that is added, if any.
        terms: list = [(leave_one_out(fx), None)]
        if own.values:
            # In units of f's spread the offset is like the other terms, which are linear in f.
            offset = -cv.averages.products.unit(spread_of(at)) * torch.ones_like(fx)
            terms += [(offset, None), (self._value(cv, at) - mean_of_others(fx), None)]
        if own._needs_mean:
            terms += self._linear_terms(cv, dist, at)
        if own.surrogate is not None:
            terms += stein.stein_terms(own.operator, own.surrogate, cv.surrogate, dist, at, score)
        return Terms.of(terms, score)

    def _linear_terms(self, cv: Any, dist: Any, at: Evaluated) -> list:
        own, mean, axes = self.estimator, dist.mean, dist.state_axes
        centred = dist.one_hot(at.x) - mean
        terms: list = []

        def linear(v, v_others, v_mean):
            """Add the two terms of a linear model with slope v."""
            pulled = dist.pull_mean(v_mean.expand(mean.shape))
            terms.append((-inner(v_others, centred, axes), pulled))
            terms.append((inner(v, mean_of_others(centred), axes), None))

        if own.gradients:
            slopes = [at.dfx, centred.abs() * at.dfx] if own.weighted else [at.dfx]
            for v in slopes:
                terms.append((mean_of_others(inner(v, centred, axes)), None))  # −τ₋ₖ
                linear(v, mean_of_others(v), v.mean(0))
        if own._remembers:
            memory = self._memory(cv)
            linear(memory, memory, memory)
        if own.context_size:
            baseline, slope = self._context(cv.context, dist, at)
            terms.append((-torch.ones_like(at.fx) * baseline, None))
            linear(slope, slope, slope)
        return terms

    def _value(self, cv: Any, at: Evaluated) -> Tensor:
        """The mean of f over past steps; at the first step, over the samples of this step."""
        weight, share = cv.averages.products.weight, at.sound_share
        past = cv.averages.value / torch.where(weight > 0, weight, 1)
        now = at.fx.mean() / torch.where(share > 0, share, 1)
        return torch.where(weight > 0, past, now)

    def _memory(self, cv: Any) -> Tensor:
        slope, variance = cv.averages.memory
        total = variance + SHRINK * cv.averages.products.weight
        return slope / torch.where(total > 0, total, 1)

    def _init_context(self, dist: Any, seed: Any) -> dict[str, Tensor]:
        outputs, inputs = 1 + math.prod(dist.state_shape), self.estimator.context_size
        maps = {}
        if self.estimator.hidden:
            hidden = self.estimator.hidden
            maps = {"w_in": seed.glorot(inputs, hidden)}
            maps["b_in"], inputs = torch.zeros(hidden), hidden
        maps |= {"w_out": torch.zeros(inputs, outputs), "b_out": torch.zeros(outputs)}
        return {name: maps[name] for name in sorted(maps)}

    def _context(self, maps: Any, dist: Any, at: Evaluated) -> tuple[Tensor, Tensor]:
        """A baseline and a slope for each element of the batch."""
        size = self.estimator.context_size
        if at.context is None or tuple(at.context.shape) != (*dist.batch_shape, size):
            given = None if at.context is None else tuple(at.context.shape)
            raise ValueError(
                f"Lariat(context_size={size}) needs a context of shape "
                f"{(*dist.batch_shape, size)}, but was given {given}."
            )
        inputs = at.context
        if self.estimator.hidden:
            inputs = nn.functional.leaky_relu(inputs @ maps["w_in"] + maps["b_in"])
        outputs = inputs @ maps["w_out"] + maps["b_out"]
        return outputs[..., 0], outputs[..., 1:].reshape(*dist.batch_shape, *dist.state_shape)

    def _context_loss(self, maps: Any, cv: Any, dist: Any, at: Evaluated) -> Tensor:
        """The mean squared error of the linear model, in f and in its gradient, in units of f's
        spread."""
        baseline, slope = self._context(maps, dist, at)
        centred, axes = dist.one_hot(at.x) - dist.mean, dist.state_axes
        unit = power_of_two(cv.averages.products.unit(spread_of(at)))
        residual, misfit = at.fx - self._value(cv, at) - baseline, 0
        if self.estimator.gradients:
            error = centred * (at.dfx - slope) / unit
            misfit = inner(error, error, axes)
        else:
            residual = residual - inner(slope, centred, axes)
        return at.only_sound((residual / unit) ** 2 + misfit).mean()
