"""A VAE on digits: the same ELBO as in JAX, from the same weights."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: run `make test-torch`")

import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import steingrad as sg
import steingrad.torch as sgt
from steingrad_lab.data import load
from steingrad_lab.models import BernoulliLikelihood, elbo_and_grad, mlp_vae

pytestmark = pytest.mark.usefixtures("standard_promotion")
STEPS, LAST = 1_000, 300


def in_torch(estimator, model, images):
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    try:
        from pytorch_vae import VAE, train
    finally:
        sys.path.pop(0)
    vae = VAE(64, 50, 100, sgt.Estimator(estimator))
    with torch.no_grad():
        for ours, theirs in ((vae.encoder, model.encoders[0]), (vae.decoder, model.decoders[0])):
            for linear, dense in zip(ours[::2], theirs.layers, strict=True):
                linear.weight.copy_(torch.from_numpy(np.array(dense.weight).T))
    return list(train(vae, torch.from_numpy(images), STEPS))


def in_jax(estimator, model, images):
    params, rest = eqx.partition(model, eqx.is_inexact_array)
    cv = (estimator.init(jax.random.key(1), sg.Bernoulli(jnp.zeros(50))),)
    optimizer, cv_optimizer = optax.adam(1e-3), sg.cv_optimizer((estimator,))
    images = jnp.asarray(images)

    def step(carry, key):
        params, state, cv, cv_state = carry
        keys = jax.random.split(key, 3)
        chosen = images[jax.random.randint(keys[0], (100,), 0, len(images))]
        model = eqx.combine(params, rest)
        y = model.likelihood.observe(keys[1], chosen)
        elbo, grads = elbo_and_grad(model, y, (estimator,), cv, key=keys[2])
        ascent = eqx.tree_at(
            lambda m: (m.encoders, m.decoders, m.likelihood),
            params, (grads.encoders, *grads.generative[:2]),  # there is no learned prior
        )  # fmt: skip
        updates, state = optimizer.update(jax.tree.map(jnp.negative, ascent), state, params)
        cv_updates, cv_state = cv_optimizer.update(grads.cv, cv_state, cv)
        cv = optax.apply_updates(cv, cv_updates)
        return (optax.apply_updates(params, updates), state, cv, cv_state), elbo

    carry = params, optimizer.init(params), cv, cv_optimizer.init(cv)
    return jax.jit(lambda c, k: jax.lax.scan(step, c, k)[1])(
        carry, jax.random.split(jax.random.key(2), STEPS)
    )


def test_same_elbo():
    estimator, images = sg.Bronco(), load("digits").train
    model = mlp_vae(64, (50,), (100, 100), BernoulliLikelihood(), key=jax.random.key(0))
    ours, theirs = (
        np.asarray(run(estimator, model, images)) for run in (in_torch, in_jax)
    )  # fmt: skip
    # Between seeds the mean over the last steps differs by about 0.1.
    assert theirs[-LAST:].mean() > theirs[:LAST].mean() + 1
    assert abs(ours[-LAST:].mean() - theirs[-LAST:].mean()) < 0.4
