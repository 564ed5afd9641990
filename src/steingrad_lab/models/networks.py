"""The fully connected networks of the paper's models. Inputs may have any leading axes."""

import itertools
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class Dense(eqx.Module):
    """An affine map, initialised with Glorot uniform weights and zero biases."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __init__(self, inputs: int, outputs: int, *, key: PRNGKeyArray):
        self.weight = jax.nn.initializers.glorot_uniform()(key, (inputs, outputs))
        self.bias = jnp.zeros(outputs)

    def __call__(self, x: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
        return x @ self.weight + self.bias


class MLP(eqx.Module):
    """Affine maps with LeakyReLU (slope 0.3) between them. Without hidden sizes, one affine map.

    >>> import jax, jax.numpy as jnp
    >>> mlp = MLP(784, (200, 200), 200, key=jax.random.key(0))
    >>> mlp(jnp.zeros((7, 5, 784))).shape
    (7, 5, 200)
    """

    layers: tuple[Dense, ...]

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int, *, key: PRNGKeyArray):
        sizes = (inputs, *hidden, outputs)
        keys = jax.random.split(key, len(sizes) - 1)
        pairs = zip(itertools.pairwise(sizes), keys, strict=True)
        self.layers = tuple(Dense(a, b, key=k) for (a, b), k in pairs)

    def __call__(self, x: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
        for layer in self.layers[:-1]:
            x = jax.nn.leaky_relu(layer(x), 0.3)
        return self.layers[-1](x)
