"""Small problems with few states, for the exact proofs."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

import steingrad as sg


def normal(seed, shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def ising_energy(parameters, x):
    field, coupling = parameters
    return field @ x + x @ coupling @ x


def ising_log_prob(parameters, x):
    """The normalised log-probability, by summing over the states {-1, 1}^d."""
    states = jnp.asarray(list(itertools.product([-1.0, 1.0], repeat=x.shape[-1])), x.dtype)
    energies = jax.vmap(lambda y: ising_energy(parameters, y))(states)
    return ising_energy(parameters, x) - jax.nn.logsumexp(energies)


def autoregressive_log_prob(parameters, x):
    """p(x) = Π σ(...), where each factor depends on the bits before it."""
    bias, weights = parameters
    logits = bias + jnp.tril(weights, -1) @ x
    return jnp.sum(x * logits - jax.nn.softplus(logits))


def potts_energy(parameters, x):
    """The energy of coordinates with values 0, 1, 2, ..., lower if neighbours are close."""
    return jnp.sum(parameters * jnp.sin(x)) - 0.4 * jnp.sum((x[1:] - x[:-1]) ** 2)


def distributions():
    """Name -> distribution, normalised or not, with 2, 3 and 5 values."""
    out = {"bernoulli": sg.Bernoulli(normal(0, 3))}
    for m, d in ((2, 3), (3, 2), (5, 2)):
        out[f"categorical{m}"] = sg.Categorical(normal(m, (d, m)))
        out[f"ordinal{m}"] = sg.Ordinal(normal(10 + m, (d, m)), np.linspace(-1, 2, m) ** 3)
    parameters = (normal(20, 3), 0.7 * normal(21, (3, 3)))
    out["ising"] = sg.FromLogProb(ising_energy, parameters, num_coordinates=3, values=(-1, 1))
    for m in (3, 5):
        out[f"potts{m}"] = sg.FromLogProb(
            potts_energy, normal(22, 2), num_coordinates=2, values=range(m)
        )
    out["subset"] = sg.Subset(1.5 * normal(23, 5), 2)
    return out


def normalised_distributions():
    """The normalised ones, small enough for tuples of three samples."""
    parameters = (normal(30, 2), 0.7 * normal(31, (2, 2)))
    everything = distributions()
    return {
        "bernoulli": sg.Bernoulli(normal(32, 2)),
        "categorical3": everything["categorical3"],
        "ordinal3": everything["ordinal3"],
        "ising": sg.FromLogProb(
            ising_log_prob, parameters, num_coordinates=2, values=(-1, 1), normalized=True
        ),
        "autoregressive": sg.FromLogProb(
            autoregressive_log_prob, parameters, num_coordinates=2, normalized=True
        ),
        "subset": sg.Subset(1.5 * normal(33, 4), 2),
    }


def objective(dist, seed=40):
    """A random smooth function with interactions: states -> values."""
    axes = tuple(range(-dist.event_ndim, 0))
    linear, mixed, phase = (normal(seed + i, dist.event_shape) for i in range(3))

    def f(x):
        sums = [jnp.sum(w * x, axis=axes) for w in (linear, mixed, phase)]
        return sums[0] + 0.5 * sums[1] ** 2 + jnp.sin(2 * sums[2]) + 1.3

    return f


def table(dist, seed):
    """A function with an independent random value at each state."""
    values = normal(seed, dist.num_states)
    return lambda x: values[dist.state_number(x)]


def metropolis(dist):
    """A transition matrix that proposes any state and leaves q invariant, for one distribution."""
    probs = dist.probabilities()
    n = probs.shape[-1]
    accept = jnp.minimum(1.0, probs[..., None, :] / probs[..., :, None]) / n
    off = accept * (1 - jnp.eye(n))
    return off + jnp.eye(n) * (1 - jnp.sum(off, axis=-1, keepdims=True))


def batched(dist, size):
    """The same distribution `size` times."""
    parameters = jax.tree.map(lambda p: jnp.broadcast_to(p, (size, *p.shape)), dist.parameters)
    if isinstance(dist, sg.FromLogProb):
        return sg.FromLogProb(
            dist.log_prob_fn,
            parameters,
            num_coordinates=dist.num_coordinates,
            values=dist.values,
            batch_shape=(size,),
            normalized=dist.normalized,
        )
    return dist.with_parameters(parameters)


def all_tuples(dist, num_samples):
    """Every tuple of samples `[K, N**K, *event]` with its probability."""
    states, probs = dist.enumerate(), dist.probabilities()
    index = np.asarray(list(itertools.product(range(len(states)), repeat=num_samples))).T
    return states[index], jnp.prod(probs[index], axis=0)


def values_and_gradients(f, x):
    fx, pull_back = jax.vjp(f, x)
    return fx, pull_back(jnp.ones_like(fx))[0]


def moments(estimator, cv, dist, f):
    """The exact mean and variance of an estimator, over all tuples of samples."""
    x, probs = all_tuples(dist, estimator.num_samples)
    fx, dfx = values_and_gradients(f, x)
    g = estimator.estimate(cv, batched(dist, len(probs)), x, fx, dfx, f=f)
    weigh = lambda leaf: jnp.tensordot(probs, leaf, axes=1)
    mean = jax.tree.map(weigh, g)
    variance = jax.tree.map(lambda leaf, mu: weigh((leaf - mu) ** 2), g, mean)
    return mean, variance


def largest_difference(a, b):
    return max(
        float(jnp.max(jnp.abs(p - q)))
        for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def random_cv(estimator, seed=0):
    """Parameters far from their initial values, α and β included."""
    cv = estimator.init(jax.random.key(seed))
    leaves, structure = jax.tree.flatten(cv)
    leaves = [0.7 * normal(seed + 50 + i, leaf.shape) + 0.1 for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, leaves)
