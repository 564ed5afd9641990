"""Bronco: straight-through, corrected by a random flip."""

import functools
import math
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from ..arrays import (
    as_index,
    check_whole,
    compute_dtype,
    mean,
    mean_of_samples,
    running_sum,
    scatter,
    sum_of_events,
)
from ..distributions import Bernoulli, Categorical, Ordinal, Subset
from ..distributions.base import Distribution
from ..objective import Evaluated
from .base import Estimator, check_num_samples
from .flips import Flips, Slope, flips_of, num_coordinates, num_values

# How much a coordinate's own past counts: its coefficients are shrunk towards those common to all
# by as much as this many flips, the common ones towards the first guess, its error to the mean.
OWN, COMMON, ERROR = 1.0, 10.0, 2.0
# The variance is least if flips go where the error's root mean square is large (the power ½ of its
# square); a little more pays off in the layers below, since such coordinates have large weights.
POWER = 0.7
# f itself drifts faster, in training, than what flips do to it: its mean is over the last 20 steps,
# or as many as have 500 samples.
VALUE_STEPS, VALUE_SAMPLES = 20, 500
# The past's scale is trusted within this factor of what is seen now. Beyond it the objective has
# jumped: sums in units of the scale stay right with the new one.
JUMP = 30.0
TINY = 1e-30


class Guess(NamedTuple):
    """What a sample says about all its neighbours, before f is evaluated at any of them."""

    flips: Flips
    """The neighbours, one coordinate changed."""
    conditional: Float[Array, "... d n"]
    """The probability of the coordinate's new value."""
    features: tuple[Float[Array, "... d n"], ...]
    """What the guess is a combination of."""
    scale: Float[Array, ""]
    """The size of a change of f, by which everything is divided; 0 if not known yet."""
    change: Float[Array, "... d n"]
    """The guess of f(y) − f(x)."""
    slope: Slope
    weight: Float[Array, "... d n"]
    """How much the slope counts in the guess, a."""
    size: Float[Array, "... d n"]
    """How much a neighbour's change counts in the gradient."""
    probability: Float[Array, "... d n"]
    """π, with which a neighbour is drawn."""


class Drawn(NamedTuple):
    """The neighbours that were drawn, `flips` for each sample."""

    slots: Int[Array, "flips samples ..."]
    partners: Int[Array, "flips samples ..."] | None = None
    """What changes with the coordinate, in a `Subset`."""


class Bronco(Estimator):
    r"""$g = \frac1K \sum_k \sum_{i,v} q(x_i = v) \Big(r_{iv} + \frac{1[\text{flip } (i, v)]}
    {\pi_{iv}} (\Delta_{iv} - r_{iv})\Big) s_i(v)$ with $\Delta_{iv} = f(x_k \text{ with } x_i = v)
    - f(x_k)$.

    $r$ guesses from $f$ and $\nabla f$ at $x_k$ what each change of one coordinate does to $f$. For
    one of them, drawn with probability $\pi$, $f$ is evaluated (without a backward pass), and what
    the guess missed is added over its probability. So the mean of $g$ over flips is the local
    expectation gradient, whatever $r$ and $\pi$ are, and $g$ is unbiased. With `flips` $= m$ it is
    the mean over $m$ of them. $f$ is evaluated $K (1 + m)$ times.

    The guess is $r_{iv} = a_i \nabla f^\top (y - x) + |y - x|^2 (b_i + c_i \tilde f)$: slope,
    curvature, and how the curvature goes with the value of $f$. Each coordinate's three numbers
    solve a least-squares problem over the flips already seen, of which about `memory` for each
    coordinate are remembered; the first guess is straight-through, $a = 1$, $b = c = 0$. $\pi$ goes
    with $q(v) (1 - q(v))$ and with the errors of the coordinate's past guesses, mixed with a share
    `uniform` of the uniform distribution. With `use_gradient=False` the past flips' mean effect of
    each value takes the place of $\nabla f$.

    For `Bernoulli`, `Categorical`, `Ordinal`, `Subset` and `Joint`s of these. A bit of a subset
    changes together with a random partner (`flips.Swaps`).

    Its state is made of sums over past flips: `steingrad.cv_optimizer` makes the plain step that
    brings them up to date. With any other the estimate stays unbiased, but the guess is lost.
    `num_samples` is $K$.

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
        """Sums over past flips, the older the less; for each coordinate."""

        gram: Float[Array, "d 3 3"]
        cross: Float[Array, "d 3"]
        error: Float[Array, " d"]
        """Squares of what the guess missed,"""
        size: Float[Array, " d"]
        """and of what they are relative to."""
        flips: Float[Array, ""]
        change: Float[Array, ""]
        value: Float[Array, ""]
        """f,"""
        deviation: Float[Array, ""]
        """its distance from its mean,"""
        steps: Float[Array, ""]
        """and how many steps both are sums over."""
        effect: Float[Array, "d m 2"] | None
        """Without the gradient: changes of f by taking on each value, and their number."""

    num_samples: int = eqx.field(static=True, converter=as_index, default=1)
    """The number of samples, K."""
    flips: int = eqx.field(static=True, converter=as_index, default=1)
    """The number of flips of each sample. f is evaluated once at each flip."""
    memory: float = eqx.field(static=True, default=100.0)
    """About how many past flips of each coordinate are remembered."""
    uniform: float = eqx.field(static=True, default=0.1)
    """The share of flips that are drawn from all possible flips alike."""
    use_gradient: bool = eqx.field(static=True, default=True)
    """Guess with the gradient of f. If off, the mean effect of past flips takes its place."""
    distributions: ClassVar = (Bernoulli, Categorical, Ordinal, Subset)
    by_parts: ClassVar = True

    def __check_init__(self):
        check_num_samples("Bronco", self.num_samples, 1, "the states that are flipped")
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

    @property
    def cv_is_quadratic(self):
        return False

    def num_evaluations(self, dist):
        return self.num_samples * (1 + self.flips)

    def init(self, key, dist=None):
        if dist is None:
            raise ValueError(
                "Bronco learns something for each coordinate: pass the distribution too, "
                "`estimator.init(key, dist)`. Only its shape matters."
            )
        d, m = num_coordinates(dist), num_values(dist)
        zero = jnp.zeros(())
        effect = None if self.use_gradient else jnp.zeros((d, m, 2))
        moments = jnp.zeros((d, 3, 3)), jnp.zeros((d, 3)), jnp.zeros(d), jnp.zeros(d)
        return self.CV(*moments, zero, zero, zero, zero, zero, effect)

    def cv_optimizer(self, learning_rate):
        return optax.sgd(1.0)

    def choose(self, cv, dist, at):
        return self.draw(at, self.guess(cv, dist, at))

    def further_points(self, cv, dist, at):
        guess = self.guess(cv, dist, at)
        return guess.flips.points(*self.draw(at, guess))

    def gradient(self, cv, dist, at):
        guess = self.guess(cv, dist, at)
        return corrected(at, guess, self.draw(at, guess))

    def adapt(self, cv, dist, at):
        guess = self.guess(cv, dist, at)
        drawn = self.draw(at, guess)
        following = self.learn(cv, dist, at, guess, drawn)
        return corrected(at, guess, drawn), jax.tree.map(jnp.subtract, cv, following)

    def guess(self, cv: Any, dist: Distribution, at: Evaluated) -> Guess:
        """From the samples and the past; never from the flips."""
        cv = jax.tree.map(lambda leaf: leaf.astype(at.fx.dtype), cv)
        flips = flips_of(dist, at.x)
        conditional = flips.conditional.astype(at.fx.dtype)
        size = conditional * (1 - conditional)
        if self.use_gradient:
            slope = Slope(at.dfx, None)
        else:
            number = cv.effect[..., 1] + ERROR * jnp.mean(cv.effect[..., 1]) + TINY
            slope = Slope(None, cv.effect[..., 0] / number)
        linear = flips.linear_change(slope).astype(at.fx.dtype)
        # Where q is 0, f with log q in it has an infinite slope, which must not set the scale.
        linear = jnp.where(conditional > 0, linear, 0)
        scale = past = cv.change / (cv.flips + TINY)
        if self.use_gradient:
            now = mean(jnp.abs(linear))
            scale = jnp.where(now > JUMP * past, now, past)
        cv = after_jump(cv, scale)

        past_mean, deviation = cv.value / (cv.steps + TINY), cv.deviation / (cv.steps + TINY)
        value = (at.fx - past_mean) / jnp.where(deviation > 0, deviation, 1)
        value = jnp.where(deviation > 0, jnp.clip(value, -5, 5), 0)[..., None, None]
        curvature = flips.squared_step.astype(at.fx.dtype)
        features = linear / jnp.where(scale > 0, scale, 1), curvature, curvature * value
        # One by one: an array of all would have to be written to memory.
        a, b, c = (flips.spread(column) for column in coefficients(cv).T)
        change = a * linear + scale * (b * features[1] + c * features[2])

        spread = jnp.sum(cv.error) / (jnp.sum(cv.size) + TINY)
        few = ERROR * jnp.sum(cv.size) / (cv.flips + TINY) + TINY
        relative = (cv.error / jnp.where(spread > 0, spread, 1) + few) / (cv.size + few)
        importance = size * flips.spread(jnp.where(spread > 0, relative, 1) ** POWER)
        probability = mixed(importance, self.uniform)
        weight = jnp.broadcast_to(a, change.shape)
        return Guess(flips, conditional, features, scale, change, slope, weight, size, probability)

    def draw(self, at: Evaluated, guess: Guess) -> Drawn:
        """Which neighbours to evaluate: `d · n` slots, evenly spaced in the order of π, so that two
        flips of a sample seldom are the same."""
        if at.choice is not None:
            return at.choice
        if at.key is None:
            raise ValueError(
                "Bronco draws flips at random: pass key=... to `estimate`, the same with which "
                "`further_points` chose them."
            )
        probability = guess.probability.astype(compute_dtype(guess.probability))
        lead = probability.shape[:-2]
        uniforms = jax.random.uniform(at.key, (2, 1, *lead), probability.dtype)
        spaced = jnp.arange(self.flips, dtype=probability.dtype) / self.flips
        uniforms = (uniforms + spaced.reshape(-1, *[1] * len(lead))) % 1
        slots = pick(probability.reshape(*lead, -1), *uniforms)
        return Drawn(slots, guess.flips.draw_partners(slots, jax.random.fold_in(at.key, 1)))

    def learn(
        self,
        cv: Any,
        dist: Distribution,
        at: Evaluated,
        guess: Guess,
        drawn: Drawn,
    ) -> Any:
        """The sums with this step's flips added."""
        slots = drawn.slots
        known = functools.partial(at_slots, slots=slots)
        change, mean_change, further = changes(at, guess, drawn)
        coordinates = guess.flips.coordinates(slots)
        seen = jnp.mean(jnp.abs(change))
        scale = jnp.where(guess.scale > 0, guess.scale, jnp.where(seen > 0, seen, 1))
        # A slope near zero alone may be chance; that flips do nothing either is a jump downwards.
        now = jnp.maximum(mean(jnp.abs(guess.features[0])) * scale, seen)
        cv = after_jump(cv, jnp.where(now * JUMP < guess.scale, now, guess.scale))
        # Over π: as if all neighbours had been seen.
        slots_count = math.prod(guess.change.shape[-2:])
        weight = known(guess.size) ** 2 / (known(guess.probability) * slots_count)
        features = [known(feature) for feature in guess.features]
        features = jnp.stack([features[0] + further / scale, *features[1:]], axis=-1)
        missed = (mean_change - known(guess.change)) / scale
        target = jnp.concatenate([features, (change / scale)[..., None]], axis=-1)
        products = features[..., :, None] * target[..., None, :]
        columns = [products.reshape(*slots.shape, 12), missed[..., None] ** 2]
        columns = jnp.concatenate([*columns, jnp.ones_like(missed)[..., None]], axis=-1)
        rows = (weight[..., None] * columns).reshape(-1, 14)
        d = num_coordinates(dist)
        sums = jnp.zeros((d, 14), rows.dtype).at[coordinates.reshape(-1)].add(rows)
        products = sums[:, :12].reshape(d, 3, 4)

        effect = None
        if cv.effect is not None:
            here, there = known(guess.flips.here), known(guess.flips.there)
            ones = jnp.ones_like(change)
            moves = weight[..., None] * jnp.stack([change, ones, -change, ones], axis=-1)
            zeros = jnp.zeros((d, num_values(dist), 2), rows.dtype)
            effect = zeros.at[coordinates, there].add(moves[..., :2])
            effect = effect.at[coordinates, here].add(moves[..., 2:])
        count = jnp.asarray(slots.size, rows.dtype)
        past_mean = cv.value / (cv.steps + TINY)
        deviation = jnp.mean(jnp.abs(at.fx - past_mean.astype(at.fx.dtype)))
        new = self.CV(
            products[..., :3],
            products[..., 3],
            sums[:, 12],
            sums[:, 13],
            count,
            seen * count,
            jnp.mean(at.fx),
            jnp.where(cv.steps > 0, deviation, 0),
            jnp.ones_like(count),
            effect,
        )
        window = self.memory * d
        slow = jax.tree.map(lambda leaf: window / (window + slots.size), cv)
        fast = 1 - min(1 / VALUE_STEPS, at.fx.size / VALUE_SAMPLES)
        of_value = lambda cv: (cv.value, cv.deviation, cv.steps)
        decay = eqx.tree_at(of_value, slow, (fast,) * 3)
        return jax.tree.map(lambda old, new, by: by * old + new.astype(old.dtype), cv, new, decay)


def after_jump(cv: Any, scale: Float[Array, ""]) -> Any:
    """If the objective has jumped, `scale` is not the past's: then that is forgotten, and what is
    not in its units, the mean of f. Sums that are stay right."""
    change = scale.astype(cv.change.dtype) * cv.flips
    jumped = jnp.abs(change - cv.change) > 0.1 * change
    old = (cv.value, cv.deviation, cv.steps)
    kept = (jnp.where(jumped, 0, leaf) for leaf in old)
    where = lambda cv: (cv.change, cv.value, cv.deviation, cv.steps)
    return eqx.tree_at(where, cv, (jnp.where(jumped, change, cv.change), *kept))


def corrected(at: Evaluated, guess: Guess, drawn: Drawn) -> Any:
    """The local expectation gradient of the guess, with what it missed at the flips over π."""
    slots = drawn.slots
    missed = changes(at, guess, drawn)[1] - at_slots(guess.change, slots)
    terms = missed / (at_slots(guess.probability, slots) * len(slots))
    lead = guess.change.shape[:-2]
    flat = scatter(
        jnp.moveaxis(terms, 0, -1), jnp.moveaxis(slots, 0, -1), math.prod(guess.change.shape[-2:])
    )
    change = guess.change + flat.reshape(*lead, *guess.change.shape[-2:])
    return jax.tree.map(mean_of_samples, guess.flips.gradient(change))


def changes(
    at: Evaluated, guess: Guess, drawn: Drawn
) -> tuple[Float[Array, "flips samples ..."], Float[Array, "flips samples ..."], Any]:
    """f(y) − f(x); the same without what chance and the slope make of a change that is random; and
    how much further to first order the change was than the guess knew.

    0 where q(y) is 0, and f with −log q in it infinite."""
    if at.fy is None:
        raise ValueError(
            "Bronco needs f at the flips: pass fy, f at the points that `further_points` chose, or "
            "use `value_and_grad` or `expectation`."
        )
    if at.fy.shape != drawn.slots.shape:
        raise ValueError(
            f"Bronco takes f at the flips of shape {drawn.slots.shape}, but fy has shape "
            f"{at.fy.shape}."
        )
    change = jnp.where(at_slots(guess.conditional, drawn.slots) == 0, 0, at.fy - at.fx)
    if drawn.partners is None:
        return change, change, 0.0
    terms = guess.flips.by_chance(drawn.slots, drawn.partners, guess.slope)
    further, chance = (term.astype(change.dtype) for term in terms)
    return change, change - at_slots(guess.weight, drawn.slots) * chance, further


def at_slots(
    array: Array, slots: Int[Array, "flips samples ..."]
) -> Float[Array, "flips samples ..."] | Int[Array, "flips samples ..."]:
    """The entries `[..., d, n]` that were drawn."""
    flat = array.reshape(*array.shape[:-2], -1)
    return jnp.moveaxis(jnp.take_along_axis(flat, jnp.moveaxis(slots, 0, -1), axis=-1), -1, 0)


def mixed(importance: Float[Array, "... d n"], uniform: float) -> Float[Array, "... d n"]:
    """Probabilities in proportion to the importance, if there is any, and a share of all alike."""
    total = sum_of_events(importance, axes=2)[..., None, None]
    share = 1 / math.prod(importance.shape[-2:])
    proportional = jnp.where(total > TINY, importance / jnp.maximum(total, TINY), share)
    return (1 - uniform) * proportional + uniform * share


def pick(
    probability: Float[Array, "... n"],
    first: Float[Array, "draws ..."],
    second: Float[Array, "draws ..."],
) -> Int[Array, "draws ..."]:
    """Draws from numbers uniform in [0, 1): a block of √n to 2√n entries, then one of these, which
    is cheaper than one long sum and, in float32, more exact."""
    n = probability.shape[-1]
    root = math.isqrt(n - 1) + 1
    # Without a rest if that can be had: to append zeros takes as long as all the sums.
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


def coefficients(cv: Any) -> Float[Array, "d 3"]:
    """a, b, c of each coordinate: least squares, shrunk towards those common to all."""
    total, total_cross = jnp.sum(cv.gram, axis=0), jnp.sum(cv.cross, axis=0)
    one_flip = jnp.diagonal(total) / (cv.flips + TINY) + TINY
    # Straight-through; but means of past flips are to prove their worth.
    first = jnp.asarray([1 if cv.effect is None else 0, 0, 0], total.dtype)
    common = solve(total + jnp.diag(COMMON * one_flip), total_cross + COMMON * one_flip * first)
    return solve(cv.gram + jnp.diag(OWN * one_flip), cv.cross + OWN * one_flip * common)


def solve(gram: Float[Array, "*d 3 3"], right: Float[Array, "*d 3"]) -> Float[Array, "*d 3"]:
    """Positive definite systems by Cholesky's method, written out: all of them at once, each of
    its few operations on a vector, where a library takes the systems one by one."""
    n = right.shape[-1]
    factor: dict[tuple[int, int], Array] = {}
    for j in range(n):
        left = gram[..., j, j] - sum(factor[j, k] ** 2 for k in range(j))
        # What rounding leaves of a feature that depends on the others.
        factor[j, j] = jnp.sqrt(jnp.maximum(left, 1e-6 * gram[..., j, j] + TINY))
        for i in range(j + 1, n):
            left = gram[..., i, j] - sum(factor[i, k] * factor[j, k] for k in range(j))
            factor[i, j] = left / factor[j, j]
    y: list[Array] = []
    for i in range(n):
        left = right[..., i] - sum(factor[i, k] * y[k] for k in range(i))
        y.append(left / factor[i, i])
    for i in reversed(range(n)):
        left = y[i] - sum(factor[k, i] * y[k] for k in range(i + 1, n))
        y[i] = left / factor[i, i]
    return jnp.stack(y, axis=-1)
