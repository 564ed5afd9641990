"""CARMS: any number of mutually antithetic samples of categories."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..arrays import as_index, others, take
from ..fast import mean_of_samples
from .base import Estimator
from .couplings import both_rare, debias, mutually_antithetic
from .sticks import break_sticks, first_of, pair_weight, stick_of


class CARMS(Estimator):
    r"""$g = \frac1{K (K-1)} \sum_{k \ne j} r(x_k, x_j) \, (f(x_k) - f(x_j)) \, s(x_k)$ with $r(a,
    b) = \frac{q(a) q(b)}{P(a, b)}$ for each coordinate on its own: RLOO on antithetic samples, with
    an importance weight for each pair.

    A category is a sequence of bits that ends with its first 1, with one bit for each value, from
    the least probable to the most. Each bit is drawn for all $K$ samples together, as in `ARMS`.
    Each sample is exact, two are seldom equal, and all pairs of different values occur. $P(a, b)$,
    the probability of a pair, is a product of known numbers. (The authors' code estimates $P$ for
    one construction and clips it for others, which is a bias.) With two values this is `ARMS`, with
    $K = 2$ it is `DisARMIW`. It needs independent coordinates. `num_samples` is $K$.

    Reference: Dimitriev and Zhou, "CARMS: Categorical-Antithetic-REINFORCE Multi-Sample Gradient
    Estimator", NeurIPS 2021.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> f, q = lambda x: jnp.sum(x[..., 0], axis=-1), sg.Categorical(jnp.zeros((2, 3)))
    >>> value, grads = CARMS(num_samples=3).value_and_grad(f, q, key=jax.random.key(0))
    >>> grads.parameters.shape
    (2, 3)
    """

    num_samples: int = eqx.field(static=True, converter=as_index, default=3)
    needs: ClassVar = "is_product"
    fewest: ClassVar = (2, "because the other samples are each sample's baseline")

    def draw(self, key, dist):
        def one(part, key):
            # As in ARMS: since φ is at most ½, 1 is the rarer value of every bit.
            sticks = break_sticks(part)
            bits = mutually_antithetic(key, self.num_samples, sticks.logits)
            return part.state(first_of(sticks, bits))

        return dist.sample_by_part(one, key)

    def gradient(self, cv, dist, at):
        change = jnp.expand_dims(at.fx - others(at.fx), -1)

        def one(part, x, _):
            sticks, count = break_sticks(part), self.num_samples
            odds = sticks.logits
            weight = pair_weight(sticks, debias(odds, count), both_rare(odds, count))
            stick = stick_of(part, sticks, x)
            r = take(weight, jnp.minimum(stick, others(stick))[..., None])[..., 0]
            # r is symmetric, so the coefficients sum to 0, and the mean in the score cancels.
            coefficients = jnp.sum(r * change, axis=0) / (count - 1)
            onehot = jax.nn.one_hot(part.index(x), part.num_values, dtype=weight.dtype)
            return part.by_parameters(mean_of_samples(coefficients[..., None] * onehot))

        return dist.by_part(one, at.x)
