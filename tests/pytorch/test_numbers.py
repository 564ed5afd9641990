"""Comparison with JAX number by number, and with the exact gradient by z-scores."""

import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: run `make test-torch`")

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import problem
from problem import BATCH, JAX_KINDS, exact_gradient, law, logits, objectives

import steingrad as sg
import steingrad.torch as sgt
from significance import bound
from steingrad.estimators import base
from steingrad.objective import Evaluated
from steingrad.torch import flips, subset
from steingrad.torch.distributions import read

pytestmark = pytest.mark.usefixtures("standard_promotion")

ESTIMATORS = {
    "reinforce": sg.Reinforce(2, baseline="moving_average"),
    "learned": sg.Reinforce(2, baseline="learned"),
    "constant": sg.Reinforce(2, baseline=0.7),
    "rloo": sg.RLOO(3),
    "straight_through": sg.StraightThrough(2),
    "reinmax": sg.ReinMax(2, temperature=1.3),
    "gumbel_softmax": sg.GumbelSoftmax(2),
    "gumbel_softmax_hard": sg.GumbelSoftmax(2, straight_through=True, jacobian_draws=3),
    "local_expectation": sg.LocalExpectation(2),
    "rodeo": sg.Rodeo(3),
    "rodeo_solved": sg.Rodeo(2, coefficients="least_squares"),
    "rodeo_own": sg.Rodeo(2, operator=sg.Gibbs(scan="own"), surrogate=sg.LinearSurrogate()),
    "rodeo_pooled": sg.Rodeo(3, surrogate=sg.PooledSurrogate(layers=2)),
    "bronco": sg.Bronco(2, flips=2),
    "bronco_default": sg.Bronco(),
    "bronco_values": sg.Bronco(1, use_gradient=False),
    "lariat": sg.Lariat(3),
    "lariat_weighted": sg.Lariat(2, weighted=True, memory=True),
    "lariat_memory": sg.Lariat(2, gradients=False),
    "lariat_context": sg.Lariat(2, context_size=2, hidden=4),
    "lariat_stein": sg.Lariat(2, surrogate=sg.MLPSurrogate(hidden=10)),
    "rebar": sg.Rebar(2),
    "relax": sg.Relax(1, hidden=7),
    "relax_context": sg.Relax(2, context_size=2, hidden=7),
    "modified_relax": sg.ModifiedRelax(3, surrogate=sg.MLPSurrogate(hidden=10)),
    "double_cv": sg.DoubleCV(3),
    "disarm": sg.DisARM(4),
    "arms": sg.ARMS(3),
    "carms": sg.CARMS(3),
    "disarm_iw": sg.DisARMIW(4),
}
BITS_ONLY = {"disarm", "arms"}
ON_SUBSETS = {
    "reinforce", "rloo", "straight_through", "double_cv", "lariat", "lariat_memory", "bronco",
    "bronco_values",
}  # fmt: skip


def takes(name, kind):
    if kind == "subset":
        return name in ON_SUBSETS
    return kind == "bernoulli" or name not in BITS_ONLY


CASES = [(name, kind) for name in ESTIMATORS for kind in JAX_KINDS if takes(name, kind)]


def expected_steps(estimator, kind, steps, context):
    """What JAX computes in some steps: the samples, random numbers and control variates that the
    other side is given, and the results."""
    _, f = objectives(kind)
    with jax.enable_x64(True):
        dist = JAX_KINDS[kind](jnp.asarray(logits(kind).detach().numpy()))
        context = None if context is None else jnp.asarray(context)
        cv = estimator.init(jax.random.key(0), dist)
        optimizer = sg.cv_optimizer(estimator)
        state = optimizer.init(cv)

        @jax.jit
        def step(cv, state, key):
            sample_key, _, own_key = jax.random.split(key, 3)
            x = estimator.draw(sample_key, dist)
            fx, pull_back = jax.vjp(lambda x: f(x, 0.8), x)
            (dfx,) = pull_back(jnp.ones_like(fx))
            dfx = dfx if estimator.needs_gradient else None
            at = Evaluated(x, fx, dfx, f=lambda x: f(x, 0.8), key=own_key, context=context)
            wide, _, at = base.prepare(estimator, cv, dist, at)
            drawn = noise = None
            if estimator.looks_further:
                y, memo = estimator.propose(wide, dist, at)
                at = dataclasses.replace(at, fy=jax.vmap(at.f)(y), memo=memo)
                drawn = memo[1]
            if getattr(estimator, "jacobian_draws", 0) and estimator.straight_through:
                keys = jax.random.split(own_key, estimator.jacobian_draws)
                noise = jnp.stack([dist.noise(key, x.shape[:1]) for key in keys])
            if estimator.relaxes or type(estimator) is sg.ModifiedRelax:
                noise = dist.noise(own_key, (2, len(x)))
            grad, cv_grad = base.learn(estimator, wide, dist, at)
            updates, state = optimizer.update(cv_grad, state, cv)
            cv = optax.apply_updates(cv, updates)
            return (x, drawn, noise), (fx, grad), (cv, state)

        found = []
        for number in range(steps):
            given, results, following = step(cv, state, jax.random.key(number))
            given, results = jax.tree.map(np.asarray, (given, results))
            found.append((given, numbers(cv, state), results, numbers(*following)))
            cv, state = following
    return found


def numbers(cv, state):
    """The control variates and the state of their optimiser, in the order of the buffers."""
    if cv is None:
        return np.zeros(0)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((cv, state))]
    parts = [leaf.ravel() for leaf in leaves if leaf.dtype == np.float64]
    return np.concatenate(parts) if parts else np.zeros(0)


def inject(module, monkeypatch, kind, x, drawn, noise):
    """Let the module use these samples, flips and noise in place of random ones."""
    tensor = lambda array: torch.from_numpy(np.array(array))
    states = tensor(x)
    stored = states if module.relaxed_samples else read(law(kind, logits(kind))).stored(states)
    monkeypatch.setattr(module, "draw", lambda *_: stored, raising=False)
    if noise is not None:
        monkeypatch.setattr(module, "noise", lambda *_: tensor(noise), raising=False)
    if drawn is not None:
        slots = tensor(drawn.slots).long()
        others = 1 if kind != "categorical" else logits(kind).shape[-1] - 1
        coordinates, answers = slots // others, [slots // others]
        if kind == "categorical":
            here = stored.expand(len(slots), *stored.shape).gather(-1, coordinates[..., None])
            answers += [(here[..., 0] + slots % others + 1) % (others + 1)]
        answers += [] if drawn.partners is None else [tensor(drawn.partners).long()]
        given = iter(answers)
        for module in (flips, subset):
            monkeypatch.setattr(module, "position", lambda *_: next(given))


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_steps_are_those_of_jax(name, kind, monkeypatch):
    """Steps with the same samples give the same value, the same gradients of the logits and of f's
    parameter, and the same control variates."""
    estimator, steps = ESTIMATORS[name], 4
    in_torch, _ = objectives(kind)
    context = problem.numbers(5, BATCH, 2) if "context" in name else None
    module = sgt.Estimator(estimator)
    for given, before, (fx, grad), after in expected_steps(estimator, kind, steps, context):
        inject(module, monkeypatch, kind, *given)
        theta, w = logits(kind), torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
        module.materialize(law(kind, theta))
        assert len(module.cv_numbers) == len(before)
        module.cv_numbers.copy_(torch.from_numpy(before))
        tensor = None if context is None else torch.from_numpy(context)
        value = module(lambda x, w=w: in_torch(x, w), law(kind, theta), tensor)
        (-3 * value).backward()
        np.testing.assert_allclose(value.item(), fx.mean(), rtol=1e-10)
        np.testing.assert_allclose(theta.grad, -3 / BATCH * grad, atol=1e-10)
        assert w.grad is not None
        assert w.grad != 0
        # Adam divides by a gradient's own size, so a gradient that is rounding error of the others
        # makes a step of up to 10⁻⁹.
        atol = 1e-9 if name == "lariat_context" else 1e-12
        np.testing.assert_allclose(module.cv_numbers, after, rtol=1e-10, atol=atol)


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


UNBIASED = ["rloo", "rodeo", "bronco", "bronco_values", "lariat", "carms", "disarm_iw"]


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in UNBIASED for kind in JAX_KINDS if takes(name, kind)]
)
def test_unbiased(name, kind):
    """The samples and flips that are drawn here make the estimate unbiased, also while `cv` adapts,
    because `cv` depends on past steps alone."""
    module = sgt.Estimator(ESTIMATORS[name], cv_learning_rate=0.03)
    scores = z_scores(module, kind, 5_000)
    assert np.abs(scores).max() < bound(scores)


def test_bias_is_seen():
    class Biased(sgt.RLOO):
        def gradient(self, cv, dist, at):
            return super().gradient(cv, dist, at) * 1.05

    scores = z_scores(Biased(2), "bernoulli", 10_000)
    assert np.abs(scores).max() > bound(scores)


def test_flips_with_wrong_probabilities_are_seen(monkeypatch):
    choose = flips.ValueFlips.choose

    def wrong(self, *given):
        slots, probability = choose(self, *given)
        return slots, probability * 1.5

    monkeypatch.setattr(flips.ValueFlips, "choose", wrong)
    scores = z_scores(sgt.Bronco(1, flips=1).eval(), "categorical", 5_000)
    assert np.abs(scores).max() > bound(scores)


class TestSamples:
    """Samples have the distribution that the logits say."""

    def test_bits(self):
        logits = torch.tensor([-math.inf, -2.0, 0.0, 1.0, math.inf])
        p = torch.sigmoid(logits)
        for module in (sgt.RLOO(2), sgt.DisARM(2), sgt.ARMS(3)):
            many = read(logits.expand(50_000, 5))
            x = module.draw(many, None)
            assert x.unique().tolist() == [0, 1]
            for one in x:  # the samples of one draw depend on each other
                error = (one.mean(0) - p).abs()
                assert bool((error <= 4 * torch.sqrt(p * (1 - p) / len(one))).all())

    def test_categories(self):
        logits = torch.tensor([[0.3, -1.0, -math.inf, 2.0], [0.0, 0.0, 1.0, 0.5]])
        p = logits.softmax(-1)
        for module in (sgt.RLOO(2), sgt.CARMS(3), sgt.DisARMIW(2)):
            many = read(torch.distributions.OneHotCategorical(logits=logits.expand(50_000, 2, 4)))
            for one in many.one_hot(module.draw(many, None)):
                error = (one.mean(0) - p).abs()
                assert bool((error <= 4 * torch.sqrt(p * (1 - p) / len(one))).all())

    def test_generator(self):
        law, generator = torch.zeros(3, 40, requires_grad=True), torch.Generator()
        seen, module = [], sgt.DisARM()
        for _ in range(2):
            before = torch.get_rng_state()
            module(lambda x: seen.append(x) or x.sum(-1), law, generator=generator)
            assert torch.equal(torch.get_rng_state(), before)
            generator.manual_seed(generator.initial_seed())
        assert torch.equal(*seen)
