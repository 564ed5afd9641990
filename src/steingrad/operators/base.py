"""The base classes of operators, and the sparse row that an operator returns."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..arrays import as_index, check_whole, expand
from ..distributions import Distribution
from ..distributions.neighbours import Neighbours
from ..fast import sum_of_events


class Row(eqx.Module):
    r"""A row of an operator at a state $x$: $(A h)(x) = \sum_n w_n h(y_n) + w_0 h(x)$.

    `neighbours` holds the states $y_n$ in slots `[..., c, n]`; see `Neighbours` for its `values`
    and `coordinates`. `weights` are the $w_n$, and `self_weight` is $w_0$. `own`: the
    own-coordinate scan.
    """

    neighbours: Neighbours
    weights: Float[Array, "... c n"]
    self_weight: Float[Array, "..."]
    own: bool = eqx.field(static=True, default=False)

    @property
    def values(self) -> Int[Array, "... c n"]:
        """The indices of the new values."""
        return self.neighbours.values

    @property
    def coordinates(self) -> Int[Array, "... c"] | None:
        """The coordinates that change; `None` if all of them do, in order."""
        return self.neighbours.coordinates

    def evaluate(
        self, h: Callable[[Float[Array, "..."]], Float[Array, "..."]]
    ) -> Float[Array, "... c n"]:
        r"""$h(y_n)$ for any function `h`, called at every neighbour."""
        # Where q, and so the weight, is 0, h may be infinite, for example if it contains log q.
        return jnp.where(self.weights == 0, 0, self.neighbours.evaluate(h))

    def apply(self, h: Float[Array, "... c n"], h_self: Float[Array, "..."]) -> Float[Array, "..."]:
        r"""$(A h)(x)$ from the values of $h$ at the neighbours and at $x$."""
        return sum_of_events(self.weights * h, axes=2) + self.self_weight * h_self

    def apply_to_score(
        self, h: Float[Array, "... c n"], h_self: Float[Array, "..."], score: Any
    ) -> Any:
        r"""$(A (h s))(x) = s(x) \, (A h)(x) + \sum_n w_n h(y_n) \, (s(y_n) - s(x))$, where
        `score` is $s(x)$.

        With the own-coordinate scan component $i$ has its own operator, the update of coordinate
        $i$ without the factor $1/d$. $(A h)(x)$ is then one number for each coordinate.
        """
        if self.own:
            weights = self.weights * self.neighbours.dist.num_coordinates
            at_x = self.neighbours.times_score(weights * (h - h_self[..., None, None]), score)
        else:
            weights, applied = self.weights, self.apply(h, h_self)
            at_x = jax.tree.map(lambda s: expand(applied, s.ndim) * s, score)
        return jax.tree.map(jnp.add, at_x, self.neighbours.score_change(weights * h))


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
        return row.apply(row.evaluate(h), h(x))


class CoordinateOperator(Operator):
    r"""An operator whose neighbours differ from $x$ in one coordinate.

    With `num_coordinates` $= m$, each application visits $m$ of the $d$ coordinates, drawn at
    random (evenly spaced from a random start), with weights scaled by $d/m$. The mean is still
    zero, the cost is lower, and a `key` is needed.
    """

    num_coordinates: int | None = eqx.field(
        static=True, converter=as_index, default=None, kw_only=True
    )
    """The number of coordinates to visit, drawn at random (default and paper: all)."""
    averages: ClassVar[bool] = False
    """Whether the operator is a mean over coordinates, with a factor 1/d, and not a sum."""

    def __check_init__(self):
        if self.num_coordinates is not None:
            name = type(self).__name__
            check_whole(name, "num_coordinates", self.num_coordinates, 1, " (or None: all)")

    @abc.abstractmethod
    def offsets(self, dist: Distribution) -> tuple[int, ...] | None:
        """The neighbours of a coordinate's value, as cyclic differences of index; `None` for all
        other values."""

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

        def row(part, x):
            coordinates, factor = None, 1.0
            if self.num_coordinates is not None:
                coordinates, factor = self._draw_coordinates(part, x, dist, key)
            neighbours = part.neighbours(x, self.offsets(part), coordinates)
            weights, self_weight = self.weights(part, x, neighbours.values, coordinates)
            return neighbours, weights * factor, self_weight * factor

        neighbours, weights, self_weight = dist.rows(row, x, self.averages)
        return Row(neighbours, weights, self_weight, self._own)

    def _draw_coordinates(self, part, x, dist, key) -> tuple[Int[Array, "... m"] | None, float]:
        """The coordinates to visit (`None`: all of them), and the factor d/m."""
        m: Any = self.num_coordinates
        d, name = part.num_coordinates, type(self).__name__
        if part is not dist:
            raise ValueError(
                f"{name}(num_coordinates={m}) draws from the coordinates of one distribution, but "
                f"was given a {type(dist).__name__} of several. Use num_coordinates=None for all."
            )
        if m > d:
            raise ValueError(
                f"{name}(num_coordinates={m}) asks for more coordinates than the distribution has: "
                f"at most {d}."
            )
        if m < d and key is None:
            raise ValueError(
                f"{name}(num_coordinates={m}) draws coordinates at random: pass key=..."
            )
        if m == d:
            return None, 1.0
        lead = x.shape[: x.ndim - part.event_ndim]
        return systematic_sample(jax.random.randint(key, lead, 0, d, jnp.int32), m, d), d / m

    @property
    def _own(self) -> bool:
        return False


def systematic_sample(start: Int[Array, "..."], m: int, d: int) -> Int[Array, "... m"]:
    """`m` of `d` coordinates, evenly spaced. Each coordinate is chosen by `m` of the `d` starts."""
    # ⌊(start + d j) / m⌋, where d j may be too large for 32 bits.
    whole, rest = np.divmod(d * np.arange(m, dtype=np.int64), m)
    whole, rest = (jnp.asarray(part, start.dtype) for part in (whole, rest))
    return whole + (start[..., None] + rest) // m


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
    """log q(yᵢ | x₋ᵢ) − log(q(xᵢ | x₋ᵢ) + damping): avoids tiny denominators (paper)."""
    log_ratio = dist.log_ratio(x, values, coordinates)
    if damping == 0:
        return log_ratio
    here = log_prob_here(dist, x, coordinates)[..., None]
    return log_ratio + here - jnp.log(jnp.exp(here) + damping)
