"""REBAR: REINFORCE with f at a continuous relaxation of the state as control variate."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ..arrays import as_index, compute_dtype, weighted_mean
from ..distributions import Bernoulli, Categorical, Joint
from ..distributions.base import Distribution
from ..objective import Evaluated
from .base import Estimator, adam, check_num_samples
from .parts import apart, arranged, leaves, merged


class Rebar(Estimator):
    r"""$g = \frac1K \sum_k (f(x_k) - c(\tilde z_k)) \, s(x_k) + \nabla_\eta c(z_k) - \nabla_\eta
    c(\tilde z_k)$ with $c(z) = \text{scale} \cdot f(\sigma(z / \text{temperature}))$.

    Bits are $x = 1[z > 0]$ with $z = \text{logits} + $ logistic noise; $\tilde z$ is drawn anew
    given $x$, and its dependence on the logits is differentiated too. Categories are the argmax of
    $z = \log q + $ Gumbel noise, with softmax in place of $\sigma$. Scale and temperature are
    learned, the latter as its logarithm; they start at 1 and 0.1.

    $f$ must accept relaxed states, be continuous and differentiable there (twice, for the gradient
    of scale and temperature; for a random $f$, with its key fixed), or the estimate is biased: a
    table lookup, or sampling further discrete variables, is not. For such an $f$ pass a continuous
    `relaxation` of it to `value_and_grad`, which takes its place in $c$; any function will do, and
    the nearer it is to $f$, the lower the variance. $f$ is evaluated at $x$, $f$ or its relaxation
    at $z$ and $\tilde z$: three times for each sample. For `Bernoulli` and `Categorical`, also side
    by side in a `Joint`. `num_samples` is $K$.

    Reference: Tucker, Mnih, Maddison, Lawson, Sohl-Dickstein, "REBAR: Low-variance, unbiased
    gradient estimates for discrete latent variable models", NeurIPS 2017.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> estimator = Rebar()
    >>> cv = estimator.init(jax.random.key(0))
    >>> f = lambda x: -jnp.sum((x - 0.45) ** 2, axis=-1)
    >>> value, grads = estimator.value_and_grad(
    ...     f, sg.Bernoulli(jnp.zeros(5)), cv, key=jax.random.key(1))
    >>> grads.parameters.shape, grads.cv.log_temperature.shape
    ((5,), ())
    """

    class CV(eqx.Module):
        """What is learned."""

        log_temperature: Float[Array, ""]
        scale: Float[Array, ""]

    num_samples: int = eqx.field(static=True, converter=as_index, default=1)
    """The number of samples, K."""
    distributions: ClassVar = (Bernoulli, Categorical)
    by_parts: ClassVar = True

    def __check_init__(self):
        check_num_samples(
            type(self).__name__, self.num_samples, 1, "the points at which f is evaluated"
        )

    @property
    def needs_gradient(self):
        return True

    @property
    def relaxes(self):
        return True

    def num_evaluations(self, dist):
        return 3 * self.num_samples

    def init(self, key, dist=None):
        return self.CV(initial_log_temperature(), jnp.ones(()))

    def cv_optimizer(self, learning_rate):
        return slow_adam(learning_rate)

    def gradient(self, cv, dist, at):
        return relaxed_estimate(at_relaxed_points(self, cv, dist, at), dist, at, at.fx)


def initial_log_temperature() -> Float[Array, ""]:
    # Of a definite type: a weak one would change in the first step of an optimiser.
    return jnp.full((), math.log(0.1), float)


def slow_adam(learning_rate: Any) -> optax.GradientTransformation:
    """Adam with the long memory that RELAX's authors give to what it learns."""
    return adam(learning_rate, b1=0.999)


Control = Callable[[Float[Array, "2 samples ..."]], Float[Array, "2 samples ..."]]
"""c, from z and z̃ side by side to its two values."""


def relaxed_estimate(
    control: Control,
    dist: Distribution,
    at: Evaluated,
    signal: Float[Array, "samples ..."],
) -> Any:
    r"""$\frac1K \sum_k (r_k - c(\tilde z_k)) \, s(x_k) + \nabla_\eta c(z_k) - \nabla_\eta
    c(\tilde z_k)$, where $r_k$, the `signal`, is f with or without a baseline."""
    if at.key is None:
        raise ValueError("REBAR and RELAX draw noise: pass key=... to `estimate`.")
    parts = leaves(dist)
    keys = jax.random.split(at.key, len(parts)) if isinstance(dist, Joint) else [at.key]
    each = zip(parts, apart(dist, at.x), keys, strict=True)
    noises = [Noise.draw(part, x, key) for part, x, key in each]

    def difference(logits):
        z = merged(dist, [n.z(own) for n, own in zip(noises, logits, strict=True)])
        z_tilde = merged(dist, [n.z_tilde(own) for n, own in zip(noises, logits, strict=True)])
        c, c_tilde = control(jnp.stack([z, z_tilde]))
        return jnp.sum(c - c_tilde), c_tilde

    logits = [noise.logits for noise in noises]
    reparameterised, c_tilde = jax.grad(difference, has_aux=True)(logits)
    means = arranged(dist, [jnp.mean(gradient, axis=0) for gradient in reparameterised])
    score = weighted_mean(signal - c_tilde, dist.score(at.x))
    return jax.tree.map(jnp.add, score, means)


class Noise(eqx.Module):
    """What z and z̃ of the samples are made of, beside the logits."""

    dist: Distribution
    x: Float[Array, "samples ..."]
    logits: Float[Array, "samples ..."]
    """A copy for each sample, hence a gradient for each."""
    of_z: Float[Array, "samples ..."]
    of_z_tilde: Float[Array, "samples ..."]

    @classmethod
    def draw(cls, dist: Any, x: Float[Array, "samples ..."], key: PRNGKeyArray) -> "Noise":
        logits = finite(dist, dist.parameters.astype(compute_dtype(dist.parameters)))
        logits = jnp.broadcast_to(logits, x.shape)
        draw = jax.random.logistic if isinstance(dist, Bernoulli) else jax.random.gumbel
        noise, noise_tilde = draw(key, (2, *x.shape), logits.dtype)
        # z has the law of z given x too, x being a sample: draw it so, and keep the noise of it.
        noise = conditional(dist, logits, x, noise) - location(dist, logits)
        return cls(dist, x, logits, noise, noise_tilde)

    def z(self, logits: Float[Array, "samples ..."]) -> Float[Array, "samples ..."]:
        return location(self.dist, logits) + self.of_z

    def z_tilde(self, logits: Float[Array, "samples ..."]) -> Float[Array, "samples ..."]:
        return conditional(self.dist, logits, self.x, self.of_z_tilde)


def finite(dist: Distribution, logits: Array) -> Array:
    """Logits without infinite ones, of which differences are no numbers: what never happens has
    the probability e⁻¹⁰⁰ in its place."""
    if isinstance(dist, Bernoulli):
        return jnp.where(jnp.isinf(logits), 100 * jnp.sign(logits), logits)
    least = jnp.max(logits, axis=-1, keepdims=True) - 100
    return jnp.where(jnp.isneginf(logits), least, logits)


def location(dist: Distribution, logits: Array) -> Array:
    """What the noise is added to."""
    return logits if isinstance(dist, Bernoulli) else jax.nn.log_softmax(logits)


def conditional(dist: Distribution, logits: Array, x: Array, noise: Array) -> Array:
    """z given x, as a function of the logits and of fresh noise."""
    x = x.astype(logits.dtype)
    if isinstance(dist, Bernoulli):
        # x = 1: log(v / ((1 − v)(1 − θ)) + 1), a logistic variable that is known to be positive.
        sign = 2 * x - 1
        return sign * jax.nn.softplus(noise + jax.nn.softplus(sign * logits))
    # The largest entry has a law of its own, standard Gumbel; the others are cut off below it.
    top = jnp.sum(x * noise, axis=-1, keepdims=True)
    below = -jnp.logaddexp(-jax.nn.log_softmax(logits) - noise, -top)
    return jnp.where(x > 0, top, below)


def relaxed(log_temperature: Array, dist: Distribution, z: Array) -> Array:
    """σ(z / temperature), or softmax: states on the inside of the cube or the simplex."""
    if isinstance(dist, Joint):
        each = zip(leaves(dist), apart(dist, z), strict=True)
        return merged(dist, [relaxed(log_temperature, part, own) for part, own in each])
    z = z / jnp.exp(log_temperature.astype(z.dtype))
    return jax.nn.sigmoid(z) if isinstance(dist, Bernoulli) else jax.nn.softmax(z)


def at_relaxed_points(estimator: Estimator, cv: Any, dist: Distribution, at: Evaluated) -> Control:
    """scale · f(σ(z / temperature)), at z and z̃ in one call."""
    f = at.f
    if f is None:
        raise ValueError(
            f"{type(estimator).__name__} evaluates f at relaxed points, between the states, so "
            "that values at the samples are not enough: use `value_and_grad` or `expectation`."
        )

    def control(z):
        fz = jax.vmap(f)(relaxed(cv.log_temperature, dist, z).astype(dist.dtype))
        return cv.scale.astype(z.dtype) * fz.astype(z.dtype)

    return control
