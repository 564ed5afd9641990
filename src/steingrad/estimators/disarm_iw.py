"""DisARM-IW: antithetic pairs of categories with importance weights."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..arrays import as_index, expand, take
from ..fast import mean_of_samples
from .base import Estimator
from .checks import check_pairs
from .sticks import antithetic_categories, break_sticks, pair_weight, stick_of


class DisARMIW(Estimator):
    r"""$g = \frac12 \, r(x, \tilde x) \, (f(x) - f(\tilde x)) \, (s(x) - s(\tilde x))$ with $r(x,
    \tilde x) = \frac{q(x) q(\tilde x)}{P(x, \tilde x)}$ for each coordinate on its own, averaged
    over $K/2$ pairs.

    A category is written as a sequence of bits that ends with its first 1 (stick-breaking), with
    one bit for each value, from the least probable to the most. The two samples of a pair share one
    uniform number for each bit, as in `DisARM`. Each is an exact sample, and they are equal as
    seldom as these bits allow. The joint probability is known, and the weight is below 2: $r = (1 -
    \phi_a) \prod_{c<a} (1 - \phi_c)^2 / (1 - 2 \phi_c)$, where $a$ is the earlier of the two
    sticks. With two values this is `DisARM`. It needs independent coordinates. `num_samples` is
    $K$.

    Reference: Dong, Mnih, Tucker, "Coupled Gradient Estimators for Discrete Latent Variables",
    NeurIPS 2021.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> f, q = lambda x: jnp.sum(x[..., 0], axis=-1), sg.Categorical(jnp.zeros((2, 3)))
    >>> value, grads = DisARMIW(num_samples=2).value_and_grad(f, q, key=jax.random.key(0))
    >>> grads.parameters.shape
    (2, 3)
    """

    num_samples: int = eqx.field(static=True, converter=as_index, default=2)
    needs: ClassVar = "is_product"

    def __check_init__(self):
        check_pairs("DisARMIW", self.num_samples, instead="CARMS")

    def draw(self, key, dist):
        return antithetic_categories(key, dist, self.num_samples)

    def gradient(self, cv, dist, at):
        fx, fx_tilde = jnp.split(at.fx, 2)

        def one(part, x, _):
            sticks = break_sticks(part)
            phi = sticks.phi[..., :-1]
            weight = pair_weight(sticks, differ=1 - phi, both=jnp.zeros_like(phi))
            first = jnp.min(jnp.stack(jnp.split(stick_of(part, sticks, x), 2)), axis=0)
            onehot = jax.nn.one_hot(part.index(x), part.num_values, dtype=weight.dtype)
            onehot, onehot_tilde = jnp.split(onehot, 2)
            change = take(weight, first[..., None]) * expand(fx - fx_tilde, onehot.ndim)
            return part.by_parameters(mean_of_samples(change * (onehot - onehot_tilde)) / 2)

        return dist.by_part(one, at.x)
