"""The gradient of the ELBO: encoders by estimators, decoders by back-propagation."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from steingrad.estimators import Estimator

from .vae import VAE


class ElboGradients(NamedTuple):
    """Gradients of the mean ELBO over a batch; `cv` has one entry for each stochastic layer."""

    encoders: tuple
    generative: Any
    cv: tuple


def elbo_and_grad(
    model: VAE,
    y: Float[Array, "batch pixels"],
    estimators: Sequence[Estimator],
    cv: Sequence[Any],
    *,
    key: PRNGKeyArray,
    common_random_numbers: bool = False,
    average_decoder: bool = False,
) -> tuple[Float[Array, ""], ElboGradients]:
    r"""Returns an estimate of the mean ELBO over the batch, and its gradients.

    Layer $l$ conditions on one ancestral sample of the layers below. The estimator of layer $l$
    gives the gradient with respect to encoder $l$, where $f(x_l)$ is the sum of the ELBO's terms
    from layer $l$ up. The layers above are sampled separately for each of the $K$ samples of
    $x_l$, or with the same random numbers for all $K$ if `common_random_numbers` is set.

    With one layer, the decoder's gradient is averaged over the $K$ samples. With several layers it
    comes from the ancestral sample, as in the paper, or, if `average_decoder` is set, from the $K$
    samples of the first layer.

    `cv[l]` are the control variates of layer $l$. Their gradient is that of $g^2$, averaged over
    batch and coordinates, where $g$ is the encoder gradient of one element of the batch.

    With `model.analytic_kl`, $f(x) = \log p(y \mid x)$, and the gradient of the KL divergence is
    exact.
    """
    decoder_from_samples = model.num_layers == 1 or average_decoder
    below, value = y, jnp.zeros(())
    generative_grad: Any = None
    ancestral, encoder_grads, cv_grads = [], [], []
    for layer, layer_key in enumerate(jax.random.split(key, model.num_layers)):
        estimate_key, sample_key = jax.random.split(layer_key)
        logits, pull_back = eqx.filter_vjp(
            lambda encoder, below=below: model.shaped(encoder(below)), model.encoders[layer]
        )
        q = model.codes(logits)
        f = partial(_log_weight, model, layer, below, q, common_random_numbers)
        # RELAX needs a function that is continuous in x_l; sampling the layers above makes f jump.
        relaxation = partial(f, relaxed=True)
        settings: dict[str, Any] = {"key": estimate_key, "context": below}
        if layer == 0 and decoder_from_samples:
            fx, grads = estimators[layer].per_element(
                f, q, cv[layer], args=(model.generative,), relaxation=relaxation, **settings
            )
            value, generative_grad = jnp.mean(fx), grads.args[0]
        else:
            f, relaxation = (partial(g, generative=model.generative) for g in (f, relaxation))
            _, grads = estimators[layer].per_element(
                f, q, cv[layer], relaxation=relaxation, **settings
            )
        logits_grad = grads.parameters / y.shape[0]
        if model.analytic_kl:
            kl, (kl_logits, kl_prior) = _kl_and_grad(model, logits)
            value, logits_grad = value - kl, logits_grad - kl_logits
            decoders, likelihood, prior = generative_grad
            prior = None if prior is None else prior - kl_prior
            generative_grad = decoders, likelihood, prior
        encoder_grads.append(pull_back(logits_grad)[0])
        cv_grads.append(grads.cv)
        x = q.sample(sample_key)
        ancestral.append((layer, below, q, x))
        below = model.flat(x)

    if not decoder_from_samples:
        value, generative_grad = _ancestral_gradient(model, ancestral)
    return value, ElboGradients(tuple(encoder_grads), generative_grad, tuple(cv_grads))


def _log_weight(
    model, layer, below, q, common_random_numbers, x, generative, *, key, relaxed=False
):
    """The objective of a layer: the sum of the ELBO's terms from that layer up, or without the KL
    divergence if that is computed exactly."""
    whole = model.with_generative(generative)
    if model.analytic_kl:
        return whole.log_likelihood(layer, below, x)
    log_weight = lambda x: whole.log_weight_from(layer, below, q, x, key=key, relaxed=relaxed)
    return jax.vmap(log_weight)(x) if common_random_numbers else log_weight(x)


def _kl_and_grad(model: VAE, logits: Array) -> tuple[Float[Array, ""], tuple[Array, Any]]:
    """Returns the mean KL divergence, and its gradients with respect to logits and prior."""

    @eqx.filter_value_and_grad
    def mean_kl(parameters):
        logits, prior = parameters
        return jnp.mean(dataclasses.replace(model, prior=prior).kl(model.codes(logits)))

    return mean_kl((logits, model.prior))


def _ancestral_gradient(model: VAE, ancestral: list) -> tuple[Float[Array, ""], Any]:
    """Returns the ELBO at one ancestral sample and its gradient with respect to the decoders."""

    @eqx.filter_value_and_grad
    def elbo(generative):
        whole = model.with_generative(generative)
        terms = [
            whole.log_likelihood(layer, below, x) - q.log_prob(x)
            for layer, below, q, x in ancestral
        ]
        return jnp.mean(sum(terms)) + jnp.mean(whole.log_prior(ancestral[-1][-1]))

    return elbo(model.generative)
