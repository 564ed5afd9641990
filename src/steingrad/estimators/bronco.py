"""Bronco: straight-through, corrected by a random flip."""

import math
from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from ..arrays import as_index, check_whole, scatter
from ..distributions.base import Distribution
from ..distributions.foreign import as_distribution
from ..distributions.neighbours import Neighbours, Slope
from ..fast import TINY, mean, mean_of_samples, running_sum, sum_of_events
from ..objective import Evaluated
from .base import Estimator
from .blend import blend
from .checks import check_key
from .flip_regression import ERROR, coefficients, relative_errors, sums_by_coordinate
from .least_squares import Products, unless, unless_outgrown
from .value_tables import ValueTables, kept

# In training f and the typical size of its changes drift faster than the effects of flips in units
# of that size. So their means are over the last 20 steps, or over as many steps as have 500 samples
# if these are more.
FAST_STEPS, FAST_SAMPLES = 20, 500
# If the slopes of this step differ from the past changes by more than this factor, the objective
# has jumped, and the slopes give the scale.
JUMP = 30.0
# What an accident of f can do: a flip whose change is UNUSUAL times the scale or more counts
# less, its squared error counts as at most FAR times the mean, the scale grows by at most GROWTH
# in a step, and the mean of f in a step counts as at most DISTANT times its usual distance away.
UNUSUAL, FAR, GROWTH, DISTANT = 1e4, 1e4, 4.0, 10.0


def default_flips(neighbours: int) -> int:
    """The number of flips for a state with this many neighbours: 1 for up to 16, 2 for up to 64,
    and 4 for more. `docs/bronco.md` has measurements with other numbers.

    >>> [default_flips(neighbours) for neighbours in (12, 50, 200)]
    [1, 2, 4]
    """
    return 1 if neighbours <= 16 else 2 if neighbours <= 64 else 4


class Guess(NamedTuple):
    """Predictions for all neighbours of a sample, before f is evaluated at any of them."""

    flips: Neighbours
    """The neighbours, with one coordinate changed."""
    conditional: Float[Array, "... d n"]
    """The probability of the coordinate's new value."""
    features: tuple[Float[Array, "... d n"], ...]
    """The features of which the guess is a linear combination."""
    scale: Float[Array, ""]
    """The typical size of a change of f, the unit of the sums; 0 if it is not known yet."""
    change: Float[Array, "... d n"]
    """The guess of f(y) − f(x)."""
    slope: Slope
    """The first-order model of f."""
    weight: Float[Array, "... d n"]
    """The coefficient a of the slope in the guess."""
    size: Float[Array, "... d n"]
    """How much a neighbour's change counts in the gradient."""
    probability: Float[Array, "... d n"]
    """The probability π with which a neighbour is drawn."""
    residual: Float[Array, "... d n"] | None
    """The part of the guess that comes from the tables of values, in units of the scale."""


class Drawn(NamedTuple):
    """The neighbours that were drawn, `flips` for each sample."""

    slots: Int[Array, "flips samples ..."]
    """The flat numbers of the neighbours."""
    partners: Int[Array, "flips samples ..."] | None = None
    """The elements that change together with the coordinates, in a `Subset`."""


class Bronco(Estimator):
    r"""$g = \frac1K \sum_k \sum_{i,v} q(x_i = v) \Big(r_{iv} + \frac{1[\text{flip } (i, v)]}
    {\pi_{iv}} (\Delta_{iv} - r_{iv})\Big) s_i(v)$ with $\Delta_{iv} = f(x_k \text{ with } x_i = v)
    - f(x_k)$.

    $r$ is a guess of $\Delta$ from $f$ and $\nabla f$ at $x_k$. One flip (a change of one
    coordinate) is drawn with probability $\pi$, and $f$ is evaluated there, without a backward
    pass. The error of the guess, divided by $\pi$, is added. So the mean of $g$ over flips is the
    local expectation gradient, whatever $r$ and $\pi$ are, and $g$ is unbiased. With `flips` $= m$
    the correction is the mean over $m$ flips. $f$ is evaluated $K (1 + m)$ times. By default $m$ is
    1, 2 or 4, depending on the number of neighbours (`default_flips`).

    The guess is $r_{iv} = a_i \nabla f^\top (y - x) + |y - x|^2 (b_i + c_i \tilde f) + \beta_{iu} +
    \beta_{iv} + \gamma_{i\{u,v\}}$, where $u$ is the present value: slope, curvature, a curvature
    that depends on the value of $f$, and the curvature between single values (`ValueTables`; none
    for bits). The coefficients $a, b, c$ of a coordinate solve a least-squares problem over past
    flips, of which about `memory` for each coordinate are remembered. The first guess is
    straight-through, $a = 1$, and 0 for all others. $\pi$ grows with $q(v) (1 - q(v))$ and with the
    errors of past guesses; a share `uniform` of the uniform distribution is mixed in. With
    `use_gradient=False` the mean effect of each value in past flips takes the place of $\nabla f$.

    Where no guess is any good, the score-function estimate is better. So the result is the blend $g
    + c_1 (g_{SF} - g) + c_2 \bar s$ of both, whose coefficients solve a least-squares problem over
    past steps (`blend`).

    It needs coordinates that can change one at a time: independent ones, or those of a `Subset`,
    where a bit changes together with a random partner.

    `cv` consists of sums over past flips, which `steingrad.cv_optimizer` updates with a plain
    gradient step. Any other optimiser loses the guess, but adds no bias. `num_samples` is $K$.

    Reference: a random flip without a guess is bitflip-1 of Kunes et al., "Gradient estimation for
    binary latent variables via gradient variance clipping", AAAI 2023.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> q = sg.Bernoulli(jnp.zeros(5))
    >>> estimator = Bronco(num_samples=1, flips=1)
    >>> cv = estimator.init(jax.random.key(0), q)
    >>> f = lambda x: -jnp.sum((x - 0.45) ** 2, axis=-1)
    >>> value, grads = estimator.value_and_grad(f, q, cv, key=jax.random.key(1))
    >>> grads.parameters.shape, grads.cv.gram.shape, estimator.num_evaluations(q)
    ((5,), (5, 3, 3), 2)
    """

    class CV(eqx.Module):
        """Sums over past flips, of which older ones count less."""

        gram: Float[Array, "d 3 3"]
        """Products of the features with each other."""
        cross: Float[Array, "d 3"]
        """Products of the features with the change of f."""
        error: Float[Array, " d"]
        """Squared errors of the guess."""
        size: Float[Array, " d"]
        """The weights of the flips, to which `error` is relative."""
        flips: Float[Array, ""]
        """The number of flips."""
        change: Float[Array, ""]
        """Mean absolute changes of f by the flips of a step. Their mean is the scale."""
        value: Float[Array, ""]
        """Values of f."""
        deviation: Float[Array, ""]
        """Absolute differences between f and its mean."""
        steps: Float[Array, ""]
        """The number of steps that `change`, `value` and `deviation` are sums over."""
        effect: Float[Array, "d m 2"] | None
        """For each value of each coordinate, the changes of f when the coordinate takes this value,
        and their number; `None` if `use_gradient`."""
        tables: ValueTables | None
        """Numbers for each value and pair of values; `None` if coordinates have two values."""
        products: Products
        """Averages of the products of the terms that are blended."""

    num_samples: int = eqx.field(static=True, converter=as_index, default=1)
    flips: int | None = eqx.field(static=True, converter=as_index, default=None)
    """The number of flips of each sample. f is evaluated once at each flip."""
    memory: float = eqx.field(static=True, default=100.0)
    """About how many past flips of each coordinate are remembered."""
    uniform: float = eqx.field(static=True, default=0.1)
    """The share of flips that are drawn uniformly from all possible flips."""
    use_gradient: bool = eqx.field(static=True, default=True)
    """Guess with the gradient of f. If off, the mean effect of past flips takes its place."""
    needs: ClassVar = "flippable"
    cv_is_quadratic: ClassVar = False
    looks_further: ClassVar = True

    def __check_init__(self):
        if self.flips is not None:
            check_whole("Bronco", "number of flips", self.flips, 1)
        if not 0 < self.uniform <= 1:
            raise ValueError(
                "Bronco needs uniform above 0, so that every flip can be drawn, and at most 1, but "
                f"was given {self.uniform}."
            )
        if not self.memory > 0:
            raise ValueError(f"Bronco needs memory above 0, but was given {self.memory}.")

    @property
    def needs_gradient(self):
        return self.use_gradient

    def num_evaluations(self, dist):
        return self.num_samples * (1 + self._num_flips(dist.num_neighbours))

    def init(self, key, dist=None):
        if dist is None:
            raise ValueError(
                "Bronco learns coefficients for each coordinate, but no distribution was given: "
                "pass the distribution too, `estimator.init(key, dist)`. Only its shape matters."
            )
        dist = as_distribution(dist)
        d, m = dist.flip_shape
        effect = None if self.use_gradient else jnp.zeros((d, m, 2))
        moments = jnp.zeros((d, 3, 3)), jnp.zeros((d, 3)), jnp.zeros(d), jnp.zeros(d)
        zero = lambda: jnp.zeros(())  # arrays of their own, so that they can be donated
        numbers = zero(), zero(), zero(), zero(), zero()
        return self.CV(*moments, *numbers, effect, ValueTables.zero(d, m), Products.zero(2))

    def cv_optimizer(self, learning_rate):
        return optax.sgd(1.0)

    def is_sound(self, dist, at):
        # The gradient of f only enters the guess.
        return jnp.all(jnp.isfinite(at.fx), axis=0)

    def past(self, cv: Any, at: Evaluated) -> Any:
        """The sums, or zeros if they are to be forgotten."""
        return unless(self.forgets(cv, at), cv)

    def forgets(self, cv: Any, at: Evaluated) -> Bool[Array, ""]:
        """Whether f has become far smaller than it was."""
        return at.has_outgrown(cv.change / (cv.steps + TINY))

    def propose(self, cv, dist, at):
        guess = self.guess(cv, dist, at)
        drawn = self.choose(at, guess)
        return guess.flips.moved(*drawn), (guess, drawn)

    def gradient(self, cv, dist, at):
        return self.blended(cv, dist, at)[0]

    def adapt(self, cv, dist, at):
        grad, products = self.blended(cv, dist, at)
        # A step that forgets learns nothing: beside sums that were too large, what it would add is
        # lost to rounding in some of them, and not in others.
        following = unless(self.forgets(cv, at), self.learn(cv, dist, at, *at.memo))
        following = eqx.tree_at(lambda cv: cv.products, following, products)
        return grad, jax.tree.map(jnp.subtract, cv, following)

    def blended(self, cv: Any, dist: Distribution, at: Evaluated) -> tuple[Any, Products]:
        """The estimate, blended with the score-function estimate, and the averages for the next
        step. Its coefficients and its baseline depend on past steps alone."""
        baseline = cv.value / (cv.steps + TINY)
        grad, following = blend(corrected(at, *at.memo), cv.products, baseline, dist, at)
        # In the first step there is no baseline, so nothing can be learned.
        following = jax.tree.map(partial(jnp.where, cv.steps > 0), following, cv.products)
        return grad, unless_outgrown(following, cv.products, at)

    def _num_flips(self, neighbours: int) -> int:
        return default_flips(neighbours) if self.flips is None else self.flips

    def guess(self, cv: Any, dist: Distribution, at: Evaluated) -> Guess:
        """Predict the changes of f at the neighbours from the samples and from past flips. The
        result never depends on the flips of this step."""
        cv = self.past(cv, at)
        flips = dist.flips(at.x)
        conditional = flips.conditional()
        size = conditional * (1 - conditional)
        if self.use_gradient:
            assert at.dfx is not None
            # A slope that is not finite tells nothing. Any guess leaves the estimate unbiased.
            slope = Slope(jnp.where(jnp.isfinite(at.dfx), at.dfx, 0), None)
        else:
            number = cv.effect[..., 1] + ERROR * jnp.mean(cv.effect[..., 1]) + TINY
            slope = Slope(None, cv.effect[..., 0] / number)
        # Values of probability 0 must not enter the scale.
        linear = jnp.where(conditional > 0, flips.first_order(slope), 0)
        scale = past = cv.change / (cv.steps + TINY)
        if self.use_gradient:
            now = mean(jnp.abs(linear))
            scale = jnp.where(now > JUMP * past, now, past)

        past_mean, deviation = cv.value / (cv.steps + TINY), cv.deviation / (cv.steps + TINY)
        value = (at.fx - past_mean) / jnp.where(deviation > 0, deviation, 1)
        value = jnp.where(deviation > 0, jnp.clip(value, -5, 5), 0)[..., None, None]
        curvature = flips.squared_step()
        features = linear / jnp.where(scale > 0, scale, 1), curvature, curvature * value
        # With the gradient, the first guess is straight-through. Without it, the first guess is 0.
        first = jnp.asarray([1 if self.use_gradient else 0, 0, 0], linear.dtype)
        of_coordinates = coefficients(cv.gram, cv.cross, cv.flips, first)
        # One coefficient at a time: an array of all three would have to be written to memory.
        a, b, c = (flips.spread(column) for column in of_coordinates.T)
        change = a * linear + scale * (b * features[1] + c * features[2])
        importance = size * flips.spread(relative_errors(cv.error, cv.size, cv.flips))
        residual = None
        if cv.tables is not None:
            residual = cv.tables.change(flips, one_flip(cv))
            change = change + scale * residual
            importance = importance * cv.tables.importance(flips, one_flip(cv))
        probability = mixed(importance, self.uniform)
        weight = jnp.broadcast_to(a, change.shape)
        rest = size, probability, residual
        return Guess(flips, conditional, features, scale, change, slope, weight, *rest)

    def choose(self, at: Evaluated, guess: Guess) -> Drawn:
        """Draw the neighbours at which to evaluate f, as flat numbers of slots. The uniform numbers
        used are evenly spaced, so that two flips of a sample are seldom the same."""
        check_key("Bronco", at.key)
        assert at.key is not None
        probability = guess.probability
        lead = probability.shape[:-2]
        uniforms = jax.random.uniform(at.key, (2, 1, *lead), probability.dtype)
        count = self._num_flips(math.prod(probability.shape[-2:]))
        spaced = jnp.arange(count, dtype=probability.dtype) / count
        uniforms = (uniforms + spaced.reshape(-1, *[1] * len(lead))) % 1
        slots = pick(probability.reshape(*lead, -1), *uniforms)
        return Drawn(slots, guess.flips.draw_partners(slots, jax.random.fold_in(at.key, 1)))

    def learn(self, cv: Any, dist: Distribution, at: Evaluated, guess: Guess, drawn: Drawn) -> Any:
        """The sums with this step's flips added."""
        cv = self.past(cv, at)
        slots, (d, m) = drawn.slots, dist.flip_shape
        known = partial(at_slots, slots=slots)
        change, mean_change, further = changes(at, guess, drawn)
        sound = jnp.isfinite(change) if at.sound is None else jnp.isfinite(change) & at.sound
        if self.use_gradient:
            sound = sound & jnp.isfinite(known(guess.flips.first_order(Slope(at.dfx, None))))
        change, mean_change = (jnp.where(sound, c, 0) for c in (change, mean_change))
        seen, share = jnp.mean(jnp.abs(change)), jnp.mean(sound.astype(change.dtype))
        scale = jnp.where(guess.scale > 0, guess.scale, jnp.where(seen > 0, seen, 1))
        slope, *others = (known(feature) for feature in guess.features)
        slope, change = slope + further / scale, change / scale
        # Divided by π, sums over the flips estimate sums over all neighbours.
        count = math.prod(guess.change.shape[-2:])
        weight = known(guess.size) ** 2 / (known(guess.probability) * count)
        unusual = jnp.maximum(jnp.abs(change), jnp.abs(slope)) / UNUSUAL
        weight = jnp.where(sound, weight / jnp.maximum(unusual, 1) ** 2, 0)
        missed = (mean_change - known(guess.change)) / scale
        usual = jnp.sum(cv.error) / (jnp.sum(cv.size) + TINY)
        error = jnp.where(sound, missed**2, 0)
        error = jnp.where(usual > 0, jnp.minimum(error, FAR * usual), error)
        # The coefficients are fitted to what the tables leave, and the tables to what these leave.
        regressed = change if guess.residual is None else change - known(guess.residual)
        features = jnp.stack([slope, *others], axis=-1)
        weighted = weight[..., None] * features
        coordinates = guess.flips.coordinate_of(slots)
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
        here, there = known(guess.flips.here), known(guess.flips.there)
        tables = None
        if cv.tables is not None:
            bound = jnp.sqrt(error)
            missed = jnp.clip(jnp.where(sound, missed, 0), -bound, bound)
            tables = cv.tables.learn(coordinates, here, there, missed, error, weight, one_flip(cv))
        effect = None
        slow = kept(slots.size, self.memory * d)
        if cv.effect is not None:
            ones, change = jnp.ones_like(change), change * scale
            moves = weight[..., None] * jnp.stack([change, ones, -change, ones], axis=-1)
            effect = jnp.zeros((d, m, 2), change.dtype).at[coordinates, there].add(moves[..., :2])
            effect = effect.at[coordinates, here].add(moves[..., 2:]) + slow * cv.effect
        of_flips = {**sums, "flips": share * slots.size}
        return self.CV(
            **{name: slow * getattr(cv, name) + new for name, new in of_flips.items()},
            **sums_of_values(cv, at, seen),
            effect=effect,
            tables=tables,
            products=cv.products,
        )


def sums_of_values(cv: Any, at: Evaluated, seen: Float[Array, ""]) -> dict[str, Float[Array, ""]]:
    """The sums over steps with this step added, where `seen` is its mean absolute change of f."""
    # The usual distance of f from its mean bounds how far one step can move the mean.
    middle, usual = cv.value / (cv.steps + TINY), cv.deviation / (cv.steps + TINY)
    off = mean(at.only_sound(at.fx - middle))
    off = jnp.where(usual > 0, jnp.clip(off, -DISTANT * usual, DISTANT * usual), off)
    deviation = mean(at.only_sound(jnp.abs(at.fx - middle)))
    new = {
        "change": at_most(seen, cv.change),
        "value": at.sound_share * middle + off,
        "deviation": jnp.where(cv.steps > 0, at_most(deviation, cv.deviation), 0),
        "steps": at.sound_share,
    }
    fast = 1 - min(1 / FAST_STEPS, at.fx.size / FAST_SAMPLES)
    return {name: fast * getattr(cv, name) + added for name, added in new.items()}


def one_flip(cv: Any) -> Float[Array, ""]:
    """The mean weight of a past flip."""
    return jnp.sum(cv.size) / (cv.flips + TINY)


def at_most(new: Float[Array, ""], past: Float[Array, ""]) -> Float[Array, ""]:
    """What a step adds to a sum, which grows by at most the factor 1 + GROWTH once it is known."""
    return jnp.where(past > 0, jnp.minimum(new, GROWTH * past), new)


def corrected(at: Evaluated, guess: Guess, drawn: Drawn) -> Any:
    """The local expectation gradient of the guess plus its errors at the flips, divided by π."""
    slots = drawn.slots
    missed = changes(at, guess, drawn)[1] - at_slots(guess.change, slots)
    terms = missed / (at_slots(guess.probability, slots) * len(slots))
    last = lambda array: jnp.moveaxis(array, 0, -1)
    flat = scatter(last(terms), last(slots), math.prod(guess.change.shape[-2:]))
    change = guess.change + flat.reshape(guess.change.shape)
    return jax.tree.map(mean_of_samples, guess.flips.local_gradient(change, guess.conditional))


def changes(at: Evaluated, guess: Guess, drawn: Drawn) -> tuple[Array, Array, Array | float]:
    """Returns f(y) − f(x); the same difference with the randomness of the partner's slope removed;
    and by how much the first-order change exceeds the one that the guess used.

    For a flip to a value of probability 0 the change is 0, even if f is infinite there.
    """
    assert at.fy is not None
    change = jnp.where(at_slots(guess.conditional, drawn.slots) == 0, 0, at.fy - at.fx)
    if drawn.partners is None:
        return change, change, 0.0
    further, chance = guess.flips.by_chance(drawn.slots, drawn.partners, guess.slope)
    return change, change - at_slots(guess.weight, drawn.slots) * chance, further


def at_slots(
    array: Array, slots: Int[Array, "flips samples ..."]
) -> Float[Array, "flips samples ..."] | Int[Array, "flips samples ..."]:
    """The entries of an array `[..., d, n]` at the slots that were drawn."""
    flat = array.reshape(*array.shape[:-2], -1)
    return jnp.moveaxis(jnp.take_along_axis(flat, jnp.moveaxis(slots, 0, -1), axis=-1), -1, 0)


def mixed(importance: Float[Array, "... d n"], uniform: float) -> Float[Array, "... d n"]:
    """Probabilities in proportion to the importance, mixed with a share `uniform` of equal
    probabilities. If all importances are 0, the probabilities are equal."""
    total = sum_of_events(importance, axes=2)[..., None, None]
    share = 1 / math.prod(importance.shape[-2:])
    proportional = jnp.where(total > TINY, importance / jnp.maximum(total, TINY), share)
    return (1 - uniform) * proportional + uniform * share


def pick(
    probability: Float[Array, "... n"],
    first: Float[Array, "draws ..."],
    second: Float[Array, "draws ..."],
) -> Int[Array, "draws ..."]:
    """Draw indices with these probabilities, each from two uniform numbers in [0, 1). The first
    number chooses a block of √n to 2√n entries, the second an entry of the block. This is cheaper
    than one long cumulative sum and, in float32, more exact."""
    n = probability.shape[-1]
    root = math.isqrt(n - 1) + 1
    # A width that divides n, if there is one: appending zeros takes as long as all the sums.
    width = next((width for width in range(root, 2 * root) if n % width == 0), root)
    if n % width:
        padding = [(0, 0)] * (probability.ndim - 1) + [(0, -n % width)]
        probability = jnp.pad(probability, padding)
    blocks = probability.reshape(*probability.shape[:-1], -1, width)

    def position(masses, uniform):
        below = running_sum(masses)
        target = uniform[..., None] * below[..., -1:]
        return sum_of_events((below < target).astype(masses.dtype)).astype(jnp.int32)

    block = position(sum_of_events(blocks), first)
    inside = jnp.take_along_axis(blocks[None], block[..., None, None], axis=-2)[..., 0, :]
    return jnp.minimum(block * width + position(inside, second), n - 1)
