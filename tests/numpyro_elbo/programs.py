"""Small models and guides whose ELBO can be summed exactly."""

import itertools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.handlers import seed
from numpyro.infer.util import compute_log_probs

DATA = jnp.array([0.3, -1.2, 2.0])


class Mixture:
    """Local bits and categories in a plate, of which the categories depend on the bits, beside a
    global continuous site on which the bits depend."""

    spaces: ClassVar = {"bit": [(3,), 2], "kind": [(3,), 3]}
    continuous = "level"
    params: ClassVar = {
        "loc": jnp.array(0.2),
        "log_scale": jnp.array(-1.0),
        "bits": jnp.array([0.5, -0.3, 1.0]),
        "kinds": jnp.array([[0.1, 0.5, -0.4], [0.0, 0.3, 0.2], [-0.6, 0.2, 0.9]]),
        "means": jnp.array([-1.0, 0.5, 1.5]),
    }

    @staticmethod
    def model():
        means = numpyro.param("means", Mixture.params["means"])
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", 3):
            bit = numpyro.sample("bit", dist.Bernoulli(0.4))
            kind = numpyro.sample("kind", dist.Categorical(probs=jnp.array([0.2, 0.5, 0.3])))
            numpyro.sample("x", dist.Normal(means[kind] + bit * level, 0.7), obs=DATA)

    @staticmethod
    def guide():
        value = lambda name: numpyro.param(name, Mixture.params[name])
        level = numpyro.sample("level", dist.Normal(value("loc"), jnp.exp(value("log_scale"))))
        bits, kinds = value("bits"), value("kinds")
        with numpyro.plate("data", 3):
            bit = numpyro.sample("bit", dist.Bernoulli(logits=bits + 0.5 * level))
            shifted = kinds + 0.8 * bit[..., None] * jnp.array([1.0, -1.0, 0.0])
            numpyro.sample("kind", dist.Categorical(logits=shifted))


class Layers:
    """A sigmoid belief network of two layers without a plate."""

    spaces: ClassVar = {"deep": [(2,), 2], "shallow": [(3,), 2]}
    continuous = None
    weights = jnp.array([[1.0, -2.0, 0.5], [0.7, 1.5, -1.0]])
    params: ClassVar = {
        "deep_logits": jnp.array([0.4, -0.8]),
        "shallow_logits": jnp.array([0.2, -0.5, 1.1]),
        "decoder": jnp.array([[1.5, -1.0], [0.5, 2.0], [-1.2, 0.3]]),
    }

    @staticmethod
    def model():
        decoder = numpyro.param("decoder", Layers.params["decoder"])
        deep = numpyro.sample("deep", dist.Bernoulli(probs=0.5 * jnp.ones(2)).to_event(1))
        logits = deep @ Layers.weights - 0.5
        shallow = numpyro.sample("shallow", dist.Bernoulli(logits=logits).to_event(1))
        logits = shallow @ decoder
        numpyro.sample("x", dist.Bernoulli(logits=logits).to_event(1), obs=jnp.array([1, 0]))

    @staticmethod
    def guide():
        value = lambda name: numpyro.param(name, Layers.params[name])
        shallow = dist.Bernoulli(logits=value("shallow_logits")).to_event(1)
        shallow = numpyro.sample("shallow", shallow)
        logits = value("deep_logits") + 0.9 * Layers.weights @ (shallow - 0.5)
        numpyro.sample("deep", dist.Bernoulli(logits=logits).to_event(1))


class Counted:
    """Bits in a plate, whose sum is observed outside of the plate, so that the elements of the
    plate are not independent. The last bit of the plate's second site has no observation."""

    spaces: ClassVar = {"bit": [(3,), 2], "other": [(3,), 2]}
    continuous = None
    params: ClassVar = {"bits": jnp.array([0.5, -0.3, 1.0]), "others": jnp.array([0.2, 0.1, -0.7])}

    @staticmethod
    def model():
        with numpyro.plate("data", 3):
            bit = numpyro.sample("bit", dist.Bernoulli(0.4))
            other = numpyro.sample("other", dist.Bernoulli(0.6))
            with numpyro.handlers.mask(mask=jnp.array([True, True, False])):
                numpyro.sample("y", dist.Normal(2.0 * other, 1.0), obs=DATA)
        numpyro.sample("count", dist.Normal(jnp.sum(1.0 * bit) ** 2, 1.0), obs=2.5)

    @staticmethod
    def guide():
        bits = numpyro.param("bits", Counted.params["bits"])
        others = numpyro.param("others", Counted.params["others"])
        with numpyro.plate("data", 3):
            numpyro.sample("bit", dist.Bernoulli(logits=bits))
            numpyro.sample("other", dist.Bernoulli(logits=others))


def exact_elbo(problem, params):
    """The ELBO as a sum over all states, and over the points of a quadrature for the continuous
    site."""
    shapes = [shape for shape, _ in problem.spaces.values()]
    grids = [
        np.array(list(itertools.product(range(count), repeat=int(np.prod(shape)))))
        for shape, count in problem.spaces.values()
    ]
    index = np.array(list(itertools.product(*[range(len(grid)) for grid in grids])))
    states = {
        name: jnp.asarray(grid[index[:, p]].reshape(-1, *shape))
        for p, (name, grid, shape) in enumerate(zip(problem.spaces, grids, shapes, strict=True))
    }

    def weighted(state, noise):
        values = dict(state)
        if problem.continuous:
            values[problem.continuous] = params["loc"] + jnp.exp(params["log_scale"]) * noise
        call = ((), {}, {**params, **values})
        log_q, guide_trace = compute_log_probs(seed(problem.guide, 0), *call)
        log_p, _ = compute_log_probs(seed(problem.model, 0), *call)
        unscaled = {name: guide_trace[name]["fn"].log_prob(state[name]).sum() for name in state}
        weight = jnp.exp(sum(unscaled.values()))
        return weight * (sum(log_p.values()) - sum(log_q.values()))

    points, weights = np.polynomial.hermite_e.hermegauss(24 if problem.continuous else 1)
    each = jax.vmap(jax.vmap(weighted, (0, None)), (None, 0))(states, jnp.asarray(points))
    return jnp.sum(jnp.asarray(weights) / np.sum(weights) * jnp.sum(each, axis=1))
