"""Distributions of discrete variables, made of tensors of logits."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch import distributions as td

from .arrays import compute_dtype, expand
from .flips import BitFlips, Flips, ValueFlips

SUPPORTED = (
    "Pass torch.distributions.Bernoulli, OneHotCategorical or Categorical (whose samples f is "
    "given as one-hot vectors), one of these inside Independent, a steingrad.torch.Subset, or a "
    "tensor of logits of bits."
)


class Law:
    """A distribution in the form that the estimators use: logits `[*batch, d]` or `[*batch, d, m]`.

    A state is stored as `draw` returns it: bits as zeros and ones, categories as indices, of which
    `one_hot` makes one-hot vectors.
    """

    num_values: int
    has_mean: ClassVar[bool] = True
    is_product: ClassVar[bool] = True
    relaxable: ClassVar[bool] = True
    flippable: ClassVar[bool] = True
    normalized: ClassVar[bool] = True
    state_axes: ClassVar[int] = 1
    """The number of axes of a state as the estimators use it."""

    def __init__(self, logits: Tensor, event_shape: tuple[int, ...] | None = None):
        self.logits = logits
        self.event_shape = self.state_shape if event_shape is None else event_shape
        """The shape of a state as f gets it: all coordinates in one axis, or in other axes."""

    def with_logits(self, logits: Tensor) -> Any:
        """The same kind of distribution with other logits."""
        kind: Any = type(self)
        return kind(logits, *self.settings(), self.event_shape)

    @property
    def is_binary(self) -> bool:
        return self.is_product and self.num_values == 2

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return tuple(self.logits.shape[: self.logits.ndim - self.state_axes])

    @property
    def state_shape(self) -> tuple[int, ...]:
        return tuple(self.logits.shape[self.logits.ndim - self.state_axes :])

    @property
    def num_coordinates(self) -> int:
        return self.state_shape[0]

    @property
    def num_neighbours(self) -> int:
        """The number of states that differ from a state in one coordinate."""
        return self.num_coordinates * (self.num_values - 1)

    @property
    def flip_shape(self) -> tuple[int, int]:
        return self.num_coordinates, self.num_values

    @property
    def slot_shape(self) -> tuple[int, int]:
        """The number of coordinates that `flips` changes, and of new values for each."""
        d, m = self.flip_shape
        return d, m - 1

    def draw(self, count: int, generator: Any = None) -> Tensor:
        """Independent samples, in the form in which states are stored."""
        raise NotImplementedError

    def one_hot(self, x: Tensor) -> Tensor:
        """States as zeros and ones, of shape `[..., *batch, *state_shape]`."""
        return x

    def stored(self, x: Tensor) -> Tensor:
        """The inverse of `one_hot`."""
        return x

    def settings(self) -> tuple:
        """What the class is given besides the logits and the shape of a state."""
        return ()

    def score(self, x: Tensor) -> Tensor:
        r"""∇ log q(x) with respect to the logits, for each sample."""
        raise NotImplementedError

    def weighted_score(self, weights: Tensor, x: Tensor) -> Tensor:
        """Σₖ wₖ s(xₖ)."""
        return (expand(weights, weights.ndim + self.state_axes) * self.score(x)).sum(0)

    def centred_score(self, weights: Tensor, x: Tensor) -> Tensor:
        """The same for weights whose sum is 0. The mean of the states then cancels."""
        w = expand(weights, weights.ndim + 1)
        # Relative to the first sample, so that equal samples give exactly 0.
        return (w[1:] * (x[1:] - x[:1])).sum(0)

    @property
    def mean(self) -> Tensor:
        """E[x], of the state's shape."""
        raise NotImplementedError

    def pull_mean(self, v: Tensor) -> Tensor:
        """The gradient of vᵀ E[x] with respect to the logits."""
        raise NotImplementedError

    def slope(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The v whose `pull_mean` is `gradient`, as a numerator and a denominator."""
        mean = self.mean
        return gradient, mean * (1 - mean)

    def flips(self, x: Tensor) -> Flips:
        """The changes of single coordinates from which `Bronco` draws."""
        raise NotImplementedError

    # The following methods exist for independent coordinates.

    @property
    def value_logits(self) -> Tensor:
        """log q(xᵢ = v) up to a constant for each coordinate, of shape `[*batch, d, m]`."""
        raise NotImplementedError

    @property
    def log_odds(self) -> Tensor:
        """log q(xᵢ = v₁) − log q(xᵢ = v₀) if there are two values."""
        raise NotImplementedError

    def by_values(self, gradient: Tensor) -> Tensor:
        """The gradient with respect to the logits, given that with respect to `value_logits`."""
        raise NotImplementedError

    def by_log_odds(self, gradient: Tensor) -> Tensor:
        """The gradient with respect to the logits, given that with respect to `log_odds`."""
        raise NotImplementedError

    def index(self, x: Tensor) -> Tensor:
        """The index of each coordinate's value, from the stored state."""
        raise NotImplementedError

    def from_index(self, index: Tensor) -> Tensor:
        """The inverse of `index`."""
        raise NotImplementedError

    def soften(self, temperature: Any) -> Tensor:
        """The mean at a temperature."""
        return self.relax(self.logits, temperature)

    def relax(self, z: Tensor, temperature: Any) -> Tensor:
        """A point inside the cube or the simplex."""
        raise NotImplementedError

    def through(self, p: Tensor, gradient: Tensor) -> Tensor:
        """J(p) times a gradient, where J is the Jacobian of `relax` at temperature 1."""
        raise NotImplementedError

    def noise(self, count: int, generator: Any = None) -> Tensor:
        """Noise for `count` latent variables, logistic or Gumbel."""
        raise NotImplementedError

    def location(self) -> Tensor:
        """The numbers to which the noise is added. They are finite."""
        raise NotImplementedError

    def latent_given(self, x: Tensor, noise: Tensor) -> Tensor:
        """The latent variable given the state, in its one-hot form, from fresh noise."""
        raise NotImplementedError


class Bernoulli(Law):
    """Independent bits."""

    num_values = 2

    def draw(self, count, generator=None):
        p = torch.sigmoid(self.logits)
        return torch.bernoulli(p.expand(count, *p.shape), generator=generator)

    def score(self, x):
        # Without a loss of digits if a bit is nearly certain.
        return x * torch.sigmoid(-self.logits) - (1 - x) * torch.sigmoid(self.logits)

    @property
    def mean(self):
        return torch.sigmoid(self.logits)

    @property
    def variance(self) -> Tensor:
        return torch.sigmoid(self.logits) * torch.sigmoid(-self.logits)

    def pull_mean(self, v):
        return self.variance * v

    def slope(self, gradient):
        return gradient, self.variance

    @property
    def log_odds(self):
        return self.logits

    @property
    def value_logits(self):
        return torch.stack([torch.zeros_like(self.logits), self.logits], -1)

    def by_log_odds(self, gradient):
        return gradient

    def by_values(self, gradient):
        return gradient[..., 1]

    def index(self, x):
        return x.long()

    def from_index(self, index):
        return index.to(self.logits.dtype)

    def flips(self, x):
        return BitFlips(self, x)

    def relax(self, z, temperature):
        return torch.sigmoid(z / temperature)

    def through(self, p, gradient):
        return p * (1 - p) * gradient

    def noise(self, count, generator=None):
        u = uniform((count, *self.logits.shape), self.logits, generator)
        return u.log() - torch.log1p(-u)

    def location(self):
        return self.logits.clamp(-100, 100)

    def latent_given(self, x, noise):
        # x = 1: a logistic variable given that it is positive.
        sign = 2 * x - 1
        return sign * nn.functional.softplus(noise + nn.functional.softplus(sign * self.location()))


class Categorical(Law):
    """Independent categories."""

    state_axes = 2

    @property
    def num_values(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.logits.shape[-1]

    def draw(self, count, generator=None):
        p = torch.softmax(self.logits, -1)
        rows = p.reshape(-1, p.shape[-1])
        # For a single draw PyTorch would take one random number for each value.
        drawn = torch.multinomial(rows, max(count, 2), replacement=True, generator=generator)
        return drawn[:, :count].T.reshape(count, *p.shape[:-1])

    def one_hot(self, x):
        index = torch.arange(self.num_values, device=x.device)
        return (x[..., None] == index).to(self.logits.dtype)

    def stored(self, x):
        return x.argmax(-1)

    def index(self, x):
        return x

    def from_index(self, index):
        return index

    def score(self, x):
        return self.one_hot(x) - self.mean

    def weighted_score(self, weights, x):
        return self._at_values(weights, x) - weights.sum(0)[..., None, None] * self.mean

    def centred_score(self, weights, x):
        first = -weights[1:].sum(0, keepdim=True)
        return self._at_values(torch.cat([first, weights[1:]]), x)

    def _at_values(self, weights: Tensor, x: Tensor) -> Tensor:
        """Σₖ wₖ xₖ, for weights `[K, *batch]` or `[K, *batch, d]`."""
        w = expand(weights, x.ndim).expand(x.shape).movedim(0, -1)
        zeros = torch.zeros_like(self.logits, dtype=w.dtype)
        return zeros.scatter_add(-1, x.movedim(0, -1), w)

    @property
    def mean(self):
        return torch.softmax(self.logits, -1)

    def pull_mean(self, v):
        return self.through(self.mean, v)

    def slope(self, gradient):
        # This is right up to a constant for each coordinate, which makes no difference.
        return gradient, self.mean

    @property
    def log_odds(self):
        return self.logits[..., 1] - self.logits[..., 0]

    @property
    def value_logits(self):
        return self.logits

    def by_log_odds(self, gradient):
        return torch.stack([-gradient, gradient], -1)

    def by_values(self, gradient):
        return gradient

    def flips(self, x):
        return ValueFlips(self, x)

    def relax(self, z, temperature):
        return torch.softmax(z / temperature, -1)

    def through(self, p, gradient):
        return p * (gradient - (p * gradient).sum(-1, keepdim=True))

    def noise(self, count, generator=None):
        u = uniform((count, *self.logits.shape), self.logits, generator)
        return -torch.log(-torch.log(u))

    def location(self):
        least = self.logits.amax(-1, keepdim=True) - 100
        return torch.log_softmax(torch.where(self.logits.isneginf(), least, self.logits), -1)

    def latent_given(self, x, noise):
        # The largest entry is standard Gumbel, and the others are truncated below it.
        top = (x * noise).sum(-1, keepdim=True)
        below = -torch.logaddexp(-self.location() - noise, -top)
        return torch.where(x > 0, top, below)


def uniform(shape: tuple[int, ...], like: Tensor, generator: Any = None) -> Tensor:
    """Uniform numbers in (0, 1), whose logarithms are finite."""
    u = torch.rand(shape, dtype=like.dtype, device=like.device, generator=generator)
    info = torch.finfo(like.dtype)
    return u.clamp(info.tiny, 1 - info.eps / 2)


def read(dist: Any, event_ndim: int | None = None) -> Law:
    """Convert a PyTorch distribution, or a tensor of logits. Raises if it is not supported."""
    if isinstance(dist, Law):
        return dist
    whole, axes = dist, event_ndim
    while isinstance(dist, td.Independent):
        axes, dist = (axes or 0) + dist.reinterpreted_batch_ndims, dist.base_dist
    if isinstance(dist, Tensor):
        kind, logits = Bernoulli, dist
    elif type(dist) is td.Bernoulli:
        kind, logits = Bernoulli, dist.logits
    elif isinstance(dist, (td.OneHotCategorical, td.Categorical)):
        kind, logits = Categorical, dist.logits
    else:
        name = type(whole).__name__
        if whole is not dist:
            name += f" of {type(dist).__name__}"
        raise TypeError(f"The distribution is a {name}, which is not supported. {SUPPORTED}")
    if not logits.is_floating_point():
        raise TypeError(f"Logits must be floating-point, but have dtype {logits.dtype}.")
    if whole is not dist and event_ndim is not None:
        raise ValueError(
            f"event_ndim={event_ndim} was given with an Independent, which says itself how many "
            "axes belong to one state: leave out one of the two."
        )
    values = tuple(logits.shape[-1:]) if kind is Categorical else ()
    coordinates = tuple(logits.shape[: logits.ndim - len(values)])
    if axes is None:
        axes = _usual_axes(type(dist).__name__, logits, coordinates, values)
    if not 0 <= axes <= len(coordinates):
        raise ValueError(
            f"The distribution has variables of shape {coordinates}, of which event_ndim={axes} "
            f"axes cannot belong to one state: pass a number from 0 to {len(coordinates)}."
        )
    first = len(coordinates) - axes
    batch, own = coordinates[:first], coordinates[first:]
    if not math.prod((*own, *values)):
        raise ValueError(
            f"Logits of shape {tuple(logits.shape)} have no coordinate: pass one or more."
        )
    if len(own) != 1:
        logits = logits.reshape(*batch, math.prod(own), *values)
    return kind(logits, (*own, *values))


def _usual_axes(name: str, logits: Tensor, coordinates: tuple, values: tuple) -> int:
    """Without Independent, the last axis holds the coordinates of one state. This is not assumed
    where a batch of single variables is just as likely."""
    shape = tuple(logits.shape)
    if not coordinates:
        raise ValueError(
            f"The {name} is a single variable, with logits of shape {shape}, but coordinates need "
            f"an axis: pass event_ndim=0, or logits{'.unsqueeze(-2)' if values else '[None]'}."
        )
    if values and len(coordinates) == 1:
        raise ValueError(
            f"The {name} has logits of shape {shape}, which can mean {shape[0]} states of one "
            f"variable each, or one state of {shape[0]} coordinates. For the first pass "
            "event_ndim=0 (or logits.unsqueeze(-2)), for the second event_ndim=1."
        )
    return 1


def compute(law: Law) -> Law:
    """The same distribution as a constant, in the dtype to compute in."""
    return law.with_logits(law.logits.detach().to(compute_dtype(law.logits)))
