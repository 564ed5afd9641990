"""UnorderedSet: samples without replacement, with weights that keep the estimate unbiased."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..arrays import as_index, compute_dtype, log_softmax
from ..distributions.base import Distribution
from ..draws import gumbel
from .base import Estimator

MOST = 12  # samples, because the estimate sums over all their subsets
# This number stands for the log 0 of what is left out of a sum. It is far below the logarithms of
# all probabilities. It is finite, because `jax_debug_infs` does not allow −∞.
LEFT_OUT = -1e30


class UnorderedSet(Estimator):
    r"""$g = \sum_{s \in S} w_s \, (f(s) - b_s) \, \nabla_\eta \log q(s)$ with $w_s = q(s)
    \frac{P(S \setminus s \mid s)}{P(S)}$ and $b_s = q(s) f(s) + \sum_{s' \in S \setminus s} q(s')
    \frac{P(S \setminus \{s, s'\} \mid s, s')}{P(S \setminus s \mid s)} f(s')$.

    $S$ are $K$ *different* states, drawn without replacement (as the $K$ largest of $\log q$ plus
    Gumbel noise). $P(S)$ is the probability of drawing this set in any order, and $P(T \mid A)$ the
    probability of drawing $T$ next, after $A$. The order of the draws is summed out exactly: with
    $A = S \setminus T$, $P(T \mid A) = \sum_{s \in T} \frac{q(s)}{1 - q(A)} P(T \setminus s \mid A
    \cup s)$ runs over the $2^K$ subsets of $S$. No state is evaluated twice, so with as many
    samples as there are states the gradient is exact.

    It takes any distribution with few enough states to enumerate at each draw, such as a single
    category, and at most 12 samples. The value is $\sum_s w_s f(s)$, which is unbiased too, and
    further arguments of $f$ are differentiated with the same weights. `num_samples` is $K$.

    Reference: Kool, van Hoof, Welling, "Estimating Gradients for Discrete Random Variables by
    Sampling without Replacement", ICLR 2020.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> q = sg.Categorical(jnp.array([[0.5, 0.0, -1.0, 2.0]]))
    >>> f = lambda x: jnp.sum(x * jnp.array([1.0, 4.0, 2.0, 3.0]), axis=(-2, -1))
    >>> value, grads = UnorderedSet(num_samples=4).value_and_grad(f, q, key=jax.random.key(0))
    >>> bool(jnp.allclose(grads.parameters, sg.exact_gradient(f, q), atol=1e-6))
    True
    """

    num_samples: int = eqx.field(static=True, converter=as_index, default=4)
    weighs_samples: ClassVar = True
    fewest: ClassVar = (2, "because the other samples are each sample's baseline")

    def __check_init__(self):
        if self.num_samples > MOST:
            raise ValueError(
                "UnorderedSet sums over all 2^K subsets of its samples, so it takes at most "
                f"{MOST} of them, but was given {self.num_samples}."
            )

    def draw(self, key, dist):
        if dist.num_states < self.num_samples:
            raise ValueError(
                f"UnorderedSet draws different states, {self.num_samples} of them, but this "
                f"{type(dist).__name__} has {dist.num_states} only. Use at most that many, which "
                "give the exact gradient."
            )
        log_probs = log_probabilities(dist)
        noise = gumbel(key, log_probs.shape, log_probs.dtype)
        _, number = jax.lax.top_k(log_probs + noise, self.num_samples)
        return dist.enumerate()[jnp.moveaxis(number, -1, 0)]

    def weights(self, dist, x):
        return jnp.exp(self._ratios(dist, x)[0])

    def gradient(self, cv, dist, at):
        log_weights, log_others = self._ratios(dist, at.x)
        # States with probability zero contribute nothing, even if f is infinite there.
        fx = jnp.where(jnp.exp(log_weights) == 0, 0, at.fx)
        baseline = jnp.sum(jnp.exp(log_others) * fx, axis=1)
        return dist.weighted_score(jnp.exp(log_weights) * (fx - baseline), at.x)

    def _ratios(self, dist, x):
        r"""$\log w_s$, of shape `[K, *batch]`, and the logarithms of the factors of $f(s')$ in
        $b_s$, of shape `[K, K, *batch]`."""
        log_all = log_probabilities(dist)
        number = jnp.moveaxis(dist.state_number(x), 0, -1)
        log_probs = jnp.take_along_axis(log_all, number, axis=-1)
        drawn = jnp.any(
            number[..., None] == jnp.arange(dist.num_states, dtype=number.dtype), axis=-2
        )
        log_rest = jax.nn.logsumexp(jnp.where(drawn, LEFT_OUT, log_all), axis=-1)
        log_sets = log_set_probabilities(log_probs, log_rest)
        count = self.num_samples
        whole, bit = 2**count - 1, 1 << np.arange(count)
        without = log_sets[..., whole ^ bit]
        log_weights = log_probs + without - log_sets[..., whole, None]
        pairs = log_sets[..., whole ^ bit[:, None] ^ bit] - without[..., None]
        own = np.eye(count, dtype=bool)
        log_others = log_probs[..., None, :] + jnp.where(own, 0.0, pairs)
        return jnp.moveaxis(log_weights, -1, 0), jnp.moveaxis(log_others, (-2, -1), (0, 1))


def log_probabilities(dist: Distribution) -> Float[Array, "... states"]:
    """The normalised log q of every state, of shape `[*batch, states]`. All entries are finite."""
    log_probs = jnp.moveaxis(dist.log_prob(dist.enumerate_batch()), 0, -1)
    log_probs = log_softmax(log_probs.astype(compute_dtype(log_probs)))
    # The exponential of `never` is 0 too, and a difference of two of them is not NaN.
    never = 2 * float(np.log(jnp.finfo(log_probs.dtype).tiny))
    return jnp.maximum(log_probs, never)


@jax.jit
def log_set_probabilities(
    log_probs: Float[Array, "... K"], log_rest: Float[Array, "..."]
) -> Float[Array, "... subsets"]:
    r"""$\log P(T \mid S \setminus T)$ for every $T \subseteq S$, given by the bits of its index.

    `log_rest` is the log-probability of all states outside $S$. It makes $1 - q(S \setminus T)$ a
    sum; a difference would lose precision if $S$ has nearly all of the probability.
    """
    count = log_probs.shape[-1]
    numbers = np.arange(2**count)
    inside = (numbers[:, None] >> np.arange(count) & 1).astype(bool)  # [2^K, K]
    without = np.where(inside, numbers[:, None] ^ (1 << np.arange(count)), 0)
    of_set = jnp.where(inside, log_probs[..., None, :], LEFT_OUT)
    rest = jnp.broadcast_to(log_rest[..., None, None], (*of_set.shape[:-1], 1))
    log_mass = jax.nn.logsumexp(jnp.concatenate([of_set, rest], axis=-1), axis=-1)
    empty = numbers == 0

    def sweep(_, log_sets):
        """After n sweeps the results for sets of up to n states are right."""
        last = jax.nn.logsumexp(of_set + log_sets[..., without], axis=-1)
        return jnp.where(empty, 0.0, last - jnp.where(empty, 0.0, log_mass))

    start = jnp.broadcast_to(jnp.where(empty, 0.0, LEFT_OUT), log_mass.shape)
    return jax.lax.fori_loop(0, count, sweep, start.astype(log_mass.dtype))
