"""DisARM-SB: antithetic pairs of categories, differentiated bit by bit."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..arrays import as_index, expand, take
from ..fast import mean_of_samples
from .base import Estimator
from .checks import check_pairs
from .sticks import antithetic_categories, break_sticks, stick_of


class DisARMSB(Estimator):
    r"""$g = \frac12 (f(x^b) - f(x^a)) \left[ e_b - \rho + \sigma(|\alpha_a|) (\rho - e_a) \right]$,
    for each coordinate on its own, averaged over $K/2$ pairs.

    The pairs are those of `DisARMIW`: a category is a sequence of bits that ends with its first 1,
    and the bits of a pair are antithetic. $x^a$ ends at the earlier stick $a$, and $x^b$ at a later
    one. $\rho$ is $q(\cdot \mid \text{later than } a)$, and $\alpha_a$ is the logit of the bit at
    $a$. Before $a$ the bits are equal and contribute nothing. The bit at $a$ contributes the term
    of `DisARM`. After $a$ only the bits of $x^b$ matter; the others are averaged over
    (Rao-Blackwell), which leaves a score. A pair of equal categories contributes nothing. With two
    values this is `DisARM`. It needs independent coordinates. `num_samples` is $K$.

    Reference: Dong, Mnih, Tucker, "Coupled Gradient Estimators for Discrete Latent Variables",
    NeurIPS 2021.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> f, q = lambda x: jnp.sum(x[..., 0], axis=-1), sg.Categorical(jnp.zeros((2, 3)))
    >>> value, grads = DisARMSB(num_samples=2).value_and_grad(f, q, key=jax.random.key(0))
    >>> grads.parameters.shape
    (2, 3)
    """

    num_samples: int = eqx.field(static=True, converter=as_index, default=2)
    needs: ClassVar = "is_product"

    def __check_init__(self):
        check_pairs("DisARMSB", self.num_samples, instead="CARMS")

    def draw(self, key, dist):
        return antithetic_categories(key, dist, self.num_samples)

    def gradient(self, cv, dist, at):
        fx, fx_tilde = jnp.split(at.fx, 2)

        def one(part, x, _):
            sticks = break_sticks(part)
            stick, stick_tilde = jnp.split(stick_of(part, sticks, x)[..., None], 2)
            a, b = jnp.minimum(stick, stick_tilde), jnp.maximum(stick, stick_tilde)
            rank = sticks.rank
            tail = take(jnp.roll(sticks.log_tail, -1, axis=-1), a)  # log Σ_{c > a} p_c
            log_probs = take(sticks.log_probs, rank)
            rho = jnp.where(rank > a, jnp.exp(jnp.minimum(log_probs - tail, 0.0)), 0.0)
            # Two samples never differ at the last stick, so any number will do for its logit.
            end = jnp.zeros_like(sticks.log_probs[..., :1])
            alpha = take(jnp.concatenate([sticks.logits, end], axis=-1), a)
            onehot = lambda stick: (rank == stick).astype(rho.dtype)
            direction = onehot(b) - rho + jax.nn.sigmoid(jnp.abs(alpha)) * (rho - onehot(a))
            sign = jnp.sign(stick - stick_tilde).astype(direction.dtype)
            change = sign * expand(fx - fx_tilde, direction.ndim)
            return part.by_parameters(mean_of_samples(change * direction) / 2)

        return dist.by_part(one, at.x)
