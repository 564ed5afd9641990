"""Bronco: straight-through, corrected by a random flip."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import estimators as sg
from ...estimators.bronco import (
    DISTANT,
    FAR,
    FAST_SAMPLES,
    FAST_STEPS,
    GROWTH,
    JUMP,
    UNUSUAL,
    default_flips,
)
from ..arrays import TINY, expand, pack, tree_map, unpack
from ..blend import blend
from ..evaluated import Evaluated
from ..flip_regression import ERROR, coefficients, relative_errors, sums_by_coordinate
from ..least_squares import Products, unless_outgrown
from ..module import Estimator
from ..optimizers import Optimizer
from ..value_tables import ValueTables, kept


class Guess(NamedTuple):
    """Predictions for all neighbours of a sample."""

    flips: Any
    """The neighbours, with one coordinate changed."""
    linear: Tensor
    """The first-order change of f."""
    value: Tensor
    """f at the sample, relative to past values."""
    scale: Tensor
    """The typical size of a change of f, the unit of the sums; 0 if it is not known yet."""
    change: Tensor
    """The guess of f(y) − f(x)."""
    residual: Tensor | None
    """The part of the guess that comes from the tables of values, in units of the scale."""
    weight: Tensor
    """The coefficient a of the slope in the guess."""
    slope: Tensor
    """The first-order model of f: its gradient, or the mean effect of each coordinate."""


class Bronco(Estimator):
    """`steingrad.Bronco(num_samples=1, flips=None, memory=100.0, uniform=0.1, use_gradient=True)`.

    The flips are drawn, and f is evaluated at them, in the forward pass.

    >>> import torch, steingrad.torch as sgt
    >>> estimator = sgt.Bronco(event_shape=(200,))
    >>> logits = torch.zeros(8, 200, requires_grad=True)
    >>> estimator(lambda x: x.sum(-1) ** 2, logits).backward()
    >>> estimator.cv.cross.shape
    torch.Size([200, 3])
    """

    class CV(NamedTuple):
        """Sums over past flips, of which older ones count less; see `steingrad.Bronco`."""

        gram: Tensor
        cross: Tensor
        error: Tensor
        size: Tensor
        flips: Tensor
        change: Tensor
        value: Tensor
        deviation: Tensor
        steps: Tensor
        effect: Tensor | None
        tables: ValueTables | None
        products: Products

    kind = sg.Bronco

    def init(self, dist, seed):
        d, m = dist.flip_shape
        effect = None if self.estimator.use_gradient else torch.zeros(d, m, 2)
        moments = torch.zeros(d, 3, 3), torch.zeros(d, 3), torch.zeros(d), torch.zeros(d)
        zero = torch.zeros(())
        rest: Any = (zero, zero, zero, zero, zero, effect, ValueTables.zero(d, m), Products.zero(2))
        return self.CV(*moments, *rest)

    def cv_optimizer(self, cv):
        return Optimizer(cv)

    def num_memos(self, dist):
        return 2 if dist.is_product else 3

    def num_further(self, dist):
        flips = self.estimator.flips
        return default_flips(math.prod(dist.slot_shape)) if flips is None else flips

    def noise(self, dist, generator):
        shape = (self.num_memos(dist), 1, self.num_samples, *dist.batch_shape)
        logits = dist.logits
        return torch.rand(shape, dtype=logits.dtype, device=logits.device, generator=generator)

    def is_sound(self, dist, at):
        # The gradient of f only enters the guess.
        return at.fx.isfinite().all(0)

    def past(self, cv: Any, at: Evaluated) -> Any:
        """The sums, or zeros if f has become far smaller than it was."""
        forget = at.has_outgrown(cv.change / (cv.steps + TINY))
        # Of one vector of all sums, so that the operation is done once.
        return unpack(tree_map(lambda leaf: leaf.shape, cv), torch.where(forget, 0, pack(cv)))

    def propose(self, cv, dist, at):
        """Draw the neighbours at which to evaluate f. The memo is the slots, their π, and the
        partners that change with them in a `Subset`. The uniform numbers are evenly spaced, so that
        two flips of a sample are seldom the same."""
        cv, flips = self.past(cv, at), dist.flips(at.x)
        of_coordinates = relative_errors(cv.error, cv.size, cv.flips)
        of_values = None if cv.tables is None else cv.tables.importance(one_flip(cv))
        count = self.num_further(dist)
        spaced = torch.arange(count, dtype=at.fx.dtype, device=at.fx.device) / count
        uniforms = (at.noise + expand(spaced, at.fx.ndim + 1)) % 1
        slots, probability = flips.choose(
            of_coordinates, of_values, uniforms, self.estimator.uniform
        )
        memo = slots.to(probability.dtype), probability
        if dist.is_product:
            return flips.moved(slots), memo
        partners = flips.draw_partners(slots, uniforms[2])
        return flips.moved(slots, partners), (*memo, partners.to(probability.dtype))

    def gradient(self, cv, dist, at):
        guess = self.guess(self.past(cv, at), dist, at)
        return self.blended(cv, dist, at, guess, False)[0]

    def adapt(self, cv, dist, at):
        past = self.past(cv, at)
        guess = self.guess(past, dist, at)
        grad, products = self.blended(cv, dist, at, guess, True)
        following = self.learn(past, dist, at, guess)
        # A step that forgets learns nothing: beside sums that were too large, what it would add is
        # lost to rounding in some of them, and not in others.
        forget = at.has_outgrown(cv.change / (cv.steps + TINY))
        learned = torch.where(forget, 0, pack(following._replace(products=None)))
        return grad, pack(cv) - torch.cat([learned, products])  # the products are packed already

    def blended(self, cv: Any, dist: Any, at: Evaluated, guess: Guess, learn: bool) -> tuple:
        """The estimate, blended with the score-function estimate, and the averages for the next
        step. Its coefficients and its baseline depend on past steps alone."""
        baseline = cv.value / (cv.steps + TINY)
        grad, following = blend(corrected(at, guess), cv.products, baseline, dist, at, learn)
        if following is None:
            return grad, None
        # In the first step there is no baseline, so nothing can be learned.
        past = pack(cv.products)
        following = torch.where(cv.steps > 0, pack(following), past)
        return grad, unless_outgrown(following, cv.products, at)

    def guess(self, cv: Any, dist: Any, at: Evaluated) -> Guess:
        """Predict the changes of f at the neighbours from the samples and from past flips; `cv` is
        the result of `past`."""
        flips, scale = dist.flips(at.x), cv.change / (cv.steps + TINY)
        if self.estimator.use_gradient:
            # A slope that is not finite tells nothing. Any guess leaves the estimate unbiased.
            dfx = at.dfx.nan_to_num(0.0, 0.0, 0.0)
            # Values of probability 0 must not enter the scale.
            linear = torch.where(flips.conditional > 0, flips.first_order(dfx), 0)
            now = linear.abs().sum() / (at.fx.numel() * math.prod(dist.slot_shape))
            scale = torch.where(now > JUMP * scale, now, scale)
        else:
            number = cv.effect[..., 1] + ERROR * cv.effect[..., 1].mean() + TINY
            effect = cv.effect[..., 0] / number
            linear, dfx = flips.by_effect(effect), effect[:, 1] - effect[:, 0]
            linear = torch.where(flips.conditional > 0, linear, 0)
        mean, deviation = cv.value / (cv.steps + TINY), cv.deviation / (cv.steps + TINY)
        value = (at.fx - mean) / torch.where(deviation > 0, deviation, 1)
        value = torch.where(deviation > 0, value.clamp(-5, 5), 0)
        # With the gradient, the first guess is straight-through. Without it, the first guess is 0.
        first = torch.zeros_like(cv.cross[0])
        first[0] = 1.0 if self.estimator.use_gradient else 0.0
        in_units = linear / torch.where(scale > 0, scale, 1)
        a, b, c = coefficients(cv.gram, cv.cross, cv.flips, first).unbind(-1)
        a, b, c = flips.spread(a), flips.spread(scale * b), flips.spread(scale * c)
        change = a * linear + (b + c * expand(value, linear.ndim))
        residual = None
        if cv.tables is not None:
            residual = cv.tables.change(at.x, one_flip(cv))
            change = change + scale * residual
        return Guess(flips, in_units, value, scale, change, residual, a.expand(change.shape), dfx)

    def learn(self, cv: Any, dist: Any, at: Evaluated, guess: Guess) -> Any:
        """The sums with this step's flips added."""
        (d, m), flips = dist.flip_shape, guess.flips
        slots, probability = at.memo[0].long(), at.memo[1]
        known = lambda array: flips.at_slots(array, slots)
        change, mean_change, further = changes(at, guess, slots)
        sound = change.isfinite() if at.sound is None else change.isfinite() & at.sound
        if self.estimator.use_gradient:
            sound = sound & flips.first_order_at(at.dfx, slots).isfinite()
        change, mean_change = (torch.where(sound, c, 0) for c in (change, mean_change))
        seen, share = change.abs().mean(), sound.to(change.dtype).mean()
        scale = torch.where(guess.scale > 0, guess.scale, torch.where(seen > 0, seen, 1))
        slope = known(guess.linear) + further / scale
        change = change / scale
        # Divided by π, sums over the flips estimate sums over all neighbours.
        count = math.prod(dist.slot_shape)
        weight = known(flips.size.expand(guess.change.shape)) ** 2 / (probability * count)
        unusual = torch.maximum(change.abs(), slope.abs()) / UNUSUAL
        weight = torch.where(sound, weight / unusual.clamp(min=1) ** 2, 0)
        missed = (mean_change - known(guess.change)) / scale
        usual = cv.error.sum() / (cv.size.sum() + TINY)
        error = torch.where(sound, missed**2, 0)
        error = torch.where(usual > 0, torch.minimum(error, FAR * usual), error)
        # The coefficients are fitted to what the tables leave, and the tables to what these leave.
        regressed = change if guess.residual is None else change - known(guess.residual)
        one = torch.ones_like(slope)
        features = torch.stack([slope, one, guess.value.expand(slope.shape)], -1)
        weighted = weight[..., None] * features
        coordinates = flips.coordinate_of(slots)
        sums = sums_by_coordinate(
            d,
            coordinates,
            {
                "gram": weighted[..., :, None] * features[..., None, :],
                "cross": weighted * regressed[..., None],
                "error": weight * error,
                "size": weight,
            },
        )
        here, there = flips.here(slots), flips.there(slots)
        tables = None
        if cv.tables is not None:
            bound = error.sqrt()
            missed = torch.where(sound, missed, 0).clamp(-bound, bound)
            tables = cv.tables.learn(coordinates, here, there, missed, error, weight, one_flip(cv))
        effect, slow = None, kept(slots.numel(), self.estimator.memory * d)
        if cv.effect is not None:
            moved = change * scale
            rows = lambda sign: torch.stack([sign * weight * moved, weight], -1).reshape(-1, 2)
            flat = (slow * cv.effect).reshape(-1, 2)
            flat = flat.index_add(0, (coordinates * m + there).reshape(-1), rows(1))
            flat = flat.index_add(0, (coordinates * m + here).reshape(-1), rows(-1))
            effect = flat.reshape(cv.effect.shape)
        sums["flips"] = share * slots.numel()
        of_flips = {name: slow * getattr(cv, name) + new for name, new in sums.items()}
        rest = {"effect": effect, "tables": tables, "products": cv.products}
        return self.CV(**of_flips, **sums_of_values(cv, at, seen), **rest)


def sums_of_values(cv: Any, at: Evaluated, seen: Tensor) -> dict[str, Tensor]:
    """The sums over steps with this step added, where `seen` is its mean absolute change of f."""
    # The usual distance of f from its mean bounds how far one step can move the mean.
    middle, usual = cv.value / (cv.steps + TINY), cv.deviation / (cv.steps + TINY)
    off = at.only_sound(at.fx - middle).mean()
    bound = DISTANT * usual
    off = torch.where(usual > 0, torch.minimum(torch.maximum(off, -bound), bound), off)
    deviation = at.only_sound((at.fx - middle).abs()).mean()
    new = {
        "change": at_most(seen, cv.change),
        "value": at.sound_share * middle + off,
        "deviation": torch.where(cv.steps > 0, at_most(deviation, cv.deviation), 0),
        "steps": at.sound_share,
    }
    fast = 1 - min(1 / FAST_STEPS, at.fx.numel() / FAST_SAMPLES)
    return {name: fast * getattr(cv, name) + added for name, added in new.items()}


def one_flip(cv: Any) -> Tensor:
    """The mean weight of a past flip."""
    return cv.size.sum() / (cv.flips + TINY)


def at_most(new: Tensor, past: Tensor) -> Tensor:
    """What a step adds to a sum, which grows by at most the factor 1 + GROWTH once it is known."""
    return torch.where(past > 0, torch.minimum(new, GROWTH * past), new)


def corrected(at: Evaluated, guess: Guess) -> Tensor:
    """The local expectation gradient of the guess plus its errors at the flips, divided by π."""
    slots, probability, flips = at.memo[0].long(), at.memo[1], guess.flips
    missed = changes(at, guess, slots)[1] - flips.at_slots(guess.change, slots)
    terms = missed / (probability * len(slots))
    return flips.local_gradient(flips.add_at_slots(guess.change, slots, terms))


def changes(at: Evaluated, guess: Guess, slots: Tensor) -> tuple[Tensor, Tensor, Any]:
    """Returns f(y) − f(x); the same difference with the randomness of the partner's slope removed;
    and by how much the first-order change exceeds the one that the guess used.

    For a flip to a value of probability 0 the change is 0, even if f is infinite there.
    """
    possible = guess.flips.at_slots(guess.flips.conditional.expand(guess.change.shape), slots)
    change = torch.where(possible == 0, 0, at.fy - at.fx)
    if len(at.memo) == 2:
        return change, change, 0.0
    further, chance = guess.flips.by_chance(slots, at.memo[2].long(), guess.slope)
    return change, change - guess.flips.at_slots(guess.weight, slots) * chance, further
