"""The ELBO for numpyro: unbiased, on its own batches, inside SVI, and what it refuses."""

import pytest

numpyro = pytest.importorskip("numpyro", reason="numpyro is missing: run `make test-numpyro`")

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
from jax.flatten_util import ravel_pytree
from numpyro.infer import SVI, Trace_ELBO, TraceGraph_ELBO
from numpyro.primitives import mutable
from programs import DATA, Counted, Layers, Mixture, exact_elbo

import significance
import steingrad as sg
from marks import slow
from steingrad.numpyro import program


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch):
    monkeypatch.setattr(significance, "DRAWS", 6000)
    monkeypatch.setattr(significance, "CHUNK", 1000)


def gradient(elbo, problem, learned, key):
    loss = lambda params: elbo.loss(key, {**params, **learned}, problem.model, problem.guide)
    return ravel_pytree(jax.grad(loss)(problem.params))[0]


def scores(elbo, problem):
    """z-scores of the gradient of the loss, with control variates that have learned."""
    learned = {}
    if isinstance(elbo, sg.numpyro.ELBO):
        call = problem.params, problem.model, problem.guide
        learned = elbo.init(jax.random.key(1), *call)

    @jax.jit
    def step(learned, key):
        given = {**problem.params, **learned}
        found = elbo.loss_with_mutable_state(key, given, problem.model, problem.guide)
        return found["mutable_state"]

    for key in jax.random.split(jax.random.key(2), 40 if learned else 0):
        learned = step(learned, key)
    exact = ravel_pytree(jax.grad(lambda p: -exact_elbo(problem, p))(problem.params))[0]
    return significance.z_scores(lambda key: gradient(elbo, problem, learned, key), exact)


@pytest.mark.parametrize(
    ("problem", "estimator"),
    [
        (Mixture, sg.Bronco()),
        (Layers, sg.Bronco()),
        (Layers, sg.RLOO(2)),
        (Counted, sg.Rebar()),
        *slow(
            (Mixture, sg.RLOO(3)),
            (Mixture, sg.Lariat(2)),
            (Layers, sg.Rodeo(2)),
            (Layers, sg.LocalExpectation()),
            (Layers, sg.ARMS(3)),
            (Counted, sg.Bronco()),
            (Counted, sg.DoubleCV(2)),
            (Counted, sg.Reinforce(1, baseline="moving_average")),
        ),
    ],
)
def test_unbiased(problem, estimator):
    assert significance.passes(scores(sg.numpyro.ELBO(estimator), problem))


@pytest.mark.parametrize("problem", [Layers, *slow(Mixture, Counted)])
def test_same_expectation_as_trace_graph_elbo(problem):
    assert significance.passes(scores(TraceGraph_ELBO(), problem))


def test_a_wrong_gradient_of_one_site_is_seen(monkeypatch):
    """Without the model's terms, the gradients of a group are wrong."""
    groups = program.groups_of

    def without_prior(*args):
        found = groups(*args)
        return [g._replace(model_terms=g.model_terms - {"shallow"}) for g in found]

    monkeypatch.setattr(program, "groups_of", without_prior)
    assert not significance.passes(scores(sg.numpyro.ELBO(sg.RLOO(2)), Layers))


BITS = jnp.array([0.5, -0.3, 1.0])


def local_model(subsample_size=None):
    with numpyro.plate("data", 3, subsample_size=subsample_size) as index:
        bit = numpyro.sample("bit", dist.Bernoulli(0.4))
        numpyro.sample("x", dist.Normal(2.0 * bit, 1.0), obs=DATA[index])


def local_guide(subsample_size=None):
    bits = numpyro.param("bits", BITS)
    with numpyro.plate("data", 3, subsample_size=subsample_size) as index:
        numpyro.sample("bit", dist.Bernoulli(logits=bits[index]))


def exact_local(bits):
    """The gradient of minus the ELBO, for each element of the plate."""

    def of_one(bit, x):
        p = jax.nn.sigmoid(bit)
        log_joint = lambda v: dist.Normal(2.0 * v, 1.0).log_prob(x) + jnp.log(0.4 if v else 0.6)
        return -(p * (log_joint(1) - jnp.log(p)) + (1 - p) * (log_joint(0) - jnp.log(1 - p)))

    return jax.vmap(jax.grad(of_one))(bits, DATA)


@pytest.mark.parametrize("size", [None, 2])
def test_elements_of_a_plate_are_independent(size):
    """With one bit for each element, local expectation is exact, whatever the samples are."""
    elbo = sg.numpyro.ELBO(sg.LocalExpectation())
    loss = lambda p, key: elbo.loss(key, p, local_model, local_guide, subsample_size=size)
    keys = jax.random.split(jax.random.key(0), 8)
    found = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))({"bits": BITS}, keys)["bits"]
    chosen = found != 0
    assert jnp.all(jnp.sum(chosen, axis=1) == (size or 3))
    scale = 3 / (size or 3)
    expected = jnp.where(chosen, scale * exact_local(BITS), 0)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def groups(problem):
    found = program.Program(
        problem.model, problem.guide, (), {}, jax.random.key(0), problem.params, sg.RLOO(2)
    )
    return found.groups


def test_groups():
    assert {g.name: g.dims for g in groups(Counted)} == {"bit": set(), "other": {-1}}
    assert [(g.name, g.dims) for g in groups(Mixture)] == [("bit", {-1}), ("kind", {-1})]
    shallow, deep = groups(Layers)
    assert (shallow.name, deep.name) == ("shallow", "deep")
    assert shallow.guide_terms == {"shallow", "deep"}
    assert shallow.model_terms == {"shallow", "deep", "x"}
    # Given the first layer, nothing that is observed depends on the second one.
    assert deep.guide_terms == {"deep"}
    assert deep.model_terms == {"shallow", "deep"}


def test_independent_sites_share_an_estimator():
    class Many:
        params: ClassVar = {"logits": jnp.zeros((4, 2))}

        @staticmethod
        def model():
            prior = dist.Bernoulli(0.3 * jnp.ones(2)).to_event(1)
            bits = [numpyro.sample(f"bit{i}", prior) for i in range(4)]
            numpyro.sample("x", dist.Normal(1.0 * sum(jnp.sum(b) for b in bits), 1.0), obs=3.0)

        @staticmethod
        def guide():
            logits = numpyro.param("logits", Many.params["logits"])
            for i in range(4):
                numpyro.sample(f"bit{i}", dist.Bernoulli(logits=logits[i]).to_event(1))

    (group,) = groups(Many)
    assert group.name == "bit0+bit1+bit2+bit3"
    # The same sites as one site of eight bits have the same gradient by enumeration.
    elbo = sg.numpyro.ELBO(sg.LocalExpectation())
    draw = lambda key: gradient(elbo, Many, {}, key)
    found = jnp.mean(jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), 2000)), axis=0)

    def f(x):
        terms = x * jnp.log(0.3) + (1 - x) * jnp.log(0.7)
        return jnp.sum(terms, -1) + dist.Normal(jnp.sum(x, -1), 1.0).log_prob(3.0)

    q = sg.Bernoulli(jnp.zeros(8))
    # At logits of 0 the entropy has no gradient.
    np.testing.assert_allclose(found, -sg.exact_gradient(f, q), atol=0.01)


def test_without_discrete_sites_the_same_as_trace_elbo():
    def model():
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(z, 1.0), obs=DATA[0])

    def guide():
        numpyro.sample("z", dist.Normal(numpyro.param("loc", 0.5), 0.3))

    ours, numpyros = [
        jax.value_and_grad(lambda p, e=e: e.loss(jax.random.key(3), p, model, guide))({"loc": 0.5})
        for e in (Trace_ELBO(), sg.numpyro.ELBO())
    ]
    for a, b in zip(*map(jax.tree.leaves, (ours, numpyros)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_second_derivatives_are_refused():
    elbo = sg.numpyro.ELBO(sg.RLOO(2))
    loss = lambda p: elbo.loss(jax.random.key(0), p, local_model, local_guide)
    with pytest.raises(TypeError, match="second derivative"):
        jax.hessian(loss)({"bits": BITS})


def test_svi_keeps_control_variates():
    elbo = sg.numpyro.ELBO(sg.Bronco(), num_particles=3)
    svi = sg.numpyro.SVI(local_model, local_guide, optax.adam(0.05), elbo)
    state = svi.init(jax.random.PRNGKey(0))
    before = state.mutable_state["steingrad$cv"]["bit"].cv
    state, _ = jax.jit(svi.stable_update)(state)
    after = state.mutable_state["steingrad$cv"]["bit"].cv
    assert float(before.flips) == 0 < float(after.flips)
    result = svi.run(jax.random.key(0), 200, progress_bar=False, init_state=state)
    assert jnp.isfinite(svi.evaluate(result.state))
    posterior = jax.nn.sigmoid(jnp.log(0.4 / 0.6) + 2.0 * DATA - 2.0)
    # The optimum is the posterior.
    np.testing.assert_allclose(jax.nn.sigmoid(result.params["bits"]), posterior, atol=0.05)


def test_the_users_mutable_state_is_kept():
    def model():
        count = mutable("count", {"value": jnp.zeros(())})
        count["value"] = count["value"] + 1
        local_model()

    svi = sg.numpyro.SVI(model, local_guide, optax.adam(0.05), sg.numpyro.ELBO())
    state = svi.init(jax.random.key(0))
    for _ in range(2):
        state, _ = svi.update(state)
    assert float(state.mutable_state["count"]["value"]) == 3
    assert "steingrad$cv" in state.mutable_state


def test_numpyros_svi_suffices_if_nothing_is_learned():
    svi = SVI(local_model, local_guide, optax.adam(0.05), sg.numpyro.ELBO(sg.RLOO(2)))
    result = svi.run(jax.random.key(0), 5, progress_bar=False)
    assert jnp.all(jnp.isfinite(result.losses))
    svi = SVI(local_model, local_guide, optax.adam(0.05), sg.numpyro.ELBO(sg.Bronco()))
    with pytest.raises(ValueError, match=r"numpyro\.SVI in place of"):
        svi.run(jax.random.key(0), 5, progress_bar=False)


def refused(site, guide_site=None, estimator=None):
    def model():
        numpyro.sample("z", site)

    def guide():
        if guide_site is not None:
            numpyro.sample("z", guide_site)

    elbo = sg.numpyro.ELBO(estimator)
    elbo.loss(jax.random.key(0), {}, model, guide)


@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        ((dist.Poisson(1.0), dist.Poisson(2.0)), NotImplementedError, "only Bernoulli and Categ"),
        ((dist.Bernoulli(0.5), None), NotImplementedError, "not in the guide"),
        (
            (dist.Normal(0.0, 1.0), dist.VonMises(0.0, 1.0)),
            NotImplementedError,
            "no reparametrised samples",
        ),
        (
            (dist.Categorical(jnp.ones(3) / 3), dist.Categorical(jnp.ones(3) / 3), sg.Rebar()),
            TypeError,
            "Categorical site are integers",
        ),
        ((dist.Bernoulli(0.5), dist.Bernoulli(0.5), sg.UnorderedSet(2)), TypeError, "weights"),
        ((dist.Bernoulli(0.5), dist.Bernoulli(0.5), sg.GumbelSoftmax(1)), TypeError, "between"),
        ((dist.Bernoulli(0.5), dist.Bernoulli(0.5), "bronco"), TypeError, "estimator such as"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.filterwarnings("ignore:Found vars in model but not guide")
def test_refusals(args, error, words):
    with pytest.raises(error, match=words):
        refused(*args)


def test_relaxed_layers_are_refused():
    elbo = sg.numpyro.ELBO(sg.Rebar())
    with pytest.raises(TypeError, match="depend on each other"):
        elbo.init(jax.random.key(0), Layers.params, Layers.model, Layers.guide)
