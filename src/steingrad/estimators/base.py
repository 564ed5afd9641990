"""How an estimator is written, and what all of them share."""

import abc
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from ..arrays import brief, check_whole, compute_dtype, mean, mean_of_squares
from ..derivatives import drawn_with, on_each_device, stop_gradient
from ..distributions import Joint
from ..distributions.base import Distribution, check_inside
from ..objective import NO_GRADIENT, Evaluated, as_jax_arrays, bind, evaluate, has_gradient


class Gradients(NamedTuple):
    """Gradients of the mean of f over samples and batch."""

    parameters: Any
    """With respect to the distribution's parameters: the estimate g, unbiased unless the estimator
    says that it is `biased`."""
    cv: Any
    """For the control variates, what `cv_optimizer` takes: the gradient of the mean of g², or the
    change of what they add up."""
    args: tuple
    """With respect to the further arguments of f (`None` where one is not floating-point)."""


class Estimator(eqx.Module):
    r"""An estimator of $\nabla_\eta E_{q_\eta}[f(x)]$: immutable, its fields are its settings.

    A subclass has `CV` (what it learns, if anything), the fields, whether it is `biased` and the
    `distributions` it works on, then `__check_init__`, the properties, `init` and `cv_optimizer`,
    `sample`, `weights`, `choose`, `further_points`, `gradient` and `adapt`, in this order, leaving
    out what it inherits. Only `gradient` has to be written.
    """

    num_samples: eqx.AbstractVar[int]
    """The number of samples, K."""
    biased: ClassVar[bool] = False
    """Whether its mean is something else than the gradient, by design."""
    distributions: ClassVar[tuple[type[Distribution], ...]] = (Distribution,)
    by_parts: ClassVar[bool] = False
    """Whether it also works on a `Joint` of these."""

    def __repr__(self) -> str:
        return eqx.tree_pformat(self) + (" (biased)" if self.biased else "")

    def handles(self, dist: Distribution) -> bool:
        """Whether it works on this kind of distribution; `distributions` names those it does."""
        if self.by_parts and isinstance(dist, Joint):
            return all(map(self.handles, dist.parts))
        return isinstance(dist, self.distributions)

    def refusal(self, dist: Distribution) -> str | None:
        """Why it does not work on this distribution, and what does; `None` if it does."""
        if self.handles(dist):
            return None
        *most, last = (kind.__name__ for kind in self.distributions)
        kinds = f"{', '.join(most)} and {last}" if most else last
        kinds += (
            ", and on a Joint of such parts" if self.by_parts and isinstance(dist, Joint) else ""
        )
        return (
            f"{type(self).__name__} works on {kinds}, but was given {type(dist).__name__}. RLOO "
            "and Rodeo take any distribution."
        )

    @property
    def needs_gradient(self) -> bool:
        r"""Whether $\nabla f$ is needed: at the samples (or, `Rebar` and `Relax`, between them)."""
        return False

    @property
    def relaxes(self) -> bool:
        """Whether f, or its `relaxation`, is evaluated between the states."""
        return False

    @property
    def goes_by_gradient(self) -> bool:
        r"""Whether its mean depends on $\nabla f$, and is wrong where that is 0 between the states;
        elsewhere the gradient only lowers the variance."""
        return self.relaxes or (self.biased and self.needs_gradient)

    @property
    def samples_are_states(self) -> bool:
        """Whether `sample` gives states, and not points between them (`GumbelSoftmax`)."""
        return True

    @property
    def looks_further(self) -> bool:
        """Whether f is also evaluated at `further_points`."""
        return type(self).further_points is not Estimator.further_points

    @property
    def cv_is_quadratic(self) -> bool:
        """Whether the gradient for the control variates is that of a square of the gradient, and so
        goes with the square of any factor; otherwise no factor changes it."""
        return True

    @property
    def cancels_constant(self) -> bool:
        r"""Whether a constant vector added to all scores changes nothing in the mean, so that
        $\log q$ need not be normalised."""
        return False

    def num_evaluations(self, dist: Distribution) -> int:
        """How many times f is evaluated for one estimate."""
        return self.num_samples

    def init(self, key: PRNGKeyArray, dist: Distribution | None = None) -> Any:
        """The control variates at their start, a module of arrays; `None` where nothing is learned.

        Some need to know the distribution's shape, though not its parameters: they say so.
        """
        return None

    def cv_optimizer(self, learning_rate: Any) -> optax.GradientTransformation:
        """How the control variates take their gradient; see `steingrad.cv_optimizer`."""
        return adam(learning_rate)

    def sample(self, key: PRNGKeyArray, dist: Distribution) -> Float[Array, "samples ..."]:
        """The points at which to evaluate f, of shape `[K, *batch, *event]`."""
        check_distribution(self, dist)
        return dist.sample(key, (self.num_samples,))

    def weights(
        self, dist: Distribution, x: Float[Array, "samples ..."]
    ) -> Float[Array, "samples ..."] | None:
        r"""The $w_k$, of shape `[K, *batch]`, with which $\sum_k w_k f(x_k)$ estimates $E[f]$;
        `None`: $1/K$ each, the samples being distributed as $q$."""
        return None

    def weigh(
        self, dist: Distribution, x: Float[Array, "samples ..."], fx: Float[Array, "samples ..."]
    ) -> Float[Array, "samples ..."]:
        r"""$K w_k f(x_k)$: what has the estimate of $E[f]$ as its mean."""
        weights = self.weights(dist, x)
        if weights is None:
            return fx
        return jnp.where(weights != 0, len(fx) * weights.astype(fx.dtype) * fx, 0)

    def choose(self, cv: Any, dist: Distribution, at: Evaluated) -> Any:
        """What is drawn with `at.key` to decide on `further_points`. Whoever has to leave JAX to
        evaluate f there hands it back as `at.choice`: then it is not drawn again."""
        return None

    def further_points(
        self, cv: Any, dist: Distribution, at: Evaluated
    ) -> Float[Array, "points samples ..."] | None:
        """Where else to evaluate f, without its gradient, now that the samples are known."""
        return None

    @abc.abstractmethod
    def gradient(self, cv: Any, dist: Distribution, at: Evaluated) -> Any:
        """What `estimate` returns, from inputs that have been checked."""

    def adapt(self, cv: Any, dist: Distribution, at: Evaluated) -> tuple[Any, Any]:
        """The estimate, and the gradient of its mean square with respect to `cv`.

        Control variates that are averages of what was seen, or solved for, have no use for that
        gradient. They give `cv` minus what it is to become, for plain gradient descent to subtract.
        """

        @eqx.filter_grad(has_aux=True)
        def mean_square(cv):
            grad = self.gradient(cv, dist, at)
            return mean_of_squares(grad), grad

        cv_grad, grad = mean_square(cv)
        return grad, cv_grad

    def evaluated(
        self,
        cv: Any,
        dist: Distribution,
        x: Shaped[Array | np.ndarray, "samples ..."],
        fx: Shaped[Array | np.ndarray, "samples ..."],
        dfx: Float[Array | np.ndarray, "samples ..."] | None = None,
        *,
        fy: Shaped[Array | np.ndarray, "points samples ..."] | None = None,
        key: PRNGKeyArray | None = None,
        f: Callable[[Array], Array] | None = None,
        context: Array | None = None,
    ) -> Evaluated:
        """What `further_points`, `gradient` and `adapt` take, from evaluations of your own:
        checked."""
        check_distribution(self, dist)
        check_cv(self, cv, dist)
        objective = None if f is None else bind(f, dist, key, relaxed=self.goes_by_gradient)
        # States and values may come as whole numbers, from a simulator, or in half precision.
        x = jnp.asarray(x)
        x = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(compute_dtype(dist.dtype))
        given: Any = [array if array is None else jnp.asarray(array) for array in (fx, dfx, fy)]
        if any(jnp.iscomplexobj(array) for array in jax.tree.leaves(given)):
            raise TypeError("f and its gradient are real numbers, but complex ones were given.")
        dtype = compute_dtype(x, *jax.tree.leaves(given))
        values, gradients, further = jax.tree.map(lambda array: array.astype(dtype), given)
        at = Evaluated(x, values, gradients, further, objective, key, context)
        check_evaluated(self, dist, at)
        if self.samples_are_states:
            check_inside(dist, x)
        return at

    def estimate(
        self,
        cv: Any,
        dist: Distribution,
        x: Shaped[Array | np.ndarray, "samples ..."],
        fx: Shaped[Array | np.ndarray, "samples ..."],
        dfx: Float[Array | np.ndarray, "samples ..."] | None = None,
        *,
        fy: Shaped[Array | np.ndarray, "points samples ..."] | None = None,
        key: PRNGKeyArray | None = None,
        f: Callable[[Array], Array] | None = None,
        context: Array | None = None,
    ) -> Any:
        r"""The estimate of $\nabla_\eta E[f]$ for each element of the batch, shaped like the
        distribution's parameters. (Parameters that the batch shares: the sum over it.)

        `x` comes from `sample`; `fx` of shape `[K, *batch]` holds f at these points and `dfx`,
        shaped like `x`, its gradient (where `needs_gradient`). A few settings also need a `key`
        (an operator that draws coordinates), `f` itself (`ExactSurrogate`), a `context` (`Relax`)
        or `fy`, f at the `further_points` that the estimator chose with the same `key` (`Bronco`).
        """
        at = self.evaluated(cv, dist, x, fx, dfx, fy=fy, key=key, f=f, context=context)
        if 0 in dist.batch_shape:
            return jax.tree.map(jnp.zeros_like, dist.parameters)
        return self.gradient(cv, dist, at)

    def per_element(
        self,
        f: Callable[..., Float[Array, "..."]],
        dist: Distribution,
        cv: Any = None,
        *,
        key: PRNGKeyArray,
        args: tuple = (),
        context: Array | None = None,
        relaxation: Callable[..., Float[Array, "..."]] | None = None,
        has_aux: bool = False,
    ) -> tuple[Any, Gradients]:
        """f at the samples, `weigh`ed (and its aux), and the gradients of `value_and_grad` before
        the mean over the batch: one of the distribution's for each of its elements, and `cv`'s for
        these. (That of `args` is of the mean here too.)"""
        check_call(f, dist, self, key, args)
        check_distribution(self, dist)
        check_gradient(self, f)
        check_cv(self, cv, dist)
        parameters, args, context, key = on_each_device(
            (dist.parameters, as_jax_arrays(args), context, key), like=(cv, dist)
        )
        # Derivatives at fixed samples would be wrong, so there are none.
        given = eqx.filter((parameters, dist), eqx.is_inexact_array)
        dist = stop_gradient(dist.with_parameters(parameters))
        sample_key, f_key, own_key = jax.random.split(key, 3)
        x = self.sample(sample_key, dist)
        stands_in = self.relaxes and relaxation is not None
        f_relaxed = self.goes_by_gradient and not stands_in
        objective = bind(f, dist, f_key, relaxed=f_relaxed, has_aux=has_aux)
        how: dict[str, Any] = {"has_aux": has_aux, "has_gradient": has_gradient(f)}
        if 0 in dist.batch_shape:
            fx, _, args_grad, aux = evaluate(objective, x, args, False, **how)
            fx = (fx, aux) if has_aux else fx
            grad, cv_grad = jax.tree.map(jnp.zeros_like, (dist.parameters, cv))
            return drawn_with(given, (fx, Gradients(grad, cv_grad, args_grad)))
        weights = self.weights(dist, x)
        fx, dfx, args_grad, aux = evaluate(
            objective, x, args, self.needs_gradient, weights=weights, **how
        )
        if relaxation is not None and stands_in:
            objective = bind(relaxation, dist, f_key, relaxed=True)
        elif has_aux:
            with_aux = objective
            objective = lambda x, *args: with_aux(x, *args)[0]
        at_args = lambda x: objective(x, *args)
        at = Evaluated(x, fx, dfx, f=at_args, key=own_key, context=context)
        cv, at = on_each_device((cv, at))
        check_evaluated(self, dist, at)
        y = self.further_points(cv, dist, at)
        if y is not None:
            fy = jax.vmap(at_args)(y).astype(fx.dtype)
            at = eqx.tree_at(lambda at: at.fy, at, fy, is_leaf=lambda leaf: leaf is None)
        grad, cv_grad = self.adapt(cv, dist, at)
        fx = self.weigh(dist, x, fx)
        fx = (fx, aux) if has_aux else fx
        return drawn_with(given, (fx, Gradients(grad, cv_grad, args_grad)))

    def value_and_grad(
        self,
        f: Callable[..., Float[Array, "..."]],
        dist: Distribution,
        cv: Any = None,
        *,
        key: PRNGKeyArray,
        args: tuple = (),
        context: Array | None = None,
        relaxation: Callable[..., Float[Array, "..."]] | None = None,
        has_aux: bool = False,
    ) -> tuple[Any, Gradients]:
        """The mean of f over samples and batch, and its gradients.

        `f(x, *args)` maps states `[..., *event]` to values `[...]`; if it has an argument named
        `key`, it is given one. f and the gradients with respect to all its arguments come out of
        one forward and one backward pass. `context`, of shape `[*batch, c]`, is for estimators
        whose control variates may look at more than the samples, such as the data point (`Relax`);
        the others leave it alone. `relaxation` is called like f, in its place between the states
        (`Rebar`, `Relax`): a continuous function near f, where f itself jumps there. An empty
        batch has the value 0 and no gradients, or zeros: it adds nothing. With `has_aux` f returns
        a pair, its values and anything else, and so does this: `(value, aux), gradients`, where
        aux is what f returned at the samples.
        """
        fx, grads = self.per_element(
            f, dist, cv, key=key, args=args, context=context, relaxation=relaxation, has_aux=has_aux
        )
        fx, aux = fx if has_aux else (fx, None)
        size = float(max(math.prod(dist.batch_shape), 1))
        divided = lambda g, p: (g / size).astype(p.dtype)
        parameters = jax.tree.map(divided, grads.parameters, dist.parameters)
        grads = Gradients(parameters, scale_cv(self, 1 / size, grads.cv), grads.args)
        return (mean(fx), aux) if has_aux else mean(fx), grads


def adam(learning_rate: Any, b1: float = 0.9) -> optax.GradientTransformation:
    """Adam for gradients of any size, those for control variates going with the square of f and of
    one over the size of the batch: ε is relative to the largest of them. (None at all would turn
    the rounding errors of a gradient that is 0 into steps.)"""
    inner: Any = optax.scale_by_adam(b1=b1)

    def update(updates: Any, state: Any, params: Any = None):
        _, state = inner.update(updates, state, params)
        mean, square = (
            optax.tree.bias_correction(moment, decay, state.count)
            for moment, decay in ((state.mu, b1), (state.nu, 0.999))
        )
        root = jax.tree.map(jnp.sqrt, square)
        largest = [jnp.max(leaf).astype(float) for leaf in jax.tree.leaves(root) if leaf.size]
        floor = 1e-8 * functools.reduce(jnp.maximum, largest, jnp.zeros((), float))
        step = lambda m, r: jnp.where(r > 0, m / (r + floor.astype(r.dtype)), 0)
        return jax.tree.map(step, mean, root), state

    scale = optax.GradientTransformation(inner.init, update)
    return optax.chain(scale, optax.scale_by_learning_rate(learning_rate))


def mean_of_scores(
    dist: Distribution, weights: Float[Array, "samples ..."], x: Float[Array, "samples ..."]
) -> Any:
    r"""$\frac1K \sum_k w_k s(x_k)$, shaped like the parameters."""
    return jax.tree.map(lambda g: g / len(x), dist.weighted_score(weights, x))


def scale_cv(estimator: Estimator, factor: Any, cv_grad: Any) -> Any:
    """The gradient for the control variates where the gradient is multiplied by a factor."""
    if not estimator.cv_is_quadratic:
        return cv_grad
    return jax.tree.map(lambda g: g * jnp.asarray(factor**2, g.dtype), cv_grad)


def check_call(f: Any, dist: Any, estimator: Any, key: Any, args: Any) -> None:
    """Raise if an argument is not of the kind that belongs in its place."""
    if isinstance(estimator, type) and issubclass(estimator, Estimator):
        raise TypeError(f"The estimator is a class here: write {estimator.__name__}(...).")
    if isinstance(dist, Estimator) or isinstance(estimator, Distribution):
        raise TypeError("The distribution comes first, then the estimator: f, dist, estimator.")
    if not isinstance(estimator, Estimator):
        raise TypeError(f"An estimator is needed, such as RLOO(2), not {_kind(estimator)}.")
    if not isinstance(dist, Distribution):
        raise TypeError(f"A distribution is needed, such as Bernoulli(logits), not {_kind(dist)}.")
    if not callable(f):
        raise TypeError(f"f is a function of the states, not {_kind(f)}.")
    if not isinstance(args, (tuple, list)):
        raise TypeError(
            f"args is a tuple, f's arguments after the states: args=(w,), not {_kind(args)}."
        )
    dtype = getattr(key, "dtype", None)
    if dtype is None or not (dtype == jnp.uint32 or jnp.issubdtype(dtype, jax.dtypes.prng_key)):
        raise TypeError(f"key is a random key, such as jax.random.key(0), not {key!r}.")


def _kind(thing: Any) -> str:
    return "an array" if eqx.is_array_like(thing) else f"a {type(thing).__name__}"


def check_distribution(estimator: Estimator, dist: Distribution) -> None:
    refusal = estimator.refusal(dist)
    if refusal is not None:
        raise ValueError(refusal)
    if not (dist.normalized or estimator.cancels_constant):
        raise ValueError(
            f"{type(estimator).__name__} as it is set here needs log q with its normalising "
            f"constant, but this {type(dist).__name__} is known up to a constant only. The "
            "constant cancels in RLOO, in Rodeo(loo=True) and in Lariat(values=False, "
            "gradients=False, memory=False, surrogate=...). If the log-probabilities do sum to "
            "one, build the distribution with normalized=True."
        )


def check_gradient(estimator: Estimator, f: Callable) -> None:
    if estimator.needs_gradient and not has_gradient(f):
        raise ValueError(f"{type(estimator).__name__} here needs the gradient of f. {NO_GRADIENT}")


def check_cv(estimator: Estimator, cv: Any, dist: Distribution) -> None:
    """Raise unless `cv` is what `init` makes for this estimator and distribution."""
    expected = jax.eval_shape(lambda key: estimator.init(key, dist), jax.random.key(0))
    leaves, structure = jax.tree.flatten(cv)
    if structure == jax.tree.structure(expected) and all(
        isinstance(leaf, (jax.Array, np.ndarray))
        and leaf.shape == like.shape
        and jnp.issubdtype(leaf.dtype, jnp.floating) == jnp.issubdtype(like.dtype, jnp.floating)
        for leaf, like in zip(leaves, jax.tree.leaves(expected), strict=True)
    ):
        return
    name = type(estimator).__name__
    if expected is None:
        raise ValueError(f"{name} learns nothing: its cv is None, but was given {brief(cv)}.")
    raise ValueError(
        f"{name} learns its control variates: pass the cv that `init(key, dist)` of this very "
        f"estimator makes, {brief(expected)}, not {brief(cv)}."
    )


def check_evaluated(estimator: Estimator, dist: Distribution, at: Evaluated) -> None:
    """Raise unless samples, values and gradients have the shapes that an estimate wants."""
    name = type(estimator).__name__
    lead = (estimator.num_samples, *dist.batch_shape)
    shape = (*lead, *dist.event_shape)
    if at.x.shape != shape:
        raise ValueError(
            f"{name}(num_samples={estimator.num_samples}) and this {type(dist).__name__} take "
            f"samples of shape {shape}, but x has shape {at.x.shape}."
        )
    if at.fx.shape != lead:
        raise ValueError(
            f"{name} takes values of f of shape {lead}, but fx has shape {at.fx.shape}."
        )
    if at.dfx is None and estimator.needs_gradient and not estimator.relaxes:
        raise ValueError(
            f"{name} needs the gradient of f at the samples: pass dfx, of shape {shape}."
        )
    if at.fy is not None and not estimator.looks_further:
        raise ValueError(f"{name} evaluates f at its samples only: leave fy out.")
    if at.dfx is not None and at.dfx.shape != shape:
        raise ValueError(
            f"{name} takes gradients of shape {shape}, but dfx has shape {at.dfx.shape}."
        )


def check_num_samples(name: str, num_samples: Any, least: int, why: str) -> None:
    check_whole(name, "num_samples", num_samples, least, f", {why}")


def check_pairs(name: str, num_samples: int, instead: str) -> None:
    check_num_samples(name, num_samples, 2, "its samples coming in pairs")
    if num_samples % 2:
        raise ValueError(
            f"{name} needs an even num_samples, its samples coming in pairs, but was given "
            f"{num_samples}. {instead} takes odd numbers too."
        )
