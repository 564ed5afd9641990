"""Markov chains for a q that cannot be sampled directly."""

from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..arrays import as_index, check_whole, expand, is_concrete
from .base import Distribution, check_inside
from .from_log_prob import FromLogProb
from .joint import Joint
from .subset import Subset

CHECKED_STATES = 32  # states at which `init` checks the blocks
# If random states have probability 0, this many walks search for others, for so many sweeps. The
# walks have favourite values, the last of them by this many logits.
WALKS, SEARCH_SWEEPS, FAVOUR = 64, 20, 12.0


class Chains(eqx.Module):
    """The states of the chains, and the number of their sweeps."""

    x: Float[Array, "chains ..."]
    """The states, of shape `[num_chains, *batch, *event]`."""
    sweeps: Int[Array, ""]
    """The number of times that each coordinate has been resampled."""


class GibbsSampler(eqx.Module):
    r"""Samples from $q$ by drawing one coordinate after the other from $q(x_i \mid x_{-i})$:
    **approximate**, for a q that is known up to a constant, or has no sampler.

    One sweep leaves $q$ invariant, so in the limit of many sweeps the states are samples of $q$.
    After few sweeps they are not, and the states of one chain depend on each other. Different
    chains are independent, as an estimator's samples must be. An estimate from the chains is
    unbiased for the distribution that they have reached. So discard the first sweeps, call `init`
    once and keep the chains during training, and check `Chains.sweeps`.

    `sweeps` is the number of sweeps of each call. The coordinates are drawn in order or, with
    `blocks`, one block after the other, all coordinates of a block at once. They must be
    independent given the coordinates outside their block, such as the two colours of a chessboard
    for an Ising model. `init` checks this at a few states (not under `jax.jit`), `check` at more.

    **States of probability 0**: chains start at possible states, and never move to others. If the
    random states of `init` are impossible, `init` draws from `dist.sample`, or, without a sampler,
    searches by random walks. If no possible state is found, or if `start` is impossible, an error
    asks for another `start`. A chain can become impossible later, because the distribution has
    changed since `init`, or because the coordinates of a block depend on each other. The call then
    raises an error too. Inside `jax.jit` and `jax.vmap` nothing can be raised: there the states of
    such a chain are NaN, from then on. If some changes of single coordinates are impossible, check
    that those that are left lead from each possible state to each other one.

    The sampler uses `log_ratio` and `log_prob`, and takes any number of values.

    Reference: Geman and Geman, "Stochastic relaxation, Gibbs distributions, and the Bayesian
    restoration of images", IEEE Transactions on Pattern Analysis and Machine Intelligence 1984.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> chain = lambda coupling, x: coupling * jnp.sum(x[1:] * x[:-1])
    >>> q = sg.FromLogProb(chain, jnp.array(0.4), num_coordinates=5, values=(-1, 1))
    >>> sampler = GibbsSampler(sweeps=10, blocks=[(0, 2, 4), (1, 3)])
    >>> chains = sampler.init(jax.random.key(0), q, num_chains=1000)
    >>> x, chains = sampler(jax.random.key(1), q, chains)
    >>> x.shape, int(chains.sweeps), round(float(jnp.mean(x[:, 0] * x[:, 1])), 1)
    ((1000, 5), 10, 0.4)
    """

    sweeps: int = eqx.field(static=True, default=1)
    blocks: tuple[tuple[int, ...], ...] | None = eqx.field(static=True, default=None)

    def __init__(self, sweeps: int = 1, blocks: Iterable[Any] | None = None):
        self.sweeps = as_index(sweeps)
        check_whole("GibbsSampler", "number of sweeps", self.sweeps, 1)
        self.blocks = None
        if blocks is not None:
            self.blocks = tuple(tuple(as_index(i) for i in block) for block in blocks)
            every = sorted(i for block in self.blocks for i in block)
            if not all(self.blocks) or every != list(range(len(every))):
                raise ValueError(
                    "GibbsSampler's blocks must name every coordinate 0 … d − 1 once, in blocks of "
                    f"one or more, but was given {_short(blocks)}."
                )

    def __repr__(self) -> str:
        blocks = "" if self.blocks is None else f", {len(self.blocks)} blocks"
        return f"GibbsSampler(sweeps={self.sweeps}{blocks}) (approximate)"

    def init(
        self,
        key: PRNGKeyArray,
        dist: Distribution,
        num_chains: int,
        start: Float[Array, "..."] | None = None,
    ) -> Chains:
        """Chains at random states of probability above 0, or at `start`, an array with the shape of
        a state (the same for all chains) or of the states of all chains."""
        self._check_distribution(dist)
        num_chains = as_index(num_chains)
        check_whole("GibbsSampler", "num_chains", num_chains, 1)
        if start is None:
            states = _possible_states(key, dist, max(num_chains, CHECKED_STATES))
            x = states[:num_chains]
        else:
            shape = (num_chains, *dist.batch_shape, *dist.event_shape)
            x = _as_states(start, dist, shape)
            possible = _possible(dist, x)
            if is_concrete(possible) and not possible.all():
                raise ValueError(
                    "GibbsSampler needs a start of probability above 0, but log_prob is "
                    f"{float(dist.log_prob(x)[~possible][0])} at the state "
                    f"{_short(x[~possible][0])}. Pass another start=..., or none: a possible state "
                    "is then searched for."
                )
            x = _nan_unless(possible, x)
            states = x[np.arange(CHECKED_STATES) % num_chains]
        if self.blocks is not None and is_concrete(x):
            self._check_blocks(key, dist, states[:CHECKED_STATES])
        return Chains(x, jnp.zeros((), jnp.int32))

    def __call__(
        self, key: PRNGKeyArray, dist: Distribution, chains: Any
    ) -> tuple[Float[Array, "chains ..."], Chains]:
        """Returns the states after `sweeps` further sweeps, of shape `[num_chains, *batch,
        *event]`, and the chains for the next call. States of probability 0 raise an error or,
        inside `jax.jit` and `jax.vmap`, are NaN."""
        self._check_distribution(dist)
        if not isinstance(chains, Chains):
            raise TypeError(
                f"GibbsSampler needs chains made by `init`, not a {type(chains).__name__}."
            )
        coordinates, present = self._padded(dist.num_coordinates)
        blocks = (coordinates, present)

        def draw_block(x, inputs):
            key, (coordinates, present) = inputs
            draw = lambda logits: jax.random.categorical(key, logits)
            return update(dist, x, coordinates, present, draw), None

        def sweep(x, key):
            keys = jax.random.split(key, len(coordinates))
            return jax.lax.scan(draw_block, x, (keys, blocks))[0], None

        x, _ = jax.lax.scan(sweep, chains.x, jax.random.split(key, self.sweeps))
        possible = _possible(dist, chains.x) & _possible(dist, x)
        if is_concrete(possible) and not possible.all():
            raise ValueError(
                f"{int((~possible).sum())} of the {possible.size} chains of this GibbsSampler have "
                "reached a state whose probability is 0 or NaN. If the distribution has changed "
                "since `init`, call `init` again. If the sampler has blocks, use smaller ones, or "
                "blocks=None. If log_prob is NaN somewhere, let it return −inf there."
            )
        x = _nan_unless(possible, x)
        return x, Chains(x, chains.sweeps + self.sweeps)

    def check(self, key: PRNGKeyArray, dist: Distribution, states: int = CHECKED_STATES) -> None:
        """Raise if the coordinates of a block depend on each other at one of `states` random
        states, where log q then does not change by the sum of the single changes."""
        start_key, key = jax.random.split(key)
        self._check_blocks(key, dist, _possible_states(start_key, dist, states))

    def _check_blocks(self, key: PRNGKeyArray, dist: Distribution, before: Array) -> None:
        """`check` at given states, which are possible."""
        coordinates, present = self._padded(dist.num_coordinates)

        @eqx.filter_jit
        def independent(dist, coordinates, present, before, key):
            index = dist.index(before)
            other = jax.random.randint(key, index.shape, 0, dist.num_values, index.dtype)
            coordinates = jnp.broadcast_to(coordinates, (*index.shape[:-1], *coordinates.shape))
            where = jnp.where(present, coordinates, dist.num_coordinates)
            values = jnp.take_along_axis(other, coordinates, axis=-1)
            single = dist.log_ratio(before, values[..., None], coordinates)[..., 0]
            single = jnp.where(present, single, 0)
            after = dist.state(_set(index, where, values))
            here, there = dist.log_prob(before), dist.log_prob(after)
            change, changes = there - here, jnp.sum(single, axis=-1)
            scale = jnp.abs(here) + jnp.abs(there) + jnp.sum(jnp.abs(single), axis=-1)
            # All changes start at a possible state, so the sum is −∞ if one of the changes is.
            both = jnp.isneginf(change) & jnp.isneginf(changes)
            finite = jnp.isfinite(scale) & (jnp.abs(change - changes) <= 1e-5 * scale)
            return jnp.all(both | finite)

        for number in range(len(coordinates)):
            if not independent(dist, coordinates[number], present[number], before, key):
                raise ValueError(
                    f"Block {number} of this GibbsSampler has coordinates that depend on each "
                    "other given the rest: they cannot be drawn at once. Use smaller blocks, or "
                    "blocks=None."
                )

    def _check_distribution(self, dist: Distribution) -> None:
        if isinstance(dist, (Joint, Subset)):
            instead = "use its own `sample`, which is exact"
            raise ValueError(
                "GibbsSampler changes one coordinate at a time, but was given "
                f"{type(dist).__name__}: "
                + (f"{instead}." if dist.normalized else "sample its parts one by one.")
            )
        count = sum(map(len, self.blocks)) if self.blocks is not None else dist.num_coordinates
        if count != dist.num_coordinates:
            raise ValueError(
                f"GibbsSampler's blocks name {count} coordinates, but the distribution has "
                f"{dist.num_coordinates}."
            )

    def _padded(self, d: int) -> tuple[Int[Array, "blocks n"], Bool[Array, "blocks n"]]:
        """The blocks as one padded array, and a mask that is false at the padding."""
        blocks = self.blocks or [(i,) for i in range(d)]
        longest = max(map(len, blocks))
        padded = [[*block, *[-1] * (longest - len(block))] for block in blocks]
        coordinates = jnp.asarray(np.asarray(padded, np.int32))
        return jnp.maximum(coordinates, 0), coordinates >= 0


def update(
    dist: Distribution,
    x: Float[Array, "..."],
    coordinates: Int[Array, " n"],
    present: Bool[Array, " n"],
    draw: Callable[[Float[Array, "... n m"]], Int[Array, "... n"]],
) -> Float[Array, "..."]:
    """The states with these coordinates drawn given all others, except where not `present`."""
    index = dist.index(x)
    coordinates = jnp.broadcast_to(coordinates, (*index.shape[:-1], len(coordinates)))
    values = dist.shift(x, tuple(range(1, dist.num_values)), coordinates)
    ratio = dist.log_ratio(x, values, coordinates)
    # The step from the present value: 0, or 1 … m − 1, cyclically.
    step = draw(jnp.concatenate([jnp.zeros_like(ratio[..., :1]), ratio], axis=-1))
    here = jnp.take_along_axis(index, coordinates, axis=-1)
    new = (here + step.astype(here.dtype)) % dist.num_values
    return dist.state(_set(index, jnp.where(present, coordinates, index.shape[-1]), new))


def _set(index: Array, coordinates: Array, values: Array) -> Array:
    """`index` with new values at some coordinates. Coordinates out of range are ignored."""
    flat = index.reshape(-1, index.shape[-1])
    rows = (a.reshape(len(flat), -1) for a in (coordinates, values))
    put = jax.vmap(lambda row, i, v: row.at[i].set(v, mode="drop"))
    return put(flat, *rows).reshape(index.shape)


def _random_states(key: PRNGKeyArray, dist: Distribution, count: int) -> Array:
    shape = (count, *dist.batch_shape, dist.num_coordinates)
    return dist.state(jax.random.randint(key, shape, 0, dist.num_values, jnp.int32))


def _possible(dist: Distribution, x: Float[Array, "..."]) -> Bool[Array, "..."]:
    """Whether the states have a probability above 0, which NaN has not."""
    whole = ~jnp.any(jnp.isnan(x), axis=tuple(range(-dist.event_ndim, 0)))
    return whole & jnp.isfinite(dist.log_prob(x))


def _nan_unless(possible: Bool[Array, "..."], x: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.where(expand(possible, x.ndim), x, jnp.nan)


def _as_states(start: Any, dist: Distribution, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """`start` as an array of this shape."""
    start = jnp.asarray(start).astype(dist.dtype)
    try:
        x = jnp.broadcast_to(start, shape)
    except ValueError as error:
        raise ValueError(
            f"GibbsSampler's start has shape {start.shape}, but a state has shape {shape[1:]}, and "
            f"the states of all chains have shape {shape}: pass start=... of one of these shapes."
        ) from error
    check_inside(dist, x, "Pass start=... with values of this distribution.")
    return x


def _possible_states(key: PRNGKeyArray, dist: Distribution, count: int) -> Float[Array, "..."]:
    """Random states of probability above 0, of shape `[count, *batch, *event]`. If none is found,
    an error is raised or, for tracers, the states are NaN."""
    random_key, search_key, choice_key = jax.random.split(key, 3)
    x = _random_states(random_key, dist, count)
    possible = _possible(dist, x)
    if is_concrete(possible) and possible.all():
        return x
    if isinstance(dist, FromLogProb) and dist.sampler is None:
        others, tried = _search(search_key, dist, jnp.all(possible)), f"{WALKS} random walks"
    else:
        others, tried = dist.sample(search_key, (count,)), "as many samples of its own"
    # Each impossible state is replaced by a random one of the possible ones.
    logits = jnp.where(_possible(dist, others), 0.0, -jnp.inf)
    choice = jax.random.categorical(choice_key, logits, axis=0, shape=possible.shape)
    others = jnp.take_along_axis(others, expand(choice, x.ndim), axis=0)
    x = jnp.where(expand(possible, x.ndim), x, others)
    possible = possible | _possible(dist, x)
    if is_concrete(possible) and not possible.all():
        raise ValueError(
            f"GibbsSampler found no state of this {type(dist).__name__} with a probability above "
            f"0, in {count} random states and {tried}. Pass such a state as start=... to `init`."
        )
    return _nan_unless(possible, x)


def _search(key: PRNGKeyArray, dist: Distribution, done: Bool[Array, ""]) -> Float[Array, "..."]:
    """The ends of random walks, of shape `[WALKS, *batch, *event]`, most of which are possible if
    possible states are not too rare. Nothing is searched for if `done`.

    A walk draws one coordinate after the other from $q(x_i | x_{-i})$. Where all values of the
    coordinate have probability 0, a walk prefers its favourite value: by nothing for the first
    walk, so that its states are uniform, and by so much for the last that its states are nearly
    constant. Constraints are often met by states that are nearly constant.
    """
    d, m = dist.num_coordinates, dist.num_values
    favourite = jax.nn.one_hot(jnp.arange(WALKS, dtype=jnp.int32) % m, m)
    favourite *= jnp.linspace(0, FAVOUR, WALKS, dtype=favourite.dtype)[:, None]
    start_key, key = jax.random.split(key)
    x = _random_states(start_key, dist, WALKS)
    favourite = favourite.reshape(WALKS, *[1] * len(dist.batch_shape), m)

    def step(x, inputs):
        key, coordinate = inputs
        index = dist.index(x)
        coordinates = jnp.full((*index.shape[:-1], 1), coordinate)
        values = jnp.broadcast_to(jnp.arange(m, dtype=index.dtype), (*coordinates.shape, m))
        log_probs = dist.at_neighbours(dist.log_prob, x, values, coordinates)[..., 0, :]
        possible = jnp.isfinite(log_probs)
        log_probs = jnp.where(possible, log_probs, -jnp.inf)
        liked = favourite.astype(log_probs.dtype)
        logits = jnp.where(jnp.any(possible, axis=-1, keepdims=True), log_probs, liked)
        value = jax.random.categorical(key, logits)[..., None].astype(index.dtype)
        return dist.state(_set(index, coordinates, value)), None

    def sweep(carry):
        x, number = carry
        keys = jax.random.split(jax.random.fold_in(key, number), d)
        x, _ = jax.lax.scan(step, x, (keys, jnp.arange(d, dtype=jnp.int32)))
        return x, number + 1

    def unfinished(carry):
        x, number = carry
        return ~done & (number < SEARCH_SWEEPS) & ~jnp.all(_possible(dist, x))

    return jax.lax.while_loop(unfinished, sweep, (x, jnp.zeros((), jnp.int32)))[0]


def _short(rows: Any) -> str:
    text = str(np.asarray(rows).tolist() if hasattr(rows, "shape") else [list(r) for r in rows])
    return text if len(text) < 80 else text[:77] + "..."
