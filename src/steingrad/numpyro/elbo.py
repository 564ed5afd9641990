"""The ELBO, and an SVI that keeps its control variates."""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.infer
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ..cv_optimizer import cv_optimizer
from ..derivatives import drawn_with, stop_gradient
from ..estimators import Bronco, Estimator, base
from ..estimators.checks import check_cv, check_distribution
from ..objective import Evaluated
from .program import Program
from .sites import Group

STATE = "steingrad$cv"
"""The name of the control variates in the mutable state of SVI."""


class Learned(NamedTuple):
    """What is learned for a group of sites."""

    cv: Any
    optimizer: Any
    """The state of the optimiser of `cv`."""


class Particle(NamedTuple):
    """The results of one particle."""

    value: Float[Array, ""]
    """The ELBO."""
    gradient: Any
    """The gradient of the ELBO with respect to the parameters."""
    cv: dict[str, Any]
    """The gradients for the control variates of each group."""
    mutable: dict[str, Any]
    """The values of the user's own mutable sites."""


class ELBO(numpyro.infer.elbo.ELBO):
    r"""The ELBO for `numpyro.infer.SVI`, with an estimator for the discrete sites of the guide.

    $\nabla_\lambda E_{q_\lambda}[\log p(x, z) - \log q_\lambda(z)]$, where some of the sites $z$ of
    the guide are `Bernoulli` or `Categorical`, also with `expand`, `to_event` or `mask`. Their
    distributions get their gradients from the `estimator`, by default `Bronco()`. All other sites
    must have reparametrised samples and are differentiated as usual.

    Sites that depend on other discrete sites are allowed. The gradient for a site is that of the
    ELBO given the sites before it, where the sites after it are drawn again with the same random
    numbers for all values of the site. Sites that do not depend on each other, and are in the same
    plates, share the evaluations of one estimator.

    The elements of a plate are independent: each one has its own part of the ELBO, unless something
    outside the plate depends on the site. The sums of a plate with `subsample_size` are scaled as
    usual.

    Bits are floating-point numbers for the guide and the model if the estimator needs the gradient
    of the ELBO with respect to them. The values of a `Categorical` site are integers, so there
    `Bronco` and `Lariat` are used without gradients.

    `num_particles` and `vectorize_particles` are those of `numpyro.infer.Trace_ELBO`. An estimator
    with K samples evaluates the ELBO at K states of each discrete site in each particle. Control
    variates that are learned by descent take Adam steps of size `cv_learning_rate`.

    Estimators that learn need `steingrad.numpyro.SVI`, which keeps their control variates. With
    others, such as `RLOO`, `numpyro.infer.SVI` does too.

    >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist, optax
    >>> import steingrad as sg
    >>> def model(data):
    ...     with numpyro.plate("data", len(data)):
    ...         bit = numpyro.sample("bit", dist.Bernoulli(0.3))
    ...         numpyro.sample("x", dist.Normal(2 * bit, 1.0), obs=data)
    >>> def guide(data):
    ...     logits = numpyro.param("logits", jnp.zeros(len(data)))
    ...     with numpyro.plate("data", len(data)):
    ...         numpyro.sample("bit", dist.Bernoulli(logits=logits))
    >>> svi = sg.numpyro.SVI(model, guide, optax.adam(0.1), loss=sg.numpyro.ELBO(sg.Bronco()))
    >>> result = svi.run(jax.random.key(0), 200, jnp.array([-1.0, 3.0]), progress_bar=False)
    >>> jax.nn.sigmoid(result.params["logits"]).round(1)
    Array([0., 1.], dtype=float32)
    """

    can_infer_discrete = True

    def __init__(
        self,
        estimator: Estimator | None = None,
        num_particles: int = 1,
        vectorize_particles: Any = True,
        *,
        cv_learning_rate: Any = 1e-3,
    ):
        super().__init__(num_particles, vectorize_particles)
        self.estimator = Bronco() if estimator is None else estimator
        self.cv_learning_rate = cv_learning_rate
        _check(self.estimator)

    def init(
        self,
        rng_key: PRNGKeyArray,
        param_map: dict[str, Any],
        model: Any,
        guide: Any,
        *args,
        **kwargs,
    ) -> dict[str, Any]:
        """The initial control variates, as an entry of the mutable state of SVI; an empty
        dictionary if the estimator learns nothing.

        `SVI` calls this. With another class, add the entry to `SVIState.mutable_state` yourself.
        `rng_key`, `param_map`, `model`, `guide` and their arguments are those of `loss`.
        """
        rng_key = _typed(rng_key)
        program = self._program(rng_key, param_map, model, guide, args, kwargs)
        parts = program.draw(param_map).parts
        learned = {}
        for number, group in enumerate(program.groups):
            key = jax.random.fold_in(rng_key, number)
            cv = group.estimator.init(key, group.distribution(parts))
            if jax.tree.leaves(cv):
                learned[group.name] = Learned(cv, self._optimizer(group).init(cv))
        return {STATE: learned} if learned else {}

    def loss_with_mutable_state(self, rng_key, param_map, model, guide, *args, **kwargs):
        """The loss, which is minus the ELBO, and the mutable state after this step."""
        param_map = dict(param_map)
        learned = param_map.pop(STATE, {})
        moving, still = eqx.partition(param_map, eqx.is_inexact_array)
        # Outside jit a Python number can come out of a derivative.
        constant = jax.tree.map(jnp.asarray, stop_gradient(moving))
        # The program of each particle has its own numbers, but the same groups.
        groups = {}

        def particle(key):
            params = eqx.combine(constant, stop_gradient(still))
            program = self._program(key, params, model, guide, args, kwargs)
            groups.update({group.name: group for group in program.groups})
            return _particle(program, params, {name: own.cv for name, own in learned.items()}, key)

        rng_key = _typed(rng_key)
        if self.num_particles == 1:
            found = particle(rng_key)
        else:
            each = self.vectorize_particles_fn(
                particle, jax.random.split(rng_key, self.num_particles)
            )
            mean = partial(jax.tree.map, lambda leaf: jnp.mean(leaf, axis=0))
            mutable = jax.tree.map(lambda leaf: leaf[0], each.mutable)
            found = Particle(mean(each.value), mean(each.gradient), mean(each.cv), mutable)

        gradient = jax.tree.map(jnp.negative, found.gradient)
        loss = _with_gradient(jax.lax.stop_gradient(-found.value), moving, gradient)
        mutable = jax.lax.stop_gradient(found.mutable)
        if learned:
            step = lambda name: self._step(groups[name], learned[name], found.cv[name])
            mutable[STATE] = jax.lax.stop_gradient({name: step(name) for name in learned})
        return {"loss": loss, "mutable_state": mutable or None}

    def _program(self, key, params, model, guide, args, kwargs) -> Program:
        return Program(model, guide, args, kwargs, key, params, self.estimator)

    def _optimizer(self, group: Group) -> optax.GradientTransformation:
        return cv_optimizer(group.estimator, self.cv_learning_rate)

    def _step(self, group: Group, learned: Learned, cv_grad: Any) -> Learned:
        updates, state = self._optimizer(group).update(cv_grad, learned.optimizer, learned.cv)
        return Learned(optax.apply_updates(learned.cv, updates), state)


class SVI(numpyro.infer.SVI):
    """`numpyro.infer.SVI`, whose state also has the control variates of `ELBO`.

    The control variates need the shapes of the discrete sites, so `init` runs the guide once more.
    `update`, `stable_update`, `run`, `evaluate` and `get_params` are used as in numpyro. The
    arguments `model`, `guide`, `optim`, `loss` and `static_kwargs` are those of numpyro.
    """

    def init(self, rng_key, *args, init_params=None, **kwargs):
        """The initial state, as in numpyro, with the control variates in its `mutable_state`.

        `rng_key`, `init_params` and the arguments of model and guide are those of numpyro.
        """
        state = super().init(rng_key, *args, init_params=init_params, **kwargs)
        if not isinstance(self.loss, ELBO):
            return state
        mutable = state.mutable_state or {}
        params = {**self.get_params(state), **mutable}
        kwargs = {**kwargs, **self.static_kwargs}
        own = self.loss.init(rng_key, params, self.model, self.guide, *args, **kwargs)
        return state._replace(mutable_state={**mutable, **own} or None)

    def evaluate(self, svi_state, *args, **kwargs):
        """The loss at the present parameters. numpyro's own method leaves out the mutable state.

        `svi_state` and the arguments of model and guide are those of numpyro.
        """
        _, key = jax.random.split(svi_state.rng_key)
        params = {**self.get_params(svi_state), **(svi_state.mutable_state or {})}
        kwargs = {**kwargs, **self.static_kwargs}
        return self.loss.loss(key, params, self.model, self.guide, *args, **kwargs)


def _check(estimator: Any) -> None:
    """Raise if the ELBO cannot use the estimator."""
    if not isinstance(estimator, Estimator):
        raise TypeError(
            f"The ELBO needs an estimator such as Bronco() or RLOO(2), but was given {estimator!r}."
        )
    name = type(estimator).__name__
    if estimator.weighs_samples:
        raise TypeError(
            f"{name} gives its samples different weights, so the rest of the guide cannot continue "
            "from one of them. Use an estimator whose samples count alike, such as RLOO or Bronco."
        )
    if not estimator.samples_are_states:
        raise TypeError(
            f"This {name} evaluates the ELBO between the states, where it is not defined. Use an "
            "estimator that draws states, such as GumbelSoftmax(straight_through=True) or Bronco."
        )


def _typed(key: Any) -> PRNGKeyArray:
    """A random key of either kind as a typed one."""
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return key if typed else jax.random.wrap_key_data(key)


@jax.custom_jvp
def _with_gradient(value, params, gradient):
    """The value, with this gradient with respect to the parameters."""
    return value


@_with_gradient.defjvp
def _(primals, tangents):
    value, params, gradient = primals
    gradient = drawn_with(params, gradient)  # there are no second derivatives
    each = zip(jax.tree.leaves(gradient), jax.tree.leaves(tangents[1]), strict=True)
    return value, sum((jnp.vdot(g, t) for g, t in each), jnp.zeros_like(value))


def _particle(program: Program, params: dict[str, Any], cvs: dict, key: PRNGKeyArray) -> Particle:
    """The ELBO, its gradient and the gradients for the control variates, for one particle."""
    moving, still = eqx.partition(params, eqx.is_inexact_array)
    whole = lambda moving: eqx.combine(moving, still)
    groups = program.groups

    # The guide alone, along the first samples of all sites. The estimates of the gradients with
    # respect to its distributions are pulled back through this run.
    def guide(moving):
        drawn = program.draw(whole(moving))
        return {name: part.parameters for name, part in drawn.parts.items()}, drawn

    _, pull_parameters, drawn = jax.vjp(guide, moving, has_aux=True)
    drawn = stop_gradient(drawn)
    dists = {group.name: group.distribution(drawn.parts) for group in groups}
    for group in groups:
        check_distribution(group.estimator, dists[group.name])

    # The ELBO at all samples of the first group. Where it is differentiated with respect to the
    # parameters, all states are constants.
    given = {name: drawn.draws[name] for name in groups[0].sites} if groups else {}
    count = groups[0].estimator.num_samples if groups else 1
    smooth = [name for g in groups if _needs_gradient(g) for name in g.sites]
    bumps = {name: jnp.zeros((count, *drawn.draws[name].shape[1:])) for name in smooth}
    bumps = {name: bump.astype(drawn.draws[name].dtype) for name, bump in bumps.items()}

    def elbo(moving, bumps):
        run = lambda given, bumps: program.run(whole(moving), given, bumps)
        ran = jax.vmap(run, axis_size=count)(given, bumps)
        return ran.total, ran

    total, pull, ran = jax.vjp(elbo, moving, bumps, has_aux=True)
    gradient, slopes = pull(jnp.ones_like(total))
    gradient = jax.tree.map(lambda g: g / count, gradient)

    # `Program` has split the key in two, which in JAX are the same keys as those of 0 and 1.
    own_key = jax.random.fold_in(key, 2)
    estimates, cv_grads = {}, {}
    for number, group in enumerate(groups):
        before = {name: drawn.draws[name][0] for g in groups[:number] for name in g.sites}
        f = partial(_terms, program, params, group, dists[group.name], before)
        x = group.merge(dists[group.name], {name: drawn.draws[name] for name in group.sites})
        fx, dfx = ran.terms[group.name], None
        if _needs_gradient(group):
            dfx = group.merge(dists[group.name], {name: slopes[name] for name in group.sites})
        if number:  # the runs above have only the first sample
            fx, dfx = _with_others(f, x, fx[:1], None if dfx is None else dfx[:1])
        cv = cvs.get(group.name)
        at = Evaluated(x, fx, dfx, f=f, key=jax.random.fold_in(own_key, number))
        grad, cv_grads[group.name] = _estimate(group, cv, dists[group.name], at)
        estimates.update(group.by_site(grad))
    (through,) = pull_parameters(estimates)
    gradient = jax.tree.map(jnp.add, gradient, through)
    mutable = jax.tree.map(lambda leaf: leaf[0], ran.mutable)
    cv_grads = {name: cv_grads[name] for name in cvs}
    return Particle(jnp.mean(total), gradient, cv_grads, mutable)


def _needs_gradient(group: Group) -> bool:
    return bool(group.estimator.needs_gradient and not group.estimator.relaxes)


def _terms(program: Program, params, group: Group, dist, before, x: Array) -> Array:
    """The part of the ELBO that depends on a group, at states of shape `[K, *batch, *event]`. The
    groups before it have the states `before`."""

    def one(x):
        return program.run(params, {**before, **group.split(dist, x)}, {}).terms[group.name]

    return jax.vmap(one)(x)


def _with_others(f, x, fx, dfx):
    """Returns f and its gradient at all samples, given those at the first one."""
    if len(x) == 1:
        return fx, dfx
    if dfx is None:
        return jnp.concatenate([fx, f(x[1:])]), None
    others, pull = jax.vjp(f, x[1:])
    (slopes,) = pull(jnp.ones_like(others))
    return jnp.concatenate([fx, others]), jnp.concatenate([dfx, slopes])


def _estimate(group: Group, cv: Any, dist: Any, at: Evaluated) -> tuple[Any, Any]:
    estimator = group.estimator
    if cv is None:
        _check_nothing_learned(estimator, dist)
    check_cv(estimator, cv, dist)
    return base.run(estimator, cv, dist, at)


def _check_nothing_learned(estimator: Estimator, dist: Any) -> None:
    """Raise if there are no control variates, but the estimator has some."""
    if jax.tree.leaves(jax.eval_shape(lambda key: estimator.init(key, dist), jax.random.key(0))):
        raise ValueError(
            f"{type(estimator).__name__} learns control variates, but SVI has none in its state. "
            "Use steingrad.numpyro.SVI in place of numpyro.infer.SVI, an estimator that learns "
            "nothing, such as RLOO(2), or add the result of ELBO.init to SVIState.mutable_state."
        )
