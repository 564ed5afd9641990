"""Bounds of a stored model, compared with a direct computation."""

import jax
import jax.numpy as jnp
import numpy as np

from small_runs import SMALL
from steingrad_lab.models import VAE, BernoulliLikelihood, mlp_vae
from steingrad_lab.training import evaluate, load_trained


def test_evaluate_against_a_direct_computation(trained):
    """Processing images and samples in batches gives the same bounds."""
    _, task, step, state = load_trained(trained.path)
    assert step == SMALL.steps
    model, images = task.model(state, 0), task.dataset.test[:130]
    many = [evaluate(model, images, 250, jax.random.key(i)) for i in range(3)]
    y = model.likelihood.observe(jax.random.key(9), jnp.asarray(images))
    weights = model.log_weights(y, samples=250, key=jax.random.key(10))
    direct = float(jnp.mean(jax.nn.logsumexp(weights, axis=0) - np.log(250)))
    spread = np.std([m.bound for m in many]) + 0.5
    assert abs(np.mean([m.bound for m in many]) - direct) < 4 * spread
    assert many[0].bound > many[0].elbo
    one = evaluate(model, images, 1, jax.random.key(0))
    np.testing.assert_allclose(one.bound, one.elbo, rtol=1e-5)


def test_bounds_of_very_many_samples(monkeypatch):
    """The sums over 60,000 samples are not rounded to float32."""
    log_weight = np.float32(-43.59)
    known = lambda self, y, *, samples, key: [jnp.full((samples, len(y)), log_weight)] * 2
    monkeypatch.setattr(VAE, "log_weights_and_elbos", known)
    model = mlp_vae(4, (2,), (), BernoulliLikelihood(), key=jax.random.key(0))
    bounds = evaluate(model, np.zeros((3, 4), np.uint8), 60_000, jax.random.key(1), batch_size=3)
    np.testing.assert_allclose(bounds, [float(log_weight)] * 2, rtol=2e-7)
