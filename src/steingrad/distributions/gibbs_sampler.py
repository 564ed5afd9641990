"""Markov chains for a q that cannot be sampled directly."""

from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..arrays import as_index, check_whole, is_concrete
from .base import Distribution
from .joint import Joint
from .subset import Subset

CHECKED_STATES = 4  # random states at which `init` checks the blocks


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
    for an Ising model. `init` checks this at a few random states (not under `jax.jit`), `check` at
    more.

    The sampler only uses `log_ratio`, and takes any number of values.

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
        """Chains at random states, or all at `start`, an array with the shape of a state."""
        self._check_distribution(dist)
        num_chains = as_index(num_chains)
        check_whole("GibbsSampler", "num_chains", num_chains, 1)
        if self.blocks is not None and is_concrete(jax.tree.leaves(dist.parameters)[0]):
            self.check(key, dist)
        shape = (num_chains, *dist.batch_shape)
        x = _random_states(key, dist, shape)
        if start is not None:
            x = jnp.broadcast_to(jnp.asarray(start, x.dtype), x.shape)
        return Chains(x, jnp.zeros((), jnp.int32))

    def __call__(
        self, key: PRNGKeyArray, dist: Distribution, chains: Any
    ) -> tuple[Float[Array, "chains ..."], Chains]:
        """Returns the states after `sweeps` further sweeps, of shape `[num_chains, *batch,
        *event]`, and the chains for the next call."""
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
        return x, Chains(x, chains.sweeps + self.sweeps)

    def check(self, key: PRNGKeyArray, dist: Distribution, states: int = CHECKED_STATES) -> None:
        """Raise if the coordinates of a block depend on each other at one of `states` random
        states, where log q then does not change by the sum of the single changes."""
        coordinates, present = self._padded(dist.num_coordinates)

        @eqx.filter_jit
        def excess(dist, coordinates, present, key):
            before, after = _random_states(key, dist, (2, states, *dist.batch_shape))
            index, other = dist.index(before), dist.index(after)
            lead = index.shape[:-1]
            coordinates = jnp.broadcast_to(coordinates, (*lead, *coordinates.shape))
            where = jnp.where(present, coordinates, dist.num_coordinates)
            values = jnp.take_along_axis(other, coordinates, axis=-1)
            single = dist.log_ratio(before, values[..., None], coordinates)[..., 0]
            single = jnp.where(present, single, 0)
            there = dist.state(_set(index, where, values))
            a, b = dist.log_prob(before), dist.log_prob(there)
            scale = jnp.abs(a) + jnp.abs(b) + jnp.sum(jnp.abs(single), axis=-1)
            return jnp.max(jnp.abs(b - a - jnp.sum(single, axis=-1)) - 1e-5 * scale)

        for number in range(len(coordinates)):
            if float(excess(dist, coordinates[number], present[number], key)) > 0:
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


def _random_states(key: PRNGKeyArray, dist: Distribution, lead: tuple[int, ...]) -> Array:
    shape = (*lead, dist.num_coordinates)
    return dist.state(jax.random.randint(key, shape, 0, dist.num_values, jnp.int32))


def _short(blocks: Any) -> str:
    text = str([list(block) for block in blocks])
    return text if len(text) < 80 else text[:77] + "..."
