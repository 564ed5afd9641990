"""How an estimator is written, and what all of them share."""

import abc
import inspect
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..distributions.base import Distribution, compute_dtype
from ..operators.base import expand
from ..surrogates.base import mean_of_samples


class Gradients(NamedTuple):
    """Gradients of the mean of f over samples and batch."""

    parameters: Any
    """With respect to the distribution's parameters: the unbiased estimate g."""
    cv: Any
    """With respect to the control variates: the gradient of the mean of g², which lowers its
    variance."""
    args: tuple
    """With respect to the further arguments of f (`None` where one is not floating-point)."""


class Estimator(eqx.Module):
    r"""An estimator of $\nabla_\eta E_{q_\eta}[f(x)]$: immutable, its fields are its settings.

    A subclass has the fields and the `distributions` it works on, then `__check_init__`,
    `needs_gradient` and `num_evaluations`, `init`, `sample` and `estimate`, in this order, leaving
    out what it inherits.
    """

    num_samples: eqx.AbstractVar[int]
    distributions: ClassVar[tuple[type[Distribution], ...]] = (Distribution,)

    def handles(self, dist: Distribution) -> bool:
        """Whether it works on this kind of distribution; `distributions` names those it does."""
        return isinstance(dist, self.distributions)

    @property
    def needs_gradient(self) -> bool:
        r"""Whether $\nabla f$ is needed: at the samples (or, `Rebar` and `Relax`, between them)."""
        return False

    @property
    def relaxes(self) -> bool:
        """Whether f, or its `relaxation`, is evaluated between the states."""
        return False

    @property
    def cv_is_quadratic(self) -> bool:
        """Whether the gradient for the control variates is that of a square of the gradient, and so
        goes with the square of any factor."""
        return True

    def num_evaluations(self, dist: Distribution) -> int:
        """How many times f is evaluated for one estimate."""
        return self.num_samples

    def init(self, key: PRNGKeyArray) -> Any:
        """The parameters of the control variates; `None` where nothing is learned."""
        return None

    def sample(self, key: PRNGKeyArray, dist: Distribution) -> Float[Array, "samples ..."]:
        """The points at which to evaluate f, of shape `[K, *batch, *event]`."""
        check_distribution(self, dist)
        return dist.sample(key, (self.num_samples,))

    @abc.abstractmethod
    def estimate(
        self,
        params: Any,
        dist: Distribution,
        x: Float[Array, "samples ..."],
        fx: Float[Array, "samples ..."],
        dfx: Float[Array, "samples ..."] | None = None,
        *,
        key: PRNGKeyArray | None = None,
        f: Callable[[Array], Array] | None = None,
        context: Array | None = None,
    ) -> Any:
        r"""The estimate of $\nabla_\eta E[f]$ for each element of the batch, shaped like the
        distribution's parameters.

        `x` comes from `sample`; `fx` of shape `[K, *batch]` holds f at these points and `dfx`,
        shaped like `x`, its gradient (where `needs_gradient`). A few settings also need a `key`
        (an operator that draws coordinates), `f` itself (`ExactSurrogate`) or a `context`
        (`Relax`).
        """

    def adapt(
        self,
        params: Any,
        dist: Distribution,
        x: Float[Array, "samples ..."],
        fx: Float[Array, "samples ..."],
        dfx: Float[Array, "samples ..."] | None = None,
        *,
        key: PRNGKeyArray | None = None,
        f: Callable[[Array], Array] | None = None,
        context: Array | None = None,
    ) -> tuple[Any, Any]:
        """The estimate, and the gradient of its mean square with respect to `params`."""

        @eqx.filter_grad(has_aux=True)
        def mean_square(params):
            grad = self.estimate(params, dist, x, fx, dfx, key=key, f=f, context=context)
            return mean_of_squares(grad), grad

        cv_grad, grad = mean_square(params)
        return grad, cv_grad

    def value_and_grad(
        self,
        f: Callable[..., Float[Array, "..."]],
        dist: Distribution,
        params: Any = None,
        *,
        key: PRNGKeyArray,
        args: tuple = (),
        context: Array | None = None,
        relaxation: Callable[..., Float[Array, "..."]] | None = None,
    ) -> tuple[Float[Array, ""], Gradients]:
        """The mean of f over samples and batch, and its gradients.

        `f(x, *args)` maps states `[..., *event]` to values `[...]`; if it has an argument named
        `key`, it is given one. f and the gradients with respect to all its arguments come out of
        one forward and one backward pass. `context`, of shape `[*batch, c]`, is for estimators
        whose control variates may look at more than the samples, such as the data point (`Relax`);
        the others leave it alone. `relaxation` is called like f, in its place between the states
        (`Rebar`, `Relax`): a continuous function near f, where f itself jumps there.
        """
        check_distribution(self, dist)
        sample_key, f_key, operator_key = jax.random.split(key, 3)
        x = self.sample(sample_key, dist)
        objective = bind(f, dist, f_key)
        fx, dfx, args_grad = evaluate(objective, x, args, self.needs_gradient)
        if self.relaxes and relaxation is not None:
            objective = bind(relaxation, dist, f_key)
        at_args = lambda x: objective(x, *args)
        grad, cv_grad = self.adapt(
            params, dist, x, fx, dfx, key=operator_key, f=at_args, context=context
        )
        return jnp.mean(fx), of_batch_mean(self, dist, grad, cv_grad, args_grad)


def of_batch_mean(
    estimator: Estimator, dist: Distribution, grad: Any, cv_grad: Any, args_grad: tuple
) -> Gradients:
    """Gradients of the mean over the batch, from those for each of its elements."""
    size = float(math.prod(dist.batch_shape))
    grad = jax.tree.map(lambda g, p: (g / size).astype(p.dtype), grad, dist.parameters)
    cv_grad = scale_cv(estimator, 1 / size, cv_grad)
    return Gradients(grad, cv_grad, args_grad)


def scale_cv(estimator: Estimator, factor: Any, cv_grad: Any) -> Any:
    """The gradient for the control variates where the gradient is multiplied by a factor."""
    if not estimator.cv_is_quadratic:
        return cv_grad
    return jax.tree.map(lambda g: g * jnp.asarray(factor**2, g.dtype), cv_grad)


def mean_of_squares(tree: Any) -> Float[Array, ""]:
    """The mean over all numbers in a pytree of their squares."""
    leaves = jax.tree.leaves(tree)
    dtype = compute_dtype(*leaves)
    squares = jnp.stack([jnp.sum(leaf.astype(dtype) ** 2) for leaf in leaves])
    return jnp.sum(squares) / sum(leaf.size for leaf in leaves)


def weighted_mean(coefficients: Float[Array, "samples ..."], score: Any) -> Any:
    """1/K Σₖ cₖ s(xₖ), for each leaf of the score."""
    return jax.tree.map(lambda s: mean_of_samples(expand(coefficients, s.ndim) * s), score)


def bind(
    f: Callable[..., Float[Array, "..."]], dist: Distribution, key: PRNGKeyArray | None
) -> Callable[..., Float[Array, "..."]]:
    """`f` with its key, if it takes one, and with a check of what it returns."""
    if takes_key(f):
        f = _with_key(f, key)

    def objective(x, *args):
        fx = jnp.asarray(f(x, *args))
        expected = x.shape[: x.ndim - dist.event_ndim]
        if fx.shape != expected:
            raise ValueError(
                f"f was given states of shape {x.shape} and must return one number for each, of "
                f"shape {expected}, but returned shape {fx.shape}. Sum over the last "
                f"{dist.event_ndim} axes only."
            )
        if not jnp.issubdtype(fx.dtype, jnp.floating):
            fx = fx.astype(compute_dtype(x))
        return fx

    return objective


def _with_key(f, key):
    return lambda x, *args: f(x, *args, key=key)


def as_jax_arrays(tree: Any) -> Any:
    """NumPy arrays as JAX arrays, which are differentiated; other leaves as they are."""
    numpy = (np.ndarray, np.generic)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, numpy) else leaf, tree)


def takes_key(f: Callable) -> bool:
    """Whether `f` has an argument named `key`."""
    try:
        return "key" in inspect.signature(f).parameters
    except (TypeError, ValueError):
        return False


def evaluate(
    objective: Callable[..., Float[Array, "..."]],
    x: Float[Array, "samples ..."],
    args: tuple,
    needs_gradient: bool,
) -> tuple[Float[Array, "samples ..."], Float[Array, "samples ..."] | None, tuple]:
    """f(x), ∇f(x) (if needed) and the gradient of mean f with respect to `args`, in one pass."""
    dynamic, static = eqx.partition(as_jax_arrays(args), eqx.is_inexact_array)

    def at(x, dynamic):
        return objective(x, *eqx.combine(dynamic, static))

    if needs_gradient:
        fx, pull_back = jax.vjp(at, x, dynamic)
        # f acts on each state alone, so one backward pass gives each its own gradient.
        dfx, args_grad = pull_back(jnp.ones_like(fx))
        dfx = dfx.astype(compute_dtype(fx, dfx))
    else:
        fx, pull_back = jax.vjp(lambda dynamic: at(x, dynamic), dynamic)
        dfx, (args_grad,) = None, pull_back(jnp.ones_like(fx))
    args_grad = jax.tree.map(lambda g: g / fx.size, args_grad)
    return (
        fx.astype(compute_dtype(fx, dfx) if dfx is not None else compute_dtype(fx)),
        dfx,
        args_grad,
    )


def check_distribution(estimator: Estimator, dist: Distribution) -> None:
    name = type(estimator).__name__
    if not estimator.handles(dist):
        *most, last = (kind.__name__ for kind in estimator.distributions)
        kinds = f"{', '.join(most)} and {last}" if most else last
        raise ValueError(
            f"{name} works on {kinds}, but was given {type(dist).__name__}. RLOO and Rodeo take "
            "any distribution."
        )
    if not dist.normalized:
        raise ValueError(
            f"{name} differentiates log q, so it needs it normalised, but this "
            f"{type(dist).__name__} is known up to a constant only. If its log-probabilities do "
            "sum to one, build it with normalized=True."
        )


def check_num_samples(name: str, num_samples: int, least: int, why: str) -> None:
    if not isinstance(num_samples, int) or num_samples < least:
        raise ValueError(
            f"{name} needs num_samples of {least} or more, {why}, but was given {num_samples}."
        )


def check_params(estimator: Estimator, params: Any, *names: str) -> None:
    """Raise unless `params` is the dictionary with these entries that `init` makes."""
    if not (isinstance(params, dict) and params.keys() == set(names)):
        given = sorted(params) if isinstance(params, dict) else type(params).__name__
        raise ValueError(
            f"{type(estimator).__name__} learns its control variates: pass the parameters that "
            f"`estimator.init(key)` makes ({', '.join(names)}), not {given}."
        )


def check_samples(estimator: Estimator, dist: Distribution, x: Array, fx: Array) -> None:
    """Raise unless samples and values have the shapes `estimate` wants."""
    name = type(estimator).__name__
    check_distribution(estimator, dist)
    lead = (estimator.num_samples, *dist.batch_shape)
    shape = (*lead, *dist.event_shape)
    if x.shape != shape:
        raise ValueError(
            f"{name}(num_samples={estimator.num_samples}) and this {type(dist).__name__} take "
            f"samples of shape {shape}, but x has shape {x.shape}."
        )
    if fx.shape != lead:
        raise ValueError(f"{name} takes values of f of shape {lead}, but fx has shape {fx.shape}.")


def check_estimate(
    estimator: Estimator, dist: Distribution, x: Array, fx: Array, dfx: Array | None
) -> None:
    """Raise unless samples, values and gradients have the shapes `estimate` wants."""
    check_samples(estimator, dist, x, fx)
    name, shape = type(estimator).__name__, x.shape
    if estimator.needs_gradient and dfx is None:
        raise ValueError(
            f"{name} needs the gradient of f at the samples: pass dfx, of shape {shape}."
        )
    if dfx is not None and dfx.shape != shape:
        raise ValueError(f"{name} takes gradients of shape {shape}, but dfx has shape {dfx.shape}.")
