"""Running a guide and a model with given states at the discrete sites of the guide."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Shaped
from numpyro.distributions.distribution import validation_enabled
from numpyro.handlers import replay, seed, substitute, trace
from numpyro.infer.elbo import get_nonreparam_deps
from numpyro.infer.util import compute_log_probs
from numpyro.primitives import Messenger
from numpyro.util import check_model_guide_match

from ..derivatives import stop_gradient
from ..distributions import Distribution
from ..estimators import Estimator
from .sites import BITS, CATEGORIES, Group, Site, groups_of, innermost

States = Mapping[str, Shaped[Array, "..."]]


class Choose(Messenger):
    """Sets the values of the discrete sites of a guide. It belongs outside `seed`, so that the
    random numbers of all other sites stay the same, whatever the values are."""

    def __init__(self, fn: Callable, choose: Callable[[str, Any, PRNGKeyArray], Any], names: Any):
        super().__init__(fn)
        self.choose = choose
        self.names = names

    def process_message(self, msg):
        if msg["type"] == "sample" and msg["name"] in self.names:
            msg["value"] = self.choose(msg["name"], msg["fn"], msg["kwargs"]["rng_key"])


class Drawn(NamedTuple):
    """What a run of the guide says about its discrete sites."""

    parts: dict[str, Distribution]
    """The distributions of the sites, given the states of the sites before."""
    draws: dict[str, Shaped[Array, "samples ..."]]
    """The samples of the estimator at each site, of which the first one is the state of the site
    for the rest of the guide. Sites whose states were given have none."""


class Ran(NamedTuple):
    """What a run of guide and model says about the ELBO."""

    total: Float[Array, ""]
    r"""$\log p - \log q$."""
    terms: dict[str, Float[Array, "..."]]
    """For each group, the part of the total that depends on its sites, of the shape of its
    batch."""
    mutable: dict[str, Any]
    """The values of the sites of type "mutable"."""


class Program:
    """A guide and a model with their arguments. All runs use the same random numbers, so that what
    differs between two runs is the effect of the given states."""

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        args: tuple,
        kwargs: dict[str, Any],
        key: PRNGKeyArray,
        params: dict[str, Any],
        estimator: Estimator,
    ):
        self.args, self.kwargs = args, kwargs
        model_key, guide_key = jax.random.split(key)
        self.model, self.guide = seed(model, model_key), seed(guide, guide_key)
        # Between the states a distribution that validates its values has the log-probability −∞.
        self.relaxes = bool(estimator.relaxes)
        self.groups = _groups(self, (model, guide), params, estimator)

    @property
    def sites(self) -> dict[str, Site]:
        """All discrete sites of the guide."""
        return {name: site for group in self.groups for name, site in group.sites.items()}

    def draw(self, params: dict[str, Any]) -> Drawn:
        """Run the guide alone, with states drawn by the estimators."""
        guide, drawn = self._chosen({}, {})
        trace(substitute(guide, data=params)).get_trace(*self.args, **self.kwargs)
        return drawn

    def run(self, params: dict[str, Any], given: States, bumps: States) -> Ran:
        """Run the guide and the model with the `given` states, and draw all others. `bumps` are
        zeros that are added to states, as places at which to differentiate."""
        with validation_enabled(False) if self.relaxes else contextlib.nullcontext():
            return self._run(params, given, bumps)

    def _run(self, params: dict[str, Any], given: States, bumps: States) -> Ran:
        guide, _ = self._chosen(given, bumps)
        call = {"sum_log_prob": False}
        log_q, guide_trace = compute_log_probs(guide, self.args, self.kwargs, params, **call)
        for name in self.sites:
            log_q[name] = _log_prob_of_constants(guide_trace[name])
        mutable = _mutable(guide_trace)
        model = replay(self.model, guide_trace)
        everything = {**params, **mutable}
        log_p, model_trace = compute_log_probs(model, self.args, self.kwargs, everything, **call)
        mutable.update(_mutable(model_trace))

        total = sum(map(jnp.sum, log_p.values())) - sum(map(jnp.sum, log_q.values()))
        terms = {}
        for group in self.groups:
            plus = [_to_batch(log_p[name], group) for name in sorted(group.model_terms)]
            minus = [_to_batch(log_q[name], group) for name in sorted(group.guide_terms)]
            terms[group.name] = sum(plus) - sum(minus)
        return Ran(jnp.asarray(total), terms, mutable)

    def _chosen(self, given: States, bumps: States) -> tuple[Callable, Drawn]:
        """The guide with the given states, and a record that is filled in when it runs."""
        drawn = Drawn({}, {})
        estimators = {name: group.estimator for group in self.groups for name in group.sites}
        sites = self.sites

        def choose(name, fn, key):
            dist = sites[name].distribution(fn)
            drawn.parts[name] = dist
            if name in given:
                x = given[name]
            else:
                drawn.draws[name] = estimators[name].draw(key, stop_gradient(dist))
                x = drawn.draws[name][0]
            return sites[name].value(x + bumps[name] if name in bumps else x)

        return Choose(self.guide, choose, sites), drawn


def _log_prob_of_constants(site: dict[str, Any]) -> Float[Array, "..."]:
    """The log-probability of a value with the distribution's parameters as constants. Its gradient
    with respect to them has the mean 0, so it would only add noise."""
    log_prob = stop_gradient(site["fn"]).log_prob(site["value"])
    return log_prob if site["scale"] is None else site["scale"] * log_prob


def _mutable(of: Mapping[str, dict]) -> dict[str, Any]:
    return {name: site["value"] for name, site in of.items() if site["type"] == "mutable"}


def _to_batch(log_prob: Float[Array, "..."], group: Group) -> Float[Array, "..."]:
    """The sums of a log-probability over all axes that are not the batch of the group."""
    others = [axis for axis in range(log_prob.ndim) if axis - log_prob.ndim not in group.dims]
    return jnp.broadcast_to(jnp.sum(log_prob, axis=tuple(others)), group.batch_shape)


def _groups(program: Program, functions: Any, params: dict, estimator: Estimator) -> list[Group]:
    """The groups of discrete sites, found by running guide and model without numbers."""
    args, kwargs = program.args, program.kwargs
    found = {}

    def look(params):
        guide = substitute(program.guide, data=params)
        found["guide"] = trace(guide).get_trace(*args, **kwargs)
        model = substitute(replay(program.model, found["guide"]), data=params)
        found["model"] = trace(model).get_trace(*args, **kwargs)
        check_model_guide_match(found["model"], found["guide"])

    jax.eval_shape(look, params)
    latent = {
        role: {name: site for name, site in of.items() if _is_latent(site)}
        for role, of in found.items()
    }
    discrete = {n: site for n, site in latent["guide"].items() if site["fn"].support.is_discrete}
    _check(latent, discrete)
    if not discrete:
        return []
    model_deps, guide_deps = get_nonreparam_deps(*functions, args, kwargs, params)
    plates: dict[str, frozenset] = {}
    for of in found.values():
        for name, site in of.items():
            if site["type"] == "sample":
                stack = frozenset(site["cond_indep_stack"])
                plates[name] = plates.get(name, stack) & stack
    return groups_of(discrete, guide_deps, model_deps, plates, estimator)


def _is_latent(site: dict[str, Any]) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def _check(latent: dict[str, dict], discrete: dict[str, Any]) -> None:
    """Raise if a site is of a kind for which there is no gradient."""
    for name, site in latent["guide"].items():
        inner = innermost(site["fn"])
        if name not in discrete:
            if not site["fn"].has_rsample:
                raise NotImplementedError(
                    f"The site {name!r} of the guide is continuous, but its distribution, "
                    f"{type(inner).__name__}, has no reparametrised samples. Use a distribution "
                    "that has them, such as Normal, Gamma or Beta."
                )
        elif not isinstance(inner, (*BITS, *CATEGORIES)):
            raise NotImplementedError(
                f"The discrete site {name!r} of the guide has the distribution "
                f"{type(inner).__name__}, but only Bernoulli and Categorical are supported, also "
                "with expand, to_event and mask. Use one of these in the guide. The model may have "
                "another distribution at this site."
            )
        elif site.get("_control_flow_done", False):
            raise NotImplementedError(
                f"The discrete site {name!r} of the guide is inside a scan or cond of numpyro. Use "
                "a Python loop in the guide, or one site for all steps. The model may have a scan."
            )
    for name, site in latent["model"].items():
        if name not in latent["guide"] and site["fn"].support.is_discrete:
            raise NotImplementedError(
                f"The discrete site {name!r} of the model is not in the guide. Add a site of this "
                "name to the guide, sum over its values with MixtureSameFamily, or use "
                "numpyro.infer.TraceEnum_ELBO, which enumerates it."
            )
