"""Comparison with JAX number by number, and with the exact gradient by z-scores."""

import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: run `make test-torch`")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from problem import BATCH, JAX_KINDS, exact_gradient, law, logits, objectives

import steingrad as sg
import steingrad.torch as sgt
from significance import bound
from steingrad.torch import module as bridge
from steingrad.torch.distributions import read
from steingrad.torch.programs import Programs, key_of

pytestmark = pytest.mark.usefixtures("standard_promotion")

ESTIMATORS = {
    "reinforce": sg.Reinforce(2, baseline="moving_average"),
    "learned": sg.Reinforce(2, baseline="learned"),
    "rloo": sg.RLOO(3),
    "rodeo": sg.Rodeo(2),
    "rodeo_solved": sg.Rodeo(2, coefficients="least_squares"),
    "rodeo_some_coordinates": sg.Rodeo(2, operator=sg.Gibbs(num_coordinates=2)),
    "rodeo_exact": sg.Rodeo(2, surrogate=sg.ExactSurrogate()),
    "bronco": sg.Bronco(2, flips=2),
    "bronco_values": sg.Bronco(1, use_gradient=False),
    "lariat": sg.Lariat(3),
    "lariat_memory": sg.Lariat(2, gradients=False),
    "lariat_context": sg.Lariat(2, context_size=2, hidden=4),
    "modified_relax": sg.ModifiedRelax(2),
    "local_expectation": sg.LocalExpectation(1),
    "double_cv": sg.DoubleCV(2),
    "disarm": sg.DisARM(4),
    "arms": sg.ARMS(3),
}
BITS_ONLY = {"double_cv", "disarm", "arms"}
CASES = [
    (name, kind) for name in ESTIMATORS for kind in JAX_KINDS
    if kind == "bernoulli" or name not in BITS_ONLY
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_steps_are_those_of_jax(name, kind, monkeypatch):
    """Three steps with the same samples, all drawn in JAX, give the same value, the same gradients
    of the logits and of f's parameter, and the same control variates."""
    monkeypatch.setattr(Programs, "couples_samples", True)
    estimator, steps = ESTIMATORS[name], 3
    in_torch, in_jax = objectives(kind)
    seeds = np.random.default_rng(7).integers(0, 2**32, (steps + 1, 2), np.uint32)
    numbers = iter(seeds)
    monkeypatch.setattr(bridge, "draw_seeds", lambda: next(numbers))
    context = torch.ones(BATCH, 2, dtype=torch.float64) if "context" in name else None

    with jax.enable_x64(True):
        array = jnp.asarray(logits(kind).detach().numpy())
        dist = JAX_KINDS[kind](array)
        cv = estimator.init(key_of(seeds[0]), dist)
        optimizer = sg.cv_optimizer(estimator)
        state = optimizer.init(cv)

        @jax.jit
        def expected(cv, seeds):
            return estimator.per_element(
                in_jax, dist, cv, key=key_of(seeds), args=(jnp.asarray(0.8),),
                context=None if context is None else jnp.ones((BATCH, 2)),
            )  # fmt: skip

    module = sgt.Estimator(estimator)
    for step in range(1, steps + 1):
        theta, w = logits(kind), torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
        value = module(lambda x, w=w: in_torch(x, w), law(kind, theta), context)
        (-3 * value).backward()
        with jax.enable_x64(True):
            fx, grads = expected(cv, seeds[step])
            updates, state = optimizer.update(grads.cv, state, cv)
            cv = optax.apply_updates(cv, updates)
            fx, grads = jax.tree.map(np.asarray, (fx, grads))
        np.testing.assert_allclose(value.item(), fx.mean(), rtol=1e-10)
        np.testing.assert_allclose(theta.grad, -3 / BATCH * grads.parameters, atol=1e-10)
        np.testing.assert_allclose(w.grad, -3 * grads.args[0], rtol=1e-10)
        assert jax.tree.structure(module.cv) == jax.tree.structure(cv)
        for ours, theirs in zip(jax.tree.leaves(module.cv), jax.tree.leaves(cv), strict=True):
            np.testing.assert_allclose(*map(np.asarray, (ours, theirs)), rtol=1e-8, atol=1e-10)


def z_scores(module, kind, draws, repeats=10):
    """z-scores from one batch of many copies of the problem, which are independent estimates."""
    in_torch, _ = objectives(kind)
    one = logits(kind, torch.float32, batch=())
    total, square = torch.zeros_like(one), torch.zeros_like(one)
    for _ in range(repeats):
        many = one.detach().expand(draws, *one.shape).clone().requires_grad_()
        module(lambda x: in_torch(x, 1.0), law(kind, many)).backward()
        total += (many.grad * draws).double().sum(0)
        square += (many.grad * draws).double().square().sum(0)
    count = draws * repeats
    mean = total / count
    error = ((square / count - mean**2) / count).sqrt().detach().numpy()
    return (mean.detach().numpy() - exact_gradient(kind, one)) / error


@pytest.mark.parametrize("kind", JAX_KINDS)
@pytest.mark.parametrize("name", ["rloo", "rodeo", "bronco", "lariat"])
def test_unbiased(name, kind):
    """The estimate is unbiased while `cv` adapts, because `cv` depends on past steps alone."""
    module = sgt.Estimator(ESTIMATORS[name], cv_learning_rate=0.03)
    scores = z_scores(module, kind, 10_000)
    assert np.abs(scores).max() < bound(scores)


def test_bias_is_seen():
    class Biased(sg.Estimator):
        num_samples: int = 2

        def gradient(self, cv, dist, at):
            return sg.RLOO(2).gradient(cv, dist, at) * 1.05

    scores = z_scores(sgt.Estimator(Biased()), "bernoulli", 10_000)
    assert np.abs(scores).max() > bound(scores)


class TestSamples:
    """Independent samples are drawn by PyTorch, with the same distribution as in JAX."""

    def test_bits(self):
        torch.manual_seed(0)
        logits = torch.tensor([-math.inf, -2.0, 0.0, 1.0, math.inf])
        x = read(logits).sample(200_000)
        assert x.unique().tolist() == [0, 1]
        p = torch.sigmoid(logits)
        error = (x.mean(0) - p).abs()
        assert bool((error <= 4 * torch.sqrt(p * (1 - p) / len(x))).all())

    def test_categories(self):
        torch.manual_seed(0)
        logits = torch.tensor([[0.3, -1.0, -math.inf, 2.0], [0.0, 0.0, 1.0, 0.5]])
        x = read(torch.distributions.OneHotCategorical(logits=logits)).sample(200_000)
        assert bool((x.sum(-1) == 1).all())
        p = logits.softmax(-1)
        error = (x.mean(0) - p).abs()
        assert bool((error <= 4 * torch.sqrt(p * (1 - p) / len(x))).all())

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    def test_type_and_seed(self, dtype):
        law = read(torch.zeros(3, 4, dtype=dtype))
        torch.manual_seed(1)
        first, second = law.sample(2), law.sample(2)
        torch.manual_seed(1)
        assert first.dtype == dtype
        assert first.shape == (2, 3, 4)
        assert torch.equal(first, law.sample(2))
        assert not torch.equal(first, second)

    def test_kind_is_checked(self):
        dist = torch.distributions.OneHotCategorical(logits=torch.zeros(2, 3))
        with pytest.raises(ValueError, match="ARMS needs independent bits, but was given Categ"):
            sgt.ARMS()(lambda x: x.sum((-2, -1)), dist)
