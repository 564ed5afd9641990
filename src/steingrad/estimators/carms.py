"""CARMS: any number of mutually antithetic samples of categories."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..arrays import as_index, mean_of_others, mean_of_samples, others, take
from ..distributions import Categorical, Ordinal
from .arms import debias
from .base import Estimator, check_distribution, check_num_samples
from .parts import differentiates_parts, samples_parts
from .sticks import break_sticks, first_of, pair_weight, stick_of


class CARMS(Estimator):
    r"""$g = \frac1{K (K-1)} \sum_{k \ne j} r(x_k, x_j) \, (f(x_k) - f(x_j)) \, s(x_k)$ with
    $r(a, b) = \frac{q(a) q(b)}{P(a, b)}$ for each coordinate on its own: RLOO on antithetic
    samples, each pair weighted back to an independent one.

    A category is a sequence of bits, one for each value from the least probable to the most, that
    ends with its first 1, and each bit is drawn for all $K$ samples together, as in `ARMS`. So each
    sample is exact, any two are seldom equal, every pair of different values occurs, and $P(a, b)$,
    the probability of a pair, is a product of known numbers (the authors' code estimates it for one
    construction and clips it for others, which is a bias). With two values this is `ARMS`, with $K
    = 2$ it is `DisARMIW`. For `Categorical` and `Ordinal`. `num_samples` is $K$.

    Reference: Dimitriev and Zhou, "CARMS: Categorical-Antithetic-REINFORCE Multi-Sample Gradient
    Estimator", NeurIPS 2021.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> f, q = lambda x: jnp.sum(x[..., 0], axis=-1), sg.Categorical(jnp.zeros((2, 3)))
    >>> value, grads = CARMS(num_samples=3).value_and_grad(f, q, key=jax.random.key(0))
    >>> grads.parameters.shape
    (2, 3)
    """

    num_samples: int = eqx.field(static=True, converter=as_index, default=3)
    """The number of samples, K."""
    distributions: ClassVar = (Categorical, Ordinal)
    by_parts: ClassVar = True

    def __check_init__(self):
        check_num_samples("CARMS", self.num_samples, 2, "each sample's baseline being the others")

    @samples_parts
    def sample(self, key, dist):
        check_distribution(self, dist)
        sticks = break_sticks(dist)
        phi, rest = sticks.phi[..., :-1], self.num_samples - 1
        e = jax.random.exponential(key, (self.num_samples, *phi.shape), phi.dtype)
        # As in ARMS: 1 is the rarer value of every bit, φ being at most ½.
        v = (rest * mean_of_others(e) / jnp.sum(e, axis=0)) ** rest
        return dist.state(first_of(sticks, v < phi))

    @differentiates_parts
    def gradient(self, cv, dist, at):
        sticks = break_sticks(dist)
        weight = pair_weight(
            sticks, debias(sticks.logits, self.num_samples), both_rare(sticks, self.num_samples)
        )
        stick = stick_of(dist, sticks, at.x)
        first = jnp.minimum(stick, others(stick))
        r = take(weight, first[..., None])[..., 0]
        change = jnp.expand_dims(at.fx - others(at.fx), -1)
        # r is symmetric, so these sum to 0 over the samples, and the mean of the score drops out.
        coefficients = jnp.sum(r * change, axis=0) / (self.num_samples - 1)
        onehot = jax.nn.one_hot(dist.index(at.x), dist.num_values, dtype=weight.dtype)
        return mean_of_samples(coefficients[..., None] * onehot)


def both_rare(sticks, num_samples):
    r"""$P(1, 1) = \max(2 \phi^{1/(K-1)} - 1, 0)^{K-1}$ at each stick but the last."""
    power = 1 / (num_samples - 1)
    root = jnp.exp(power * jax.nn.log_sigmoid(sticks.logits))
    return jnp.maximum(2 * root - 1, 0) ** (num_samples - 1)
