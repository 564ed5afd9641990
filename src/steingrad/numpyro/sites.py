"""The discrete sites of a guide as distributions of steingrad."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpyro.distributions as nd
from jaxtyping import Array, Num, Shaped

from ..distributions import Bernoulli, Categorical, Distribution, Joint
from ..estimators import Bronco, Estimator, Lariat

BITS = nd.BernoulliLogits, nd.BernoulliProbs
CATEGORIES = nd.CategoricalLogits, nd.CategoricalProbs
WRAPPERS = nd.Independent, nd.ExpandedDistribution, nd.MaskedDistribution


def innermost(fn: Any) -> Any:
    """The distribution without `to_event`, `expand` and `mask`."""
    while isinstance(fn, WRAPPERS):
        fn = fn.base_dist
    return fn


class Site(NamedTuple):
    """A discrete site of the guide, and how its values are states of a distribution.

    The axes of plates whose elements are independent are the batch of the distribution. All other
    axes of a value are its coordinates.
    """

    shape: tuple[int, ...]
    """The shape of a value."""
    axes: tuple[int, ...]
    """The axes of a value that are the batch, in order."""
    categories: int | None
    """The number of categories; `None` for bits."""
    floating: bool
    """Whether bits are floating-point numbers for the guide and the model, so that the ELBO can be
    differentiated with respect to them. Otherwise they are integers."""

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The lengths of the axes that are the batch."""
        return tuple(self.shape[axis] for axis in self.axes)

    def distribution(self, fn: Any) -> Distribution:
        """The distribution of the states, for the numpyro distribution `fn`."""
        trailing = () if self.categories is None else (self.categories,)
        logits = jnp.broadcast_to(innermost(fn).logits, (*self.shape, *trailing))
        logits = jnp.moveaxis(logits, self.axes, range(len(self.axes)))
        logits = logits.reshape(*self.batch_shape, math.prod(self._rest), *trailing)
        return Bernoulli(logits) if self.categories is None else Categorical(logits)

    def value(self, x: Shaped[Array, "..."]) -> Num[Array, "..."]:
        """The value that the guide and the model see, for a state."""
        if self.categories is not None:
            x = jnp.argmax(x, axis=-1)
        value = x.reshape(*self.batch_shape, *self._rest)
        value = jnp.moveaxis(value, range(len(self.axes)), self.axes)
        return value if self.floating else value.astype(jnp.result_type(int))

    @property
    def _rest(self) -> list[int]:
        return [n for axis, n in enumerate(self.shape) if axis not in self.axes]


class Group(NamedTuple):
    """Sites that are independent of each other, with the same batch. One estimator takes all of
    them together, so that the number of evaluations does not grow with the number of sites."""

    sites: dict[str, Site]
    dims: frozenset[int]
    """The dimensions of the plates that are the batch, counted from the right."""
    model_terms: frozenset[str]
    """The sites of the model whose log-probabilities depend on these sites."""
    guide_terms: frozenset[str]
    """The sites of the guide whose log-probabilities depend on these sites."""
    estimator: Estimator

    @property
    def name(self) -> str:
        """The names of the sites."""
        return "+".join(self.sites)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape of the batch."""
        return next(iter(self.sites.values())).batch_shape

    def distribution(self, parts: Mapping[str, Distribution]) -> Distribution:
        """The distribution of all sites together."""
        each = [parts[name] for name in self.sites]
        return each[0] if len(each) == 1 else Joint(each)

    def merge(self, dist: Any, states: Mapping[str, Shaped[Array, "..."]]) -> Shaped[Array, "..."]:
        """The state of the group, from the states of its sites."""
        each = [states[name] for name in self.sites]
        return each[0] if len(each) == 1 else dist.merge(each)

    def split(self, dist: Any, x: Shaped[Array, "..."]) -> dict[str, Shaped[Array, "..."]]:
        """The states of the sites: the inverse of `merge`."""
        return self.by_site(dist.split(x) if len(self.sites) > 1 else x)

    def by_site(self, each: Any) -> dict[str, Any]:
        """A tuple with an entry for each site, or the only entry, as a dictionary."""
        return dict(zip(self.sites, each if len(self.sites) > 1 else [each], strict=True))


def groups_of(
    discrete: Mapping[str, Mapping[str, Any]],
    guide: Mapping[str, frozenset[str]],
    model: Mapping[str, frozenset[str]],
    plates: Mapping[str, frozenset[Any]],
    estimator: Estimator,
) -> list[Group]:
    """The groups of the discrete sites of a guide, which are given by their messages. A group comes
    after all groups on which its sites depend.

    `guide` and `model` have the discrete sites on which each log-probability depends. `plates` has
    the plates that contain a site; for a site of both, those that contain it in both.
    """
    found: list[tuple[Any, dict[str, Site]]] = []
    place: dict[str, int] = {}
    for name, message in discrete.items():
        # The elements of a plate are independent if it contains everything that depends on them.
        terms = {term for deps in (guide, model) for term, on in deps.items() if name in on}
        shared = frozenset(message["cond_indep_stack"]).intersection(*(plates[t] for t in terms))
        site = _site(message["fn"], {frame.dim for frame in shared}, estimator)
        kind = shared, site.categories is None
        first = max((place[other] + 1 for other in guide[name] - {name}), default=0)
        same = (g for g in range(first, len(found)) if found[g][0] == kind)
        place[name] = next(same, len(found))
        if place[name] == len(found):
            found.append((kind, {}))
        found[place[name]][1][name] = site
    groups = []
    for (shared, is_bits), sites in found:
        depend = lambda deps, own=set(sites): frozenset(t for t, on in deps.items() if on & own)
        fitting = estimator if is_bits else without_gradient(estimator, sites)
        dims = frozenset(frame.dim for frame in shared)
        groups.append(Group(sites, dims, depend(model), depend(guide), fitting))
    if estimator.goes_by_gradient and any(guide[name] - {name} for name in discrete):
        raise TypeError(
            f"{type(estimator).__name__} differentiates the ELBO between the states of a site, but "
            f"discrete sites of the guide, {', '.join(discrete)}, depend on each other, so that "
            "the ELBO jumps there. Use Bronco, RLOO or another estimator that only needs states."
        )
    return groups


def _site(fn: Any, dims: set[int], estimator: Estimator) -> Site:
    inner = innermost(fn)
    categories = jnp.shape(inner.logits)[-1] if isinstance(inner, CATEGORIES) else None
    axes = tuple(sorted(len(fn.batch_shape) + dim for dim in dims))
    floating = categories is None and bool(estimator.needs_gradient or estimator.relaxes)
    return Site((*fn.batch_shape, *fn.event_shape), axes, categories, floating)


def without_gradient(estimator: Estimator, names: Any) -> Estimator:
    """The same estimator for categories. Their values are integers, so that the ELBO cannot be
    differentiated with respect to them."""
    if not (estimator.needs_gradient or estimator.relaxes):
        return estimator
    if isinstance(estimator, Bronco):
        return replace(estimator, use_gradient=False)
    if isinstance(estimator, Lariat) and estimator.surrogate is None:
        return replace(estimator, gradients=False)
    raise TypeError(
        f"{type(estimator).__name__} needs the gradient of the ELBO with respect to the site "
        f"{', '.join(names)}, but the values of a Categorical site are integers. Use an estimator "
        "that needs no gradient: Bronco, Lariat, RLOO, CARMS or LocalExpectation."
    )
