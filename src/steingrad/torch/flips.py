"""The changes of single coordinates that Bronco draws from."""

from typing import Any

import torch
from torch import Tensor

from .arrays import TINY, mean_of_samples


class Flips:
    """All neighbours of the states `x`, in an array of slots. A slot of probability 0 may stand for
    the state itself. `slots` are flat numbers, of shape `[n, K, *batch]`."""

    slot_axes: int
    """The number of axes of an array of slots after `[K, *batch]`."""
    conditional: Tensor
    """The probability of the coordinate's new value, which is 0 for the present one."""

    def __init__(self, dist: Any, x: Tensor):
        self.dist, self.x = dist, x

    def spread(self, numbers: Tensor) -> Tensor:
        """The number of each coordinate, at the slots of the coordinate."""
        raise NotImplementedError

    def choose(self, of_coordinates: Tensor, of_values: Tensor | None, uniforms: Tensor, share):
        """Draw slots in proportion to size · of_coordinates · of_values, mixed with a share of
        equal probabilities. Returns slots and their probabilities."""
        raise NotImplementedError

    def coordinate_of(self, slots: Tensor) -> Tensor:
        raise NotImplementedError

    def here(self, slots: Tensor) -> Tensor:
        """The index of the present value of the slots' coordinates."""
        raise NotImplementedError

    def there(self, slots: Tensor) -> Tensor:
        """The index of the new value."""
        raise NotImplementedError

    def moved(self, slots: Tensor, partners: Tensor | None = None) -> Tensor:
        """The states after these changes."""
        raise NotImplementedError

    def draw_partners(self, slots: Tensor, uniforms: Tensor) -> Tensor:
        """The elements that change together with these bits, for a `Subset`."""
        raise NotImplementedError

    def first_order(self, gradient: Tensor) -> Tensor:
        """∇ᵀ (y − x)."""
        raise NotImplementedError

    def first_order_at(self, gradient: Tensor, slots: Tensor) -> Tensor:
        """`first_order` at the slots that were drawn."""
        return self.at_slots(self.first_order(gradient), slots)

    def by_effect(self, effect: Tensor) -> Tensor:
        """The difference of the mean effects of two values, given as `[d, m]`."""
        raise NotImplementedError

    def score_change(self, coefficients: Tensor) -> Tensor:
        """Σₙ cₙ (s(yₙ) − s(x)), shaped like the score."""
        raise NotImplementedError

    def local_gradient(self, change: Tensor) -> Tensor:
        """The gradient of E[f] from the changes of f, averaged over the samples."""
        raise NotImplementedError

    def at_slots(self, array: Tensor, slots: Tensor) -> Tensor:
        """The entries of an array of slots at those that were drawn."""
        flat = array.flatten(-self.slot_axes) if self.slot_axes > 1 else array
        return flat.gather(-1, slots.movedim(0, -1)).movedim(-1, 0)

    def add_at_slots(self, array: Tensor, slots: Tensor, numbers: Tensor) -> Tensor:
        flat = array.flatten(-self.slot_axes) if self.slot_axes > 1 else array
        added = flat.scatter_add(-1, slots.movedim(0, -1), numbers.movedim(0, -1))
        return added.reshape(array.shape)


def position(masses: Tensor, uniforms: Tensor) -> Tensor:
    """The index at which the cumulative sums of `masses` pass a share of their total."""
    below = masses.cumsum(-1)
    target = uniforms[..., None] * below[..., -1:]
    return (below <= target).sum(-1).clamp(max=masses.shape[-1] - 1)


class BitFlips(Flips):
    """Flips of independent bits, in an array `[K, *batch, d]`."""

    slot_axes = 1

    def __init__(self, dist, x):
        super().__init__(dist, x)
        self.sign = 1 - 2 * x
        self.conditional = torch.sigmoid(self.sign * dist.logits)
        self.present = None

    @property
    def size(self) -> Tensor:
        """q (1 − q) of the new value, which is the same for both values."""
        return self.dist.variance

    def spread(self, numbers):
        return numbers

    def choose(self, of_coordinates, of_values, uniforms, share):
        importance = self.size * of_coordinates
        d = importance.shape[-1]
        total = importance.sum(-1, keepdim=True)
        equal = torch.full_like(importance, 1 / d)
        proportional = torch.where(total > TINY, importance / total.clamp(min=TINY), equal)
        probability = (1 - share) * proportional + share / d
        probability = probability.expand(self.x.shape)
        slots = position(probability, uniforms[1])
        return slots, self.at_slots(probability, slots)

    def coordinate_of(self, slots):
        return slots

    def here(self, slots):
        return self.at_slots(self.x, slots).long()

    def there(self, slots):
        return 1 - self.here(slots)

    def moved(self, slots, partners=None):
        there = 1 - self.at_slots(self.x, slots)
        x = self.x.expand(len(slots), *self.x.shape)
        return x.scatter(-1, slots[..., None], there[..., None])

    def first_order(self, gradient):
        return gradient * self.sign

    def by_effect(self, effect):
        return (effect[:, 1] - effect[:, 0]) * self.sign

    def score_change(self, coefficients):
        return coefficients * self.sign

    def local_gradient(self, change):
        return self.size * mean_of_samples(self.sign * change)


class ValueFlips(Flips):
    """Changes of categories, in an array `[K, *batch, d, m]` of all values, the present one
    included."""

    slot_axes = 2

    def __init__(self, dist, x):
        super().__init__(dist, x)
        self.p = dist.mean
        values = torch.arange(dist.num_values, device=x.device)
        self.present = x[..., None] == values
        self.conditional = torch.where(self.present, 0, self.p)

    @property
    def size(self) -> Tensor:
        return self.p * (1 - self.p)

    def spread(self, numbers):
        return numbers[:, None]

    def choose(self, of_coordinates, of_values, uniforms, share):
        d, m = self.dist.state_shape
        importance = self.size * of_coordinates[:, None]
        importance = importance if of_values is None else importance * of_values
        # First a coordinate, by the sums over its other values; then one of these values.
        own = importance.expand(*self.x.shape, m).gather(-1, self.x[..., None])[..., 0]
        of_rows = (importance.sum(-1) - own).clamp(min=0)
        total = of_rows.sum(-1, keepdim=True)
        known = total > TINY
        scale = torch.where(known, (1 - share) / total.clamp(min=TINY), 0)
        rest = (1 + (share - 1) * known.to(total.dtype)) / (d * (m - 1))
        coordinates = position(of_rows * scale + rest * (m - 1), uniforms[0])
        where = coordinates[..., None]
        here = self.x.expand(len(coordinates), *self.x.shape).gather(-1, where)[..., 0]
        rows = importance.expand(*coordinates.shape, d, m)
        rows = rows.gather(-2, where[..., None].expand(*where.shape, m))[..., 0, :]
        values = torch.arange(m, device=self.x.device)
        rows = torch.where(values == here[..., None], 0, rows * scale + rest)
        value = position(rows, uniforms[1])
        # Rounding errors must not choose the present value.
        value = torch.where(value == here, (value + 1) % m, value)
        probability = rows.gather(-1, value[..., None])[..., 0]
        return coordinates * m + value, probability

    def coordinate_of(self, slots):
        return torch.div(slots, self.dist.num_values, rounding_mode="floor")

    def here(self, slots):
        coordinates = self.coordinate_of(slots)
        x = self.x.expand(len(slots), *self.x.shape)
        return x.gather(-1, coordinates[..., None])[..., 0]

    def there(self, slots):
        return slots % self.dist.num_values

    def moved(self, slots, partners=None):
        x = self.x.expand(len(slots), *self.x.shape)
        return x.scatter(-1, self.coordinate_of(slots)[..., None], self.there(slots)[..., None])

    def first_order(self, gradient):
        here = self.x.expand(gradient.shape[:-1])[..., None]
        return gradient - gradient.gather(-1, here)

    def first_order_at(self, gradient, slots):
        m = self.dist.num_values
        here = self.coordinate_of(slots) * m + self.here(slots)
        return self.at_slots(gradient, slots) - self.at_slots(gradient, here)

    def by_effect(self, effect):
        lead = self.x.shape[:-1]
        here = effect.expand(*lead, *effect.shape).gather(-1, self.x[..., None])
        return effect - here

    def score_change(self, coefficients):
        total = coefficients.sum(-1, keepdim=True)
        return coefficients - torch.where(self.present, total, 0)

    def local_gradient(self, change):
        terms = self.p * mean_of_samples(torch.where(self.present, 0, change))
        return terms - self.p * terms.sum(-1, keepdim=True)
