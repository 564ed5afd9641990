"""Checks of inputs. Each error says what is wrong, what was given and what to do."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..arrays import brief, check_whole
from ..distributions import Distribution
from ..objective import NO_GRADIENT, Evaluated

NEEDS = {
    "has_mean": "a distribution whose mean is known",
    "is_product": "independent coordinates",
    "is_binary": "independent bits",
    "relaxable": "independent bits or one-hot categories",
    "flippable": "coordinates that can change one at a time",
}
"""The properties of a distribution that an estimator may need, in words."""


def check_call(f: Any, dist: Any, key: Any, args: Any) -> None:
    """Raise if an argument is not of the kind that belongs in its place."""
    check_is_distribution(dist)
    if not callable(f):
        raise TypeError(f"f must be a function of the states, not {kind(f)}.")
    if not isinstance(args, (tuple, list)):
        raise TypeError(
            f"args must be a tuple of f's further arguments, such as args=(w,), not {kind(args)}."
        )
    dtype = getattr(key, "dtype", None)
    if dtype is None or not (dtype == jnp.uint32 or jnp.issubdtype(dtype, jax.dtypes.prng_key)):
        raise TypeError(f"key must be a random key such as jax.random.key(0), not {key!r}.")


def check_is_distribution(dist: Any) -> None:
    """Raise unless `dist` is a distribution of this library."""
    if not isinstance(dist, Distribution):
        raise TypeError(
            f"dist must be a distribution such as Bernoulli(logits), not {kind(dist)}. Pass "
            "as_distribution(dist) for a distribution of another library."
        )


def kind(thing: Any) -> str:
    return "an array" if eqx.is_array_like(thing) else f"a {type(thing).__name__}"


def check_distribution(estimator: Any, dist: Distribution) -> None:
    """Raise unless the distribution has what the estimator needs of it."""
    check_is_distribution(dist)
    name, needs = type(estimator).__name__, estimator.needs
    if not dist.differentiable and (estimator.needs_gradient or estimator.relaxes):
        raise ValueError(
            f"{name} as it is set here uses the gradient of f, but the states of this distribution "
            "are indices (whole numbers), by which f cannot be differentiated. Pass a "
            "OneHotCategorical in place of the Categorical, or use an estimator without a gradient "
            "of f: RLOO, Reinforce, LocalExpectation, Bronco(use_gradient=False), CARMS or "
            "Rodeo(surrogate=ExactSurrogate())."
        )
    if needs is not None and not getattr(dist, needs):
        raise ValueError(
            f"{name} needs {NEEDS[needs]}, but was given {type(dist).__name__}, which lacks that. "
            f"{estimator.instead}"
        )
    if not (dist.normalized or estimator.cancels_constant):
        raise ValueError(
            f"{name} as it is set here needs log q with its normalising constant, but this "
            f"{type(dist).__name__} is known up to a constant only. The constant cancels in RLOO, "
            "in Rodeo(loo=True) and in Lariat(values=False, gradients=False, memory=False, "
            "surrogate=...). If the log-probabilities do sum to one, build the distribution with "
            "normalized=True."
        )


def check_gradient(estimator: Any) -> None:
    """Raise if the estimator needs the gradient of an f that has none."""
    if estimator.needs_gradient:
        raise ValueError(f"{type(estimator).__name__} needs the gradient of f. {NO_GRADIENT}")


def check_cv(estimator: Any, cv: Any, dist: Distribution) -> None:
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


def check_evaluated(estimator: Any, dist: Distribution, at: Evaluated) -> None:
    """Raise unless samples, values and gradients have the shapes that an estimate needs."""
    name = type(estimator).__name__
    lead = (estimator.num_samples, *dist.batch_shape)
    shape = (*lead, *dist.event_shape)
    if at.x.shape != shape:
        raise ValueError(
            f"{name}(num_samples={estimator.num_samples}) and this {type(dist).__name__} take "
            f"samples of shape {shape}, but x has shape {at.x.shape}. Pass what `sample` returned."
        )
    if at.fx.shape != lead:
        raise ValueError(
            f"{name} takes values of f of shape {lead}, but fx has shape {at.fx.shape}. Pass one "
            "value of f for each sample and element of the batch."
        )
    if at.dfx is None and estimator.needs_gradient and not estimator.relaxes:
        raise ValueError(
            f"{name} needs the gradient of f at the samples: pass dfx, of shape {shape}."
        )
    if at.fy is not None and not estimator.looks_further:
        raise ValueError(f"{name} evaluates f at its samples only, but fy was given: leave fy out.")
    if at.dfx is not None and at.dfx.shape != shape:
        raise ValueError(
            f"{name} takes gradients of shape {shape}, but dfx has shape {at.dfx.shape}."
        )


def check_further(name: str, y: Any, at: Evaluated) -> None:
    """Raise unless f is known at the further points that were proposed."""
    expected = y.shape[: y.ndim - at.event_ndim]
    if at.fy is None:
        raise ValueError(
            f"{name} needs f at further points: pass fy, f at the points that `further_points` "
            "chose, or use `value_and_grad` or `expectation`."
        )
    if at.fy.shape != expected:
        raise ValueError(
            f"{name} takes f at the further points of shape {expected}, but fy has shape "
            f"{at.fy.shape}."
        )


def check_key(name: str, key: Any) -> None:
    """Raise if the estimate draws random numbers and has no key for them."""
    if key is None:
        raise ValueError(
            f"{name} draws random numbers for its estimate, but no key was given: pass key=... to "
            "`estimate`, and the same key as before if `further_points` was called."
        )


def check_num_samples(name: str, num_samples: Any, least: int, why: str) -> None:
    check_whole(name, "num_samples", num_samples, least, f", {why}")


def check_pairs(name: str, num_samples: int, instead: str) -> None:
    check_num_samples(name, num_samples, 2, "because its samples come in pairs")
    if num_samples % 2:
        raise ValueError(
            f"{name} needs an even num_samples, because its samples come in pairs, but was given "
            f"{num_samples}. {instead} takes odd numbers too."
        )


def check_temperature(name: str, temperature: int | float) -> None:
    if not temperature > 0:
        raise ValueError(f"{name} needs a temperature above 0, but was given {temperature}.")
