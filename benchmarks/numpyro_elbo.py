"""The variance and the time of gradients of the ELBO in numpyro: numpyro's own estimator and ours.

    python benchmarks/numpyro_elbo.py    # prints the table of docs/numpyro.md

Two problems, with parameters after 500 steps of training: a mixture of Gaussians, and a sigmoid
belief network with two layers of bits. The variance is the trace of the covariance of the gradient
with respect to all parameters of the guide. The time is that of one compiled gradient.
"""

import time

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
from jax.flatten_util import ravel_pytree
from numpyro.infer import TraceGraph_ELBO

import steingrad as sg

STEPS, DRAWS, TIMED = 500, 1000, 200


class Mixture:
    """200 points from four clusters. The guide has a category for each point, and the means of the
    clusters are continuous."""

    estimator = sg.Bronco()
    guide_params = "loc", "log_scale", "logits"
    points = jnp.concatenate(
        [
            c + 0.5 * jax.random.normal(jax.random.key(i), (50,))
            for i, c in enumerate((-4, -1, 1, 4))
        ]
    )

    @staticmethod
    def model():
        with numpyro.plate("clusters", 4):
            means = numpyro.sample("means", dist.Normal(0.0, 5.0))
        with numpyro.plate("points", 200):
            cluster = numpyro.sample("cluster", dist.Categorical(jnp.ones(4) / 4))
            numpyro.sample("x", dist.Normal(means[cluster], 0.5), obs=Mixture.points)

    @staticmethod
    def guide():
        loc = numpyro.param("loc", jnp.array([-3.0, -1.5, 1.5, 3.0]))
        scale = jnp.exp(numpyro.param("log_scale", jnp.full(4, -2.0)))
        logits = numpyro.param("logits", jnp.zeros((200, 4)))
        with numpyro.plate("clusters", 4):
            numpyro.sample("means", dist.Normal(loc, scale))
        with numpyro.plate("points", 200):
            numpyro.sample("cluster", dist.Categorical(logits=logits))


class BeliefNetwork:
    """100 observations of 30 bits. The guide has two layers of 20 and 10 bits, where the second one
    depends on the first one."""

    estimator = sg.Bronco()
    guide_params = "encode", "further"
    weights = 1.5 * jax.random.normal(jax.random.key(0), (20, 30))
    points = jax.random.bernoulli(
        jax.random.key(1),
        jax.nn.sigmoid((jax.random.bernoulli(jax.random.key(2), 0.5, (100, 20)) - 0.5) @ weights),
    ).astype(float)

    @staticmethod
    def model():
        decode = numpyro.param("decode", 0.1 * BeliefNetwork.weights)
        deeper = numpyro.param("deeper", jnp.eye(10, 20))
        with numpyro.plate("points", 100):
            deep = numpyro.sample("deep", dist.Bernoulli(0.5 * jnp.ones(10)).to_event(1))
            shallow = dist.Bernoulli(logits=(deep - 0.5) @ deeper).to_event(1)
            shallow = numpyro.sample("shallow", shallow)
            logits = (shallow - 0.5) @ decode
            points = BeliefNetwork.points
            numpyro.sample("x", dist.Bernoulli(logits=logits).to_event(1), obs=points)

    @staticmethod
    def guide():
        encode = numpyro.param("encode", 0.1 * BeliefNetwork.weights.T)
        further = numpyro.param("further", 0.5 * jnp.eye(20, 10))
        with numpyro.plate("points", 100):
            shallow = dist.Bernoulli(logits=(BeliefNetwork.points - 0.5) @ encode).to_event(1)
            shallow = numpyro.sample("shallow", shallow)
            deep = dist.Bernoulli(logits=(shallow - 0.5) @ further).to_event(1)
            numpyro.sample("deep", deep)


LOSSES = {
    "`TraceGraph_ELBO()`": TraceGraph_ELBO(),
    "`TraceGraph_ELBO(num_particles=2)`": TraceGraph_ELBO(num_particles=2),
    "`ELBO(RLOO(2))`": sg.numpyro.ELBO(sg.RLOO(2)),
    "`ELBO(Bronco(flips=1))`": sg.numpyro.ELBO(sg.Bronco(flips=1)),
    "`ELBO(Bronco(flips=4))`": sg.numpyro.ELBO(sg.Bronco(flips=4)),
}


def measure(problem, loss, params) -> tuple[float, float]:
    """Returns the variance of the guide's gradient, and the time of one in milliseconds."""
    call, learned = (problem.model, problem.guide), {}
    if isinstance(loss, sg.numpyro.ELBO):
        learned = loss.init(jax.random.key(0), params, *call)

    def step(learned, key):
        return loss.loss_with_mutable_state(key, {**params, **learned}, *call)["mutable_state"], ()

    if learned:
        learned, _ = jax.lax.scan(step, learned, jax.random.split(jax.random.key(1), STEPS))

    def gradient(key):
        whole = jax.grad(lambda params: loss.loss(key, {**params, **learned}, *call))(params)
        return ravel_pytree({name: whole[name] for name in problem.guide_params})[0]

    keys = jax.random.split(jax.random.key(2), DRAWS)
    draws = jax.lax.map(gradient, keys, batch_size=50)
    compiled = jax.jit(gradient).lower(keys[0]).compile()
    times = []
    for key in keys[:TIMED]:
        start = time.perf_counter()
        compiled(key).block_until_ready()
        times.append(time.perf_counter() - start)
    return float(jnp.sum(jnp.var(draws, axis=0))), 1e3 * sorted(times)[TIMED // 2]


def main():
    print("| loss | mixture: variance | ms | belief network: variance | ms |")
    print("|---|---|---|---|---|")
    trained = []
    for problem in (Mixture, BeliefNetwork):
        loss = sg.numpyro.ELBO(problem.estimator)
        svi = sg.numpyro.SVI(problem.model, problem.guide, optax.adam(0.01), loss)
        trained.append(svi.run(jax.random.key(3), STEPS, progress_bar=False).params)
    for name, loss in LOSSES.items():
        cells = []
        for problem, params in zip((Mixture, BeliefNetwork), trained, strict=True):
            if problem is Mixture and "Bronco" in name:
                cells += ["–", "–"]
                continue
            variance, milliseconds = measure(problem, loss, params)
            cells += [f"{variance:.3g}", f"{milliseconds:.2g}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
