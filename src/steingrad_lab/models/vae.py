"""VAEs with one or several layers of stochastic bits or categories."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from steingrad.distributions import Bernoulli, Categorical

from .likelihoods import Likelihood
from .networks import MLP, Activation, Initialization


class VAE(eqx.Module):
    r"""The model $p(y, x) = p(y \mid x_1) \, p(x_1 \mid x_2) \cdots p(x_L)$ with the encoder
    $q(x \mid y) = q(x_1 \mid y) \, q(x_2 \mid x_1) \cdots$. Every $x_l$ is a vector of independent
    codes given the layer before it: of bits, or of categories as one-hot vectors.

    `encoders[l - 1]` maps $x_{l-1}$ to the logits of $x_l$, where $x_0$ is the image $y$.
    `decoders[l - 1]` maps $x_l$ to the logits of $x_{l-1}$, or to the likelihood's parameters.
    Encoders and decoders see the one-hot vectors of a layer behind each other, as one vector.

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
    """The number of codes in each layer."""
    categories: int | None = eqx.field(static=True, default=None)
    """The number of values of each code; `None` for bits."""
    analytic_kl: bool = eqx.field(static=True, default=False)
    """Whether the KL divergence in the ELBO is computed exactly. This needs a single layer."""
    prior: Float[Array, " width"] | None = None
    """The logits of the prior $p(x_L)$, which are learned; `None` for a uniform prior."""

    @property
    def num_layers(self) -> int:
        return len(self.layer_sizes)

    @property
    def generative(self) -> Any:
        """The parameters of $p(y, x)$, with respect to which the decoder's gradient is taken."""
        return self.decoders, self.likelihood, self.prior

    def with_generative(self, generative: Any) -> "VAE":
        """Returns the same model with other parameters of $p(y, x)$."""
        decoders, likelihood, prior = generative
        return dataclasses.replace(self, decoders=decoders, likelihood=likelihood, prior=prior)

    def shaped(self, flat: Float[Array, "... width"]) -> Float[Array, "..."]:
        """Gives logits or states the shape that the distribution of a layer has."""
        if self.categories is None:
            return flat
        return flat.reshape(*flat.shape[:-1], -1, self.categories)

    def flat(self, x: Float[Array, "..."]) -> Float[Array, "... width"]:
        """Gives the states of a layer the shape that networks take. Undoes `shaped`."""
        return x if self.categories is None else x.reshape(*x.shape[:-2], -1)

    def codes(self, logits: Float[Array, "..."]) -> Bernoulli | Categorical:
        """Returns the distribution of a layer with these logits, of the shape of `shaped`."""
        return Bernoulli(logits) if self.categories is None else Categorical(logits)

    def encode(self, layer: int, below: Float[Array, "... inputs"]) -> Bernoulli | Categorical:
        r"""Returns $q(x_{l+1} \mid x_l)$ for $l$ = `layer`, where $x_0$ is the image."""
        return self.codes(self.shaped(self.encoders[layer](below)))

    def prior_codes(self, shape: tuple[int, ...] = ()) -> Bernoulli | Categorical:
        """Returns the prior $p(x_L)$ as a batch of this shape."""
        width = self.layer_sizes[-1] * (self.categories or 1)
        logits = jnp.zeros(width) if self.prior is None else self.prior
        return self.codes(self.shaped(jnp.broadcast_to(logits, (*shape, width))))

    def log_likelihood(
        self, layer: int, below: Float[Array, "... inputs"], x: Float[Array, "..."]
    ) -> Float[Array, "..."]:
        r"""Returns $\log p(x_l \mid x_{l+1})$ for $l$ = `layer`, where $x_0$ is the image.

        `below` is $x_l$ as networks take it (see `flat`).
        """
        outputs = self.decoders[layer](self.flat(x))
        if layer == 0:
            return self.likelihood.log_prob(outputs, below)
        return self.codes(self.shaped(outputs)).log_prob(self.shaped(below))

    def log_prior(self, x: Float[Array, "..."]) -> Float[Array, "..."] | float:
        r"""Returns $\log p(x_L)$ at the state `x`. A uniform prior is the same for all states."""
        if self.prior is None:
            return -self.layer_sizes[-1] * math.log(self.categories or 2)
        return self.prior_codes().log_prob(x)

    def kl(self, q: Bernoulli | Categorical) -> Float[Array, "..."]:
        r"""Returns $KL(q(x_1 \mid y) \,\|\, p(x_1))$ exactly, for a model with one layer."""
        log_q = jax.nn.log_softmax(q.value_logits)
        log_p = jax.nn.log_softmax(self.prior_codes().value_logits)
        return jnp.sum(jnp.exp(log_q) * (log_q - log_p), axis=(-2, -1))

    def log_weights(
        self, y: Float[Array, "*batch pixels"], *, samples: int, key: PRNGKeyArray
    ) -> Float[Array, "samples *batch"]:
        r"""Returns $\log p(y, x) - \log q(x \mid y)$ for samples $x \sim q(\cdot \mid y)$.

        The mean is the ELBO; the log of the mean exponential is the importance-weighted bound.
        """
        return self.log_weights_and_elbos(y, samples=samples, key=key)[0]

    def log_weights_and_elbos(
        self, y: Float[Array, "*batch pixels"], *, samples: int, key: PRNGKeyArray
    ) -> tuple[Float[Array, "samples *batch"], Float[Array, "samples *batch"]]:
        r"""Returns `log_weights`, and for the same samples the terms whose mean is the ELBO.

        Both are the same, unless the KL divergence is computed exactly. Then the second is
        $\log p(y \mid x) - KL(q(x \mid y) \,\|\, p(x))$.
        """
        first_key, above_key = jax.random.split(key)
        q = self.encode(0, y)
        x = q.sample(first_key, (samples,))
        weights = self.log_weight_from(0, y, q, x, key=above_key)
        if not self.analytic_kl:
            return weights, weights
        return weights, self.log_likelihood(0, y, x) - self.kl(q)

    def log_weight_from(
        self,
        layer: int,
        below: Float[Array, "... inputs"],
        q: Bernoulli | Categorical,
        x: Float[Array, "..."],
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
            below = self.flat(x)
            q = self.encode(above, below)
            x = q.mean if relaxed else q.sample(sample_key)
            weight += self.log_likelihood(above, below, x) - q.log_prob(x)
        return weight + self.log_prior(x)


def mlp_vae(
    pixels: int,
    layer_sizes: Sequence[int],
    hidden: Sequence[int],
    likelihood: Likelihood,
    categories: int | None = None,
    activation: Activation = "leaky_relu",
    initialization: Initialization = "glorot",
    *,
    key: PRNGKeyArray,
) -> VAE:
    """Builds a VAE from layers of `layer_sizes` bits, or of categories.

    Each encoder and decoder has `hidden` units, or is an affine map if `hidden` is empty. Decoders
    of categories have the hidden units of the encoders in reverse order. The paper's VAE has bits,
    leaky ReLUs and Glorot's initialisation.
    """
    sizes = (pixels, *(size * (categories or 1) for size in layer_sizes))
    back = hidden if categories is None else hidden[::-1]
    mlp = partial(MLP, activation=activation, initialization=initialization)
    keys = jax.random.split(key, (2, len(layer_sizes)))
    pairs = list(itertools.pairwise(sizes))
    return VAE(
        tuple(mlp(a, hidden, b, key=k) for (a, b), k in zip(pairs, keys[0], strict=True)),
        tuple(mlp(b, back, a, key=k) for (a, b), k in zip(pairs, keys[1], strict=True)),
        likelihood,
        tuple(layer_sizes),
        categories,
    )


def sample_images(model: VAE, count: int, *, key: PRNGKeyArray) -> Float[Array, "count pixels"]:
    """Draws ancestral samples from the prior and returns the mean image of each."""
    key, top_key = jax.random.split(key)
    x = model.prior_codes((count,)).sample(top_key)
    for decoder in model.decoders[:0:-1]:
        key, sample_key = jax.random.split(key)
        x = model.codes(model.shaped(decoder(model.flat(x)))).sample(sample_key)
    return model.likelihood.mean(model.decoders[0](model.flat(x)))


def reconstruct(
    model: VAE, y: Float[Array, "... pixels"], *, key: PRNGKeyArray
) -> Float[Array, "... pixels"]:
    """Returns the mean image given one sample of the first layer for each `y`."""
    x = model.encode(0, y).sample(key)
    return model.likelihood.mean(model.decoders[0](model.flat(x)))
