"""DisARM-IW: antithetic pairs of categories, weighted back to independent ones."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..arrays import as_index, expand, mean_of_samples, take
from ..distributions import Categorical, Ordinal
from ..distributions.base import Distribution
from .base import Estimator, check_distribution, check_pairs
from .parts import differentiates_parts, samples_parts
from .sticks import Sticks, break_sticks, first_of, pair_weight, stick_of


class DisARMIW(Estimator):
    r"""$g = \frac12 \, r(x, \tilde x) \, (f(x) - f(\tilde x)) \, (s(x) - s(\tilde x))$ with $r(x,
    \tilde x) = \frac{q(x) q(\tilde x)}{P(x, \tilde x)}$ for each coordinate on its own, averaged
    over $K/2$ pairs.

    A category is a sequence of bits, one for each value from the least probable to the most, that
    ends with its first 1 (stick-breaking); a pair has the same uniform number for a bit as `DisARM`
    has. Each is an exact sample, and they are equal as seldom as these bits allow. The joint
    probability is known exactly, and the weight never reaches 2: $r = (1 - \phi_a) \prod_{c<a} (1 -
    \phi_c)^2 / (1 - 2 \phi_c)$, $a$ being the first of the two sticks. With two values this is
    `DisARM`. For `Categorical` and `Ordinal`. `num_samples` is $K$.

    Reference: Dong, Mnih, Tucker, "Coupled Gradient Estimators for Discrete Latent Variables",
    NeurIPS 2021.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> f, q = lambda x: jnp.sum(x[..., 0], axis=-1), sg.Categorical(jnp.zeros((2, 3)))
    >>> value, grads = DisARMIW(num_samples=2).value_and_grad(f, q, key=jax.random.key(0))
    >>> grads.parameters.shape
    (2, 3)
    """

    num_samples: int = eqx.field(static=True, converter=as_index, default=2)
    """The number of samples, K."""
    distributions: ClassVar = (Categorical, Ordinal)
    by_parts: ClassVar = True

    def __check_init__(self):
        check_pairs("DisARMIW", self.num_samples, instead="CARMS")

    @samples_parts
    def sample(self, key, dist):
        check_distribution(self, dist)
        return antithetic_pairs(key, dist, self.num_samples)

    @differentiates_parts
    def gradient(self, cv, dist, at):
        sticks = break_sticks(dist)
        phi = sticks.phi[..., :-1]
        weight = pair_weight(sticks, differ=1 - phi, both=jnp.zeros_like(phi))
        fx, fx_tilde = jnp.split(at.fx, 2)
        score, score_tilde = jnp.split(dist.score(at.x), 2)
        first = jnp.min(jnp.stack(jnp.split(stick_of(dist, sticks, at.x), 2)), axis=0)
        weight = take(weight, first[..., None])
        return mean_of_samples(
            weight * expand(fx - fx_tilde, score.ndim) * (score - score_tilde) / 2
        )


def antithetic_pairs(key, dist: Distribution, num_samples: int):
    """The first half holds every x, the second every x̃."""
    sticks: Sticks = break_sticks(dist)
    phi = sticks.phi[..., :-1]
    u = jax.random.uniform(key, (num_samples // 2, *phi.shape), phi.dtype)
    # u > 1 − φ, written with 1 − u, which is exact where 1 − φ is rounded.
    bits = jnp.concatenate([1 - u < phi, u < phi])
    return dist.state(first_of(sticks, bits))
