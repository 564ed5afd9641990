"""Binary VAEs with one or several layers of stochastic bits."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from steingrad.distributions import Bernoulli

from .likelihoods import Likelihood
from .networks import MLP


class VAE(eqx.Module):
    r"""The model $p(y, x) = p(y \mid x_1) \, p(x_1 \mid x_2) \cdots p(x_L)$ with the encoder
    $q(x \mid y) = q(x_1 \mid y) \, q(x_2 \mid x_1) \cdots$. Every $x_l$ is a vector of bits, and
    the prior $p(x_L)$ is uniform and fixed.

    `encoders[l - 1]` maps $x_{l-1}$ to the logits of $x_l$, where $x_0$ is the image $y$.
    `decoders[l - 1]` maps $x_l$ to the logits of $x_{l-1}$, or to the likelihood's parameters.

    >>> import jax, jax.numpy as jnp
    >>> from steingrad_lab.models import BernoulliLikelihood
    >>> model = mlp_vae(64, (20,), (30,), BernoulliLikelihood(), key=jax.random.key(0))
    >>> model.log_weights(jnp.zeros((5, 64)), samples=3, key=jax.random.key(1)).shape
    (3, 5)
    """

    encoders: tuple[Callable[[Array], Array], ...]
    decoders: tuple[Callable[[Array], Array], ...]
    likelihood: Likelihood
    layer_sizes: tuple[int, ...] = eqx.field(static=True)

    @property
    def num_layers(self) -> int:
        return len(self.layer_sizes)

    @property
    def generative(self) -> Any:
        """The parameters of $p(y, x)$, with respect to which the decoder's gradient is taken."""
        return self.decoders, self.likelihood

    def log_likelihood(
        self, layer: int, below: Float[Array, "... inputs"], x: Float[Array, "... bits"]
    ) -> Float[Array, "..."]:
        r"""Returns $\log p(x_l \mid x_{l+1})$ for $l$ = `layer`, where $x_0$ is the image."""
        outputs = self.decoders[layer](x)
        if layer == 0:
            return self.likelihood.log_prob(outputs, below)
        return Bernoulli(outputs).log_prob(below)

    def log_prior(self) -> float:
        r"""Returns $\log p(x_L)$, which is the same for all states."""
        return -self.layer_sizes[-1] * math.log(2)

    def log_weights(
        self, y: Float[Array, "*batch pixels"], *, samples: int, key: PRNGKeyArray
    ) -> Float[Array, "samples *batch"]:
        r"""Returns $\log p(y, x) - \log q(x \mid y)$ for samples $x \sim q(\cdot \mid y)$.

        The mean is the ELBO; the log of the mean exponential is the importance-weighted bound.
        """
        first_key, above_key = jax.random.split(key)
        q = Bernoulli(self.encoders[0](y))
        x = q.sample(first_key, (samples,))
        return self.log_weight_from(0, y, q, x, key=above_key)

    def log_weight_from(
        self,
        layer: int,
        below: Float[Array, "... inputs"],
        q: Bernoulli,
        x: Float[Array, "... bits"],
        *,
        key: PRNGKeyArray,
        relaxed: bool = False,
    ) -> Float[Array, "..."]:
        r"""Returns the terms of $\log p(y, x) - \log q(x \mid y)$ from the given layer up.

        `x` is the state of that layer. The layers above are sampled. If `relaxed` is set, each is
        replaced by its mean given the layer below, so that the result is continuous in `x`.
        """
        weight = self.log_likelihood(layer, below, x) - q.log_prob(x)
        for above in range(layer + 1, self.num_layers):
            key, sample_key = jax.random.split(key)
            below, q = x, Bernoulli(self.encoders[above](x))
            x = q.mean if relaxed else q.sample(sample_key)
            weight += self.log_likelihood(above, below, x) - q.log_prob(x)
        return weight + self.log_prior()


def mlp_vae(
    pixels: int,
    layer_sizes: Sequence[int],
    hidden: Sequence[int],
    likelihood: Likelihood,
    *,
    key: PRNGKeyArray,
) -> VAE:
    """Builds the paper's VAE from layers of `layer_sizes` bits.

    Each encoder and decoder has `hidden` units, or is an affine map if `hidden` is empty.
    """
    sizes = (pixels, *layer_sizes)
    keys = jax.random.split(key, (2, len(layer_sizes)))
    pairs = list(itertools.pairwise(sizes))
    return VAE(
        tuple(MLP(a, hidden, b, key=k) for (a, b), k in zip(pairs, keys[0], strict=True)),
        tuple(MLP(b, hidden, a, key=k) for (a, b), k in zip(pairs, keys[1], strict=True)),
        likelihood,
        tuple(layer_sizes),
    )


def sample_images(model: VAE, count: int, *, key: PRNGKeyArray) -> Float[Array, "count pixels"]:
    """Draws ancestral samples from the prior and returns the mean image of each."""
    key, top_key = jax.random.split(key)
    x = Bernoulli(jnp.zeros((count, model.layer_sizes[-1]))).sample(top_key)
    for decoder in model.decoders[:0:-1]:
        key, sample_key = jax.random.split(key)
        x = Bernoulli(decoder(x)).sample(sample_key)
    return model.likelihood.mean(model.decoders[0](x))


def reconstruct(
    model: VAE, y: Float[Array, "... pixels"], *, key: PRNGKeyArray
) -> Float[Array, "... pixels"]:
    """Returns the mean image given one sample of the first layer for each `y`."""
    x = Bernoulli(model.encoders[0](y)).sample(key)
    return model.likelihood.mean(model.decoders[0](x))
