"""Subsets of exactly k of d elements: independent bits, given their sum."""

from typing import Any

import torch
from torch import Tensor

from ..distributions.swaps import LOG_ZERO
from .derivatives import slope_of
from .distributions import Law, uniform
from .flips import Flips, position

ALMOST_ZERO = 1e-30


class Subset(Law):
    """Exactly k of d elements, as in a router that chooses k experts: `steingrad.Subset`.

    `logits` has shape `[*batch, d]`, and f gets k ones and d − k zeros. An element is a member with
    a probability that grows with its logit. A constant added to all logits changes nothing.

    >>> import torch, steingrad.torch as sgt
    >>> logits = torch.zeros(4, 8, requires_grad=True)
    >>> sgt.Bronco()(lambda x: (x[..., :2]).sum(-1), sgt.Subset(logits, k=2)).backward()
    >>> logits.grad.shape
    torch.Size([4, 8])
    """

    num_values = 2
    is_product = False
    relaxable = False

    def __init__(self, logits: Tensor, k: int, event_shape: tuple[int, ...] | None = None):
        if not (isinstance(logits, Tensor) and logits.is_floating_point() and logits.ndim):
            raise TypeError(
                "Subset takes logits as a floating-point tensor of shape [..., d], but was given "
                f"{getattr(logits, 'dtype', type(logits).__name__)}."
            )
        d = logits.shape[-1]
        if not isinstance(k, int) or not 1 <= k < d:
            raise ValueError(
                f"Subset needs a whole k from 1 to d − 1 = {d - 1}, with logits of shape "
                f"{tuple(logits.shape)}, but was given k={k!r}."
            )
        super().__init__(logits, event_shape)
        self.k = k
        self._chained: tuple[Tensor, Tensor] | None = None
        self._mean: Tensor | None = None

    def settings(self):
        return (self.k,)

    def draw(self, count, generator=None):
        log_odds, d = self._chain()[0], self.num_coordinates
        u = uniform((count, *self.logits.shape), self.logits, generator)
        noise = u.log() - torch.log1p(-u)
        missing = torch.full(noise.shape[:-1], self.k, dtype=torch.int64, device=u.device)
        members = []
        for i in reversed(range(d)):
            odds = log_odds[i].expand(*missing.shape, self.k + 1)
            member = noise[..., i] < odds.gather(-1, missing[..., None])[..., 0]
            missing = missing - member.long()
            members.append(member)
        return torch.stack(members[::-1], -1).to(self.logits.dtype)

    def score(self, x):
        return x - self.mean

    @property
    def mean(self) -> Tensor:
        """The probability that each element is a member."""
        if self._mean is None:
            include = self.inclusion
            missing = torch.zeros_like(include[0])
            missing[..., -1] = 1
            means = []
            for i in reversed(range(self.num_coordinates)):
                member = missing * include[i]  # P(r are missing and the element is a member)
                after = torch.cat([member[..., 1:], torch.zeros_like(member[..., :1])], -1)
                missing = missing - member + after
                means.append(member.sum(-1))
            self._mean = torch.stack(means[::-1], -1).clamp(0, 1)
        return self._mean

    def pull_mean(self, v):
        def product(logits):
            mean = self.with_logits(logits).mean
            return (v * mean).sum(), mean

        return slope_of(product, self.logits)[0]

    def flips(self, x):
        return Swaps(self, x)

    @property
    def inclusion(self) -> Tensor:
        """The probability that an element is a member, given the elements after it, if r = 0 … k
        members are still missing among this element and those before it: `[d, *batch, k + 1]`."""
        return torch.sigmoid(self._chain()[0])

    def _chain(self) -> tuple[Tensor, Tensor]:
        """The logits of `inclusion`, and the logarithm of the normalising constant."""
        if self._chained is None:
            d, logits = self.num_coordinates, self.logits.clamp(min=LOG_ZERO)
            # Minus a constant with which k of the logits are about 0 or above.
            above = logits.detach().sort(-1).values[..., d - self.k, None]
            logits = (logits - above).clamp(min=LOG_ZERO)[..., None]
            below = torch.full_like(
                logits[..., 0, :].expand(*self.batch_shape, self.k + 1), LOG_ZERO
            )
            below = torch.cat([torch.zeros_like(below[..., :1]), below[..., 1:]], -1)
            found = []
            for logit in logits.unbind(-2):
                first = torch.full_like(below[..., :1], LOG_ZERO)
                less = torch.cat([first, below[..., :-1]], -1)
                # If those before the element cannot be as many as are missing, it is a member.
                needed = (below < LOG_ZERO / 2) & (logit > LOG_ZERO / 2)
                found.append(torch.where(needed, -LOG_ZERO, logit + less - below))
                below = torch.logaddexp(below, logit + less)
            self._chained = torch.stack(found), below[..., -1]
        return self._chained


class Swaps(Flips):
    """Changes of one bit of a `Subset` and of a random partner, which keep the number of ones; see
    `steingrad.distributions.swaps`."""

    slot_axes = 1

    def __init__(self, dist: Any, x: Tensor):
        super().__init__(dist, x)
        self.mean, self.member = dist.mean, x > 0.5
        self.conditional = torch.where(self.member, 1 - self.mean, self.mean)

    @property
    def size(self) -> Tensor:
        return self.mean * (1 - self.mean)

    def spread(self, numbers):
        return numbers

    def choose(self, of_coordinates, of_values, uniforms, share):
        d, importance = self.mean.shape[-1], self.size * of_coordinates
        total = importance.sum(-1, keepdim=True)
        equal = torch.full_like(importance, 1 / d)
        proportional = importance / total.clamp(min=ALMOST_ZERO)
        proportional = torch.where(total > ALMOST_ZERO, proportional, equal)
        probability = ((1 - share) * proportional + share / d).expand(self.x.shape)
        slots = position(probability, uniforms[1])
        return slots, self.at_slots(probability, slots)

    def draw_partners(self, slots: Tensor, uniforms: Tensor) -> Tensor:
        """The elements that change together with these bits."""
        chances = self.chances(slots)
        # `position` is given one axis of probabilities for each slot.
        partners = position(chances, uniforms)
        # A bit that cannot change is its own partner, and stays.
        return torch.where(chances.sum(-1) > 0, partners, slots)

    def coordinate_of(self, slots):
        return slots

    def here(self, slots):
        return self.at_slots(self.x, slots).long()

    def there(self, slots):
        return 1 - self.here(slots)

    def moved(self, slots, partners=None):
        assert partners is not None
        elements = torch.arange(self.mean.shape[-1], device=slots.device)
        moved = (elements == slots[..., None]) ^ (elements == partners[..., None])
        return torch.where(moved, 1 - self.x, self.x)

    def first_order(self, gradient):
        # An average over partners, as if the partner did not depend on the bit.
        gradient = self._of_members(gradient)
        entering = torch.where(self.member, 0, self.mean)
        leaving = torch.where(self.member, 1 - self.mean, 0)
        mean_of = lambda w: (
            (w * gradient).sum(-1, keepdim=True) / (w.sum(-1, keepdim=True) + ALMOST_ZERO)
        )
        return torch.where(self.member, mean_of(entering) - gradient, gradient - mean_of(leaving))

    def by_effect(self, effect):
        return self.first_order((effect[:, 1] - effect[:, 0]).expand(self.x.shape))

    def local_gradient(self, change):
        sign = 1 - 2 * self.x
        return self.size * (sign * change).mean(0)

    def by_chance(self, slots: Tensor, partners: Tensor, gradient: Tensor) -> tuple:
        """The first-order change with these partners, minus `first_order`, and minus its mean over
        all partners."""
        gradient = self._of_members(gradient)
        sign = 2 * self.at_slots(self.x, slots) - 1
        partner = self.at_slots(gradient, partners)
        change = sign * (partner - self.at_slots(gradient, slots))
        expected = (self.chances(slots) * gradient).sum(-1)
        guessed = self.at_slots(self.first_order(gradient), slots)
        return change - guessed, sign * (partner - expected)

    def _of_members(self, gradient: Tensor) -> Tensor:
        # Elements that are never members get 0, because the gradient may be infinite there.
        return torch.where(self.mean > 0, gradient, 0).expand(self.x.shape)

    def chances(self, slots: Tensor) -> Tensor:
        """The probability that each element is the partner of these bits; see
        `steingrad.distributions.swaps.Swaps.chances`."""
        elements = torch.arange(self.mean.shape[-1], device=slots.device)
        bit = elements == slots[..., None]
        others = self.dist.with_logits(torch.where(bit, LOG_ZERO, self.dist.logits))
        include = others.inclusion.movedim(0, -2)  # [..., d, missing]
        known = ~bit & (self.x > 0.5)
        missing = known.long().cumsum(-1)
        smaller = torch.where(bit, self.x, 0).sum(-1, keepdim=True) > 0.5  # A is known
        of_a = torch.where(smaller, missing, missing - 1)
        at = lambda r: include.gather(-1, r.clamp(0, self.dist.k)[..., None])[..., 0]
        p_a, p_b = at(of_a), at(of_a + 1)
        joins = (p_b - p_a) / (1 - p_a).clamp(min=ALMOST_ZERO)
        parts = 1 - p_a / p_b.clamp(min=ALMOST_ZERO)
        hazard = torch.where(smaller, torch.where(known, 0, joins), torch.where(known, parts, 0))
        hazard = torch.where(bit, 0, hazard).clamp(0, 1)
        after = (1 - hazard.flip(-1)).cumprod(-1).flip(-1)
        survives = torch.cat([after[..., 1:], torch.ones_like(after[..., :1])], -1)
        partners = hazard * survives
        total = partners.sum(-1, keepdim=True)
        return partners / torch.where(total > 0, total, 1)
