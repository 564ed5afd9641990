"""Subsets of exactly k of d elements: independent bits, given their sum."""

import itertools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..arrays import as_index, is_concrete, scatter, take
from ..draws import logistic
from .base import COORDINATES_AT_A_TIME, MAX_STATES, FromLogits, as_logits
from .swaps import LOG_ZERO, Swaps


class Subset(FromLogits):
    r"""Exactly $k$ of $d$ elements, the conditional Bernoulli distribution: $q(x) = \exp(
    \text{logits}^\top x) / Z_k$ for bits $x$ with $\sum_i x_i = k$.

    `logits` has shape `[*batch, d]`, and so does a sample, with $k$ ones and $d - k$ zeros. It is
    the distribution of `Bernoulli(logits)` given that the sum of the bits is $k$. A constant added
    to all logits changes nothing, and an element with a logit of $-\infty$ is never a member. The
    score is $s(x) = x - \mu$ with $\mu = E[x]$, the `mean`. $Z_k$, the elementary symmetric
    polynomial $e_k$ of the odds, comes from the recursion $e_r(i) = e_r(i-1) + \exp(\text{logit}_i)
    \, e_{r-1}(i-1)$; exact samples and means follow from it too, all in $O(dk)$.

    A single changed bit would change the sum, so neighbours are swaps: one member leaves and one of
    the others enters. For an operator the coordinates are the $k$ members, in order, and the values
    of a coordinate are the $d - k + 1$ elements, in order, that are not another member.

    Reference: Chen, Dempster, Liu, "Weighted finite population sampling to maximize entropy",
    Biometrika 1994.

    >>> import jax, jax.numpy as jnp
    >>> q = Subset(jnp.log(jnp.array([1.0, 1.0, 2.0])), k=2)
    >>> q.enumerate(), q.probabilities()
    (Array([[0., 1., 1.],
           [1., 0., 1.],
           [1., 1., 0.]], dtype=float32), Array([0.4, 0.4, 0.2], dtype=float32))
    >>> q.mean
    Array([0.6, 0.6, 0.8], dtype=float32)
    >>> q.sample(jax.random.key(0)).sum()
    Array(2., dtype=float32)
    """

    logits: Float[Array, "*batch d"]
    k: int = eqx.field(static=True)

    def __init__(self, logits: Any, k: Any):
        self.logits = as_logits("Subset", logits, ("d",))
        self.k = as_index(k)
        d = self.logits.shape[-1]
        if not isinstance(self.k, int) or not 1 <= self.k < d:
            raise ValueError(
                f"Subset needs a whole k from 1 to d − 1 = {d - 1}, with logits of shape "
                f"{self.logits.shape}, but was given k={k!r}. (k = 0 and k = d have one state.)"
            )
        if is_concrete(self.logits):
            with jax.ensure_compile_time_eval():
                possible = np.asarray(jnp.sum(self.logits > -jnp.inf, axis=-1))
                infinite = bool(jnp.any(self.logits == jnp.inf))
            if infinite:
                raise ValueError(
                    "Subset needs logits below +inf, but was given +inf. For an element that is "
                    "always a member use a large finite logit such as 50."
                )
            if (possible < self.k).any():
                raise ValueError(
                    f"Subset(k={self.k}) needs at least {self.k} logits above −inf, but was given "
                    f"{possible.min()} for an element of the batch. Raise some logits, or lower k."
                )

    @property
    def batch_shape(self):
        return self.logits.shape[:-1]

    @property
    def event_shape(self):
        return self.logits.shape[-1:]

    @property
    def num_coordinates(self):
        """The number of members, $k$."""
        return self.k

    @property
    def num_values(self):
        """The number of elements that a member can be if the others stay, $d - k + 1$."""
        return self.logits.shape[-1] - self.k + 1

    @property
    def num_states(self):
        r"""$\binom dk$."""
        return math.comb(self.logits.shape[-1], self.k)

    @property
    def flippable(self):
        return True

    @property
    def flip_shape(self):
        return self.logits.shape[-1], 2

    def flips(self, x):
        return Swaps(self, x, self.marginals)

    @property
    def mean(self) -> Float[Array, "*batch d"]:
        """The probability that each element is a member."""
        return self.marginals.astype(self.dtype)

    def slope(self, gradient):
        # The covariance is nearly diagonal, up to a constant.
        mean = self.marginals
        return gradient, mean * (1 - mean)

    @property
    def inclusion(self) -> Float[Array, "d *batch r"]:
        """The probability that an element is a member, given the elements after it, if r = 0 … k
        members are still missing among this element and those before it."""
        return jax.nn.sigmoid(self._chain()[0])

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()):
        log_odds, _ = self._chain()
        shape = (*shape, *self.logits.shape)
        noise = jnp.moveaxis(logistic(key, shape, log_odds.dtype), -1, 0)

        def decide(missing, inputs):
            noise, log_odds = inputs
            member = noise < take(log_odds, missing[..., None])[..., 0]
            return missing - member.astype(jnp.int32), member

        missing = jnp.full(shape[:-1], self.k, jnp.int32)
        _, members = jax.lax.scan(decide, missing, (noise, log_odds), reverse=True)
        return jnp.moveaxis(members, 0, -1).astype(self.dtype)

    def log_prob(self, x):
        # Linear in x, as for Bernoulli, but −∞ for another number of ones.
        logits, x = self._centred(), x.astype(self._logits.dtype)
        log_prob = jnp.sum(x * logits, axis=-1) - self._chain()[1]
        inside = (log_prob > LOG_ZERO / 2) & (jnp.abs(jnp.sum(x, axis=-1) - self.k) < 0.5)
        return jnp.where(inside, log_prob, -jnp.inf)

    def score(self, x):
        return x.astype(self._logits.dtype) - self.marginals

    def index(self, x):
        """For each member, in order, the number of elements before it that are not members."""
        return self._members(x) - jnp.arange(self.k, dtype=jnp.int32)

    def state(self, index):
        members = index + jnp.arange(self.k, dtype=index.dtype)
        return jnp.sum(jax.nn.one_hot(members, self.logits.shape[-1], dtype=self.dtype), axis=-2)

    def enumerate(self):
        """Every state, of shape `[d choose k, d]`, sorted by the bits read as a binary number."""
        d = self.logits.shape[-1]
        if self.num_states > MAX_STATES:
            raise ValueError(
                f"Cannot enumerate the {self.num_states} subsets of {self.k} of {d} elements: at "
                f"most 2^20 = {MAX_STATES} are allowed. Use fewer elements, or an estimator in "
                "place of the exact sum."
            )
        members = np.asarray(list(itertools.combinations(range(d), self.k))[::-1], np.int32)
        return self.state(jnp.asarray(members - np.arange(self.k, dtype=np.int32)))

    def state_number(self, x):
        # A member with p elements after it, j of them members, comes after C(p, j + 1) subsets.
        d = self.logits.shape[-1]
        table = [[math.comb(d - 1 - i, self.k - c) for i in range(d)] for c in range(self.k)]
        table = jnp.asarray(np.minimum(table, 2**31 - 1).astype(np.int32))
        below = take(table, self._members(x)[..., None])[..., 0]
        return jnp.sum(below, axis=-1, dtype=jnp.int32)

    def log_ratio(self, x, values, coordinates=None):
        leaving, entering = self._swaps(x, values, coordinates)
        return _pick(self._logits, entering) - _pick(self._logits, leaving)

    def linear_change(self, gradient, x, values, coordinates=None):
        leaving, entering = self._swaps(x, values, coordinates)
        return _pick(gradient, entering) - _pick(gradient, leaving)

    def score_change(self, coefficients, x, values, coordinates=None):
        d, (leaving, entering) = self.logits.shape[-1], self._swaps(x, values, coordinates)
        flat = lambda array: array.reshape(*array.shape[:-2], -1)
        left = scatter(jnp.sum(coefficients, axis=-1), leaving[..., 0], d)
        return scatter(flat(coefficients), flat(entering), d) - left

    def at_neighbours(self, h, x, values, coordinates=None):
        leaving, entering = self._swaps(x, values, coordinates)
        elements = jnp.arange(self.logits.shape[-1], dtype=jnp.int32)

        def at_member(slot):
            leaving, entering = slot  # [...] and [n, ...]
            rest = jnp.where(elements == leaving[..., None], 0, x)
            return jax.vmap(lambda i: h(jnp.where(elements == i[..., None], 1, rest)))(entering)

        slots = (jnp.moveaxis(leaving[..., 0], -1, 0), jnp.moveaxis(entering, (-2, -1), (0, 1)))
        h_values = jax.lax.map(at_member, slots, batch_size=COORDINATES_AT_A_TIME)
        return jnp.moveaxis(h_values, (0, 1), (-2, -1))

    def _members(self, x: Float[Array, "... d"]) -> Int[Array, "... k"]:
        return self._order(x)[..., : self.k]

    def _order(self, x: Float[Array, "... d"]) -> Int[Array, "... d"]:
        """The members in order, then the other elements in order."""
        return jnp.argsort(-x, axis=-1, stable=True).astype(jnp.int32)

    def _swaps(
        self,
        x: Float[Array, "... d"],
        values: Int[Array, "... c n"],
        coordinates: Int[Array, "... c"] | None,
    ) -> tuple[Int[Array, "... c 1"], Int[Array, "... c n"]]:
        """Returns the elements that leave, and those that enter."""
        order = self._order(x)
        members, others = order[..., : self.k], order[..., self.k :]
        leaving = take(members, coordinates)[..., None]
        here = take(self.index(x), coordinates)[..., None]
        # The values of a member are the non-members and the member itself, in order.
        entering = _pick(
            others, jnp.clip(values - (values > here).astype(jnp.int32), 0, others.shape[-1] - 1)
        )
        return leaving, jnp.where(values == here, leaving, entering)

    def _centred(self) -> Float[Array, "*batch d"]:
        """The logits minus a constant, chosen so that k of them are about 0 or above and Z_k is
        neither huge nor tiny."""
        logits, d = self._logits, self.logits.shape[-1]
        ordered = jnp.sort(jnp.maximum(logits, LOG_ZERO), axis=-1)
        above = ordered[..., d - self.k, None]
        return jnp.maximum(logits - jax.lax.stop_gradient(above), LOG_ZERO)

    def _chain(self) -> tuple[Float[Array, "d *batch r"], Float[Array, "*batch"]]:
        """The logits of `inclusion`, and log Z_k."""
        logits = jnp.moveaxis(self._centred(), -1, 0)[..., None]

        def step(below, logit):
            less = jnp.concatenate([jnp.full_like(logit, LOG_ZERO), below[..., :-1]], axis=-1)
            # If those before the element cannot be as many as are missing, it is a member.
            needed = (below < LOG_ZERO / 2) & (logit > LOG_ZERO / 2)
            log_odds = jnp.where(needed, -LOG_ZERO, logit + less - below)
            return jnp.logaddexp(below, logit + less), log_odds  # log e_r

        start = jnp.full((*self.batch_shape, self.k + 1), LOG_ZERO, logits.dtype)
        end, log_odds = jax.lax.scan(step, start.at[..., 0].set(0), logits)
        return log_odds, end[..., -1]

    @property
    def marginals(self) -> Float[Array, "*batch d"]:
        """The mean in the dtype to compute in, at least float32, clipped to [0, 1]."""
        include = self.inclusion

        def step(missing, include):
            member = missing * include  # P(r are missing and the element is a member)
            after = jnp.concatenate([member[..., 1:], jnp.zeros_like(member[..., :1])], axis=-1)
            return missing - member + after, jnp.sum(member, axis=-1)

        start = jnp.zeros(include.shape[1:], include.dtype).at[..., -1].set(1)
        _, mean = jax.lax.scan(step, start, include, reverse=True)
        return jnp.clip(jnp.moveaxis(mean, 0, -1), 0, 1)  # rounding errors may leave [0, 1]


def _pick(array: Array, elements: Int[Array, "... c n"]) -> Array:
    """The entries of `array`'s last axis that `elements` names."""
    flat = elements.reshape(*elements.shape[:-2], -1)
    picked = take(array, flat)
    return picked.reshape(*picked.shape[:-1], *elements.shape[-2:])
