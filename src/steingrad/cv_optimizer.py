"""One optax transformation that adapts the control variates of any estimator."""

from collections.abc import Sequence
from typing import Any

import jax
import optax

from .arrays import brief
from .estimators import Estimator


def cv_optimizer(
    estimator: Estimator | Sequence[Estimator], learning_rate: Any = 1e-3
) -> optax.GradientTransformation:
    r"""The optimiser for an estimator's control variates. Its input is the gradient that
    `expectation` or `value_and_grad` returns for `cv`.

    Parameters that are learned by descent (`Rodeo`, `DoubleCV`, a learned baseline) are updated by
    Adam with this `learning_rate`, which may be a schedule. For `Rebar` and `Relax` $\beta_1 =
    0.999$, as in their papers. Moving averages are updated by a plain gradient step. If the
    estimator learns nothing, the optimiser does nothing.

    For a sequence of estimators, such as one for each layer of a model, the optimiser takes the
    tuple of their control variates.

    >>> import jax, jax.numpy as jnp, optax, steingrad as sg
    >>> estimator = sg.Rodeo(num_samples=2)
    >>> optimizer = cv_optimizer(estimator)
    >>> cv = estimator.init(jax.random.key(0))
    >>> state = optimizer.init(cv)
    >>> _, grads = estimator.value_and_grad(
    ...     lambda x: jnp.sum(x, -1), sg.Bernoulli(jnp.zeros(3)), cv, key=jax.random.key(1))
    >>> updates, state = optimizer.update(grads.cv, state, cv)
    >>> cv = optax.apply_updates(cv, updates)
    """
    if isinstance(estimator, Estimator):
        return _without_strictness(estimator.cv_optimizer(learning_rate))
    each = [cv_optimizer(one, learning_rate) for one in estimator]

    def init(params):
        if not isinstance(params, (tuple, list)) or len(params) != len(each):
            raise TypeError(
                f"The optimiser of {len(each)} estimators takes the tuple of their control "
                f"variates, but was given {brief(params)}. Do not put a transformation around it "
                "that changes this structure, such as optax.flatten."
            )
        return tuple(one.init(cv) for one, cv in zip(each, params, strict=True))

    def update(updates: Any, state: Any, params: Any = None):
        given = params if params is not None else (None,) * len(each)
        layers = zip(each, updates, state, given, strict=True)
        pairs = [one.update(grad, state, cv) for one, grad, state, cv in layers]
        return tuple(new for new, _ in pairs), tuple(state for _, state in pairs)

    return optax.GradientTransformation(init, update)


def _without_strictness(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """optax promotes dtypes implicitly; this keeps users with strict promotion unaffected."""

    def update(updates, state, params=None):
        with jax.numpy_dtype_promotion("standard"):
            return optimizer.update(updates, state, params)

    return optax.GradientTransformation(optimizer.init, update)
