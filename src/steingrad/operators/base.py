"""The sparse row that every operator gives, and how an operator is written."""

import abc
import functools
import operator
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..arrays import check_whole, expand, scatter, split_slots, stack_slots, sum_of_events
from ..distributions import Distribution, Joint


class Row(eqx.Module):
    r"""A row of an operator at a state $x$: $(A h)(x) = \sum_n w_n h(y_n) + w_0 h(x)$.

    Neighbour $y_n$ is $x$ with one coordinate changed: `coordinates[..., c]` says which (`None`:
    all of them, in order) and `values[..., c, n]` gives the index of its new value. `space` knows
    what these indices mean: the distribution itself, except for `TransitionMatrix`, where the
    whole state counts as a single coordinate. `weights` are the $w_n$, `self_weight` is $w_0$.
    `own` marks the own-coordinate scan.
    """

    values: Int[Array, "... c n"]
    weights: Float[Array, "... c n"]
    self_weight: Float[Array, "..."]
    coordinates: Int[Array, "... c"] | None
    space: Any
    own: bool = eqx.field(static=True, default=False)

    def evaluate(
        self, h: Callable[[Float[Array, "..."]], Float[Array, "..."]], x: Float[Array, "..."]
    ) -> Float[Array, "... c n"]:
        r"""$h(y_n)$ for any function `h`, called at every neighbour."""
        h_values = self.space.at_neighbours(h, x, self.values, self.coordinates)
        # Where q is 0 and hence the weight, h may be infinite: log q is.
        return jnp.where(self.weights == 0, 0, h_values)

    def linear_change(
        self, gradient: Float[Array, "..."], x: Float[Array, "..."]
    ) -> Float[Array, "... c n"]:
        r"""$\nabla^\top (y_n - x)$."""
        return self.space.linear_change(gradient, x, self.values, self.coordinates)

    def score_change(self, coefficients: Float[Array, "... c n"], x: Float[Array, "..."]) -> Any:
        r"""$\sum_n c_n \, (s(y_n) - s(x))$."""
        return self.space.score_change(coefficients, x, self.values, self.coordinates)

    def weighted_score_change(
        self, coefficients: Float[Array, "... c n"], x: Float[Array, "..."]
    ) -> Any:
        r"""$\sum_k \sum_n c_{kn} \, (s(y_{kn}) - s(x_k))$ over all samples, shaped like the
        parameters."""
        return self.space.weighted_score_change(coefficients, x, self.values, self.coordinates)

    def apply(self, h: Float[Array, "... c n"], h_self: Float[Array, "..."]) -> Float[Array, "..."]:
        r"""$(A h)(x)$ from the values of $h$ at the neighbours and at $x$."""
        return sum_of_events(self.weights * h, axes=2) + self.self_weight * h_self

    def apply_to_score(
        self,
        h: Float[Array, "... c n"],
        h_self: Float[Array, "..."],
        score: Any,
        x: Float[Array, "..."],
    ) -> Any:
        r"""$(A (h s))(x) = s(x) \, (A h)(x) + \sum_n w_n h(y_n) \, (s(y_n) - s(x))$, where
        `score` is $s(x)$.

        With the own-coordinate scan component $i$ has its own operator, the update of coordinate
        $i$ without the $1/d$, so that $(A h)(x)$ becomes one number for each coordinate.
        """
        weights = self.weights
        if self.own:
            weights = weights * self.space.num_coordinates
            applied = jnp.sum(weights * (h - h_self[..., None, None]), axis=-1)
            if self.coordinates is not None:
                applied = scatter(applied, self.coordinates, self.space.num_coordinates)
        else:
            applied = self.apply(h, h_self)
        change = self.score_change(weights * h, x)
        return jax.tree.map(lambda s, c: expand(applied, s.ndim) * s + c, score, change)


class JointRow(Row):
    """The row of an operator on a `Joint`: the neighbours of each of its parts, one after the other
    along the axis of coordinates."""

    rows: tuple[Row, ...] = ()

    @classmethod
    def of(cls, joint: Joint, rows: list[Row], shares: list[float]) -> "JointRow":
        """The rows of the parts, with a factor for each."""
        weights = [row.weights * share for row, share in zip(rows, shares, strict=True)]
        here = [row.self_weight * share for row, share in zip(rows, shares, strict=True)]
        return cls(
            values=stack_slots([row.values for row in rows]),
            weights=stack_slots(weights),
            self_weight=functools.reduce(operator.add, here),
            coordinates=None,
            space=joint,
            own=rows[0].own,
            rows=tuple(rows),
        )

    def evaluate(self, h, x):
        states = self.space.each(x)

        def with_part(p):
            return lambda own: h(self.space.join([*states[:p], own, *states[p + 1 :]]))

        return stack_slots(
            [row.evaluate(with_part(p), states[p]) for p, row in enumerate(self.rows)]
        )

    def linear_change(self, gradient, x):
        parts = zip(self.rows, self.space.each(gradient), self.space.each(x), strict=True)
        return stack_slots([row.linear_change(g, own) for row, g, own in parts])

    def score_change(self, coefficients, x):
        parts = zip(self.rows, self._each(coefficients), self.space.each(x), strict=True)
        return self.space.named([row.score_change(c, own) for row, c, own in parts])

    def weighted_score_change(self, coefficients, x):
        parts = zip(self.rows, self._each(coefficients), self.space.each(x), strict=True)
        return self.space.named([row.weighted_score_change(c, own) for row, c, own in parts])

    def apply_to_score(self, h, h_self, score, x):
        if not self.own:
            return super().apply_to_score(h, h_self, score, x)
        scores, states = self.space.in_order(score), self.space.each(x)
        parts = zip(self.rows, self._each(h), scores, states, strict=True)
        return self.space.named(
            [row.apply_to_score(own, h_self, s, state) for row, own, s, state in parts]
        )

    def _each(self, h: Float[Array, "... c 1"]) -> list[Array]:
        """What belongs to the neighbours of each part."""
        return split_slots(h, [row.values.shape[-2:] for row in self.rows])


class Operator(eqx.Module):
    r"""A discrete Stein operator: $E_q[(A h)(x)] = 0$ for every function $h$."""

    @abc.abstractmethod
    def neighbours(
        self, dist: Distribution, x: Float[Array, "..."], *, key: PRNGKeyArray | None = None
    ) -> Row:
        """The row of the operator at each state in `x`, of shape `[..., *event]`."""

    def apply(
        self,
        h: Callable[[Float[Array, "..."]], Float[Array, "..."]],
        dist: Distribution,
        x: Float[Array, "..."],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "..."]:
        """(A h)(x) for any function `h`: `[..., *event] -> [...]`, called at every neighbour."""
        row = self.neighbours(dist, x, key=key)
        return row.apply(row.evaluate(h, x), h(x))


class CoordinateOperator(Operator):
    r"""An operator whose neighbours differ from $x$ in one coordinate.

    With `num_coordinates` $= m$, each application visits $m$ of the $d$ coordinates, drawn at
    random (evenly spaced from a random start) with weights scaled by $d/m$: still mean zero, and
    cheaper. It then needs a `key`.
    """

    num_coordinates: eqx.AbstractVar[int | None]
    """The number of coordinates to visit, drawn at random (default and paper: all)."""
    averages: ClassVar[bool] = False
    """Whether it is a mean over coordinates, with 1/d, or a sum."""

    @abc.abstractmethod
    def offsets(self, dist: Distribution) -> tuple[int, ...]:
        """The neighbours of a coordinate's value, as cyclic differences of index."""

    @abc.abstractmethod
    def weights(
        self,
        dist: Distribution,
        x: Float[Array, "..."],
        values: Int[Array, "... c n"],
        coordinates: Int[Array, "... c"] | None,
    ) -> tuple[Float[Array, "... c n"], Float[Array, "..."]]:
        """The weights of the neighbours and of `x` itself, over the given coordinates."""

    def neighbours(
        self, dist: Distribution, x: Float[Array, "..."], *, key: PRNGKeyArray | None = None
    ) -> Row:
        """The row of the operator at each state in `x`, of shape `[..., *event]`."""
        check_state(dist, x)
        if isinstance(dist, Joint):
            return self._of_parts(dist, x)
        d = dist.num_coordinates
        m = d if self.num_coordinates is None else self.num_coordinates
        if m > d:
            raise ValueError(
                f"{type(self).__name__}(num_coordinates={m}) asks for more coordinates than the "
                f"distribution has: at most {d}."
            )
        coordinates = None
        if m < d:
            if key is None:
                raise ValueError(
                    f"{type(self).__name__}(num_coordinates={m}) draws coordinates at random: "
                    "pass key=..."
                )
            lead = x.shape[: x.ndim - dist.event_ndim]
            coordinates = systematic_sample(jax.random.randint(key, lead, 0, d, jnp.int32), m, d)
        values = dist.shift(x, self.offsets(dist), coordinates)
        weights, self_weight = self.weights(dist, x, values, coordinates)
        return Row(values, weights * (d / m), self_weight * (d / m), coordinates, dist, self._own)

    def _of_parts(self, joint: Joint, x: Float[Array, "..."]) -> JointRow:
        if self.num_coordinates is not None:
            raise ValueError(
                f"{type(self).__name__}(num_coordinates={self.num_coordinates}) draws among the "
                "coordinates of one distribution. On a Joint, leave num_coordinates at None: all."
            )
        rows, shares = [], []
        for part, own in zip(joint.parts, joint.each(x), strict=True):
            rows.append(self.neighbours(part, own.astype(part.dtype)))
            share = part.num_coordinates / joint.num_coordinates
            shares.append(share if self.averages else 1.0)
        return JointRow.of(joint, rows, shares)

    @property
    def _own(self) -> bool:
        return False


def systematic_sample(start: Int[Array, "..."], m: int, d: int) -> Int[Array, "... m"]:
    """`m` of `d` coordinates, evenly spaced: each is among them for `m` of the `d` starts."""
    # ⌊(start + d j) / m⌋, where d j may be too large for 32 bits.
    whole, rest = np.divmod(d * np.arange(m, dtype=np.int64), m)
    whole, rest = (jnp.asarray(part, start.dtype) for part in (whole, rest))
    return whole + (start[..., None] + rest) // m


def check_num_coordinates(name: str, num_coordinates: Any) -> None:
    if num_coordinates is not None:
        check_whole(name, "num_coordinates", num_coordinates, 1, " (or None: all)")


def check_damping(name: str, damping: float) -> None:
    if damping < 0:
        raise ValueError(f"{name} needs damping of 0 or more, but was given {damping}.")


def check_state(dist: Distribution, x: Any) -> None:
    """Raise unless `x` has the shape of states of `dist`."""
    shape = (*dist.batch_shape, *dist.event_shape)
    if x.ndim < len(shape) or x.shape[x.ndim - len(shape) :] != shape:
        raise ValueError(
            f"A state of this {type(dist).__name__} has shape [..., "
            f"{', '.join(map(str, shape))}], but x has shape {x.shape}."
        )


def log_prob_here(dist: Distribution, x: Array, coordinates: Array | None) -> Array:
    r"""$\log q(x_i \mid x_{-i})$ for each coordinate, of shape `[..., c]`."""
    values = dist.shift(x, tuple(range(1, dist.num_values)), coordinates)
    log_ratio = dist.log_ratio(x, values, coordinates)
    return -jax.nn.softplus(jax.nn.logsumexp(log_ratio, axis=-1))


def damped_log_ratio(
    dist: Distribution, x: Array, values: Array, coordinates: Array | None, damping: float
) -> Array:
    """log q(yᵢ | x₋ᵢ) − log(q(xᵢ | x₋ᵢ) + damping): the paper's guard against tiny denominators."""
    log_ratio = dist.log_ratio(x, values, coordinates)
    if damping == 0:
        return log_ratio
    here = log_prob_here(dist, x, coordinates)[..., None]
    return log_ratio + here - jnp.log(jnp.exp(here) + damping)
