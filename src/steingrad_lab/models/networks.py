"""The fully connected networks of the paper's models. Inputs may have any leading axes."""

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

Initialization = Literal["glorot", "pytorch"]
Activation = Literal["leaky_relu", "relu"]


class Dense(eqx.Module):
    """An affine map.

    The initialisation is "glorot" (Glorot uniform weights, and biases of zero) or "pytorch" (the
    default of PyTorch: weights and biases are uniform between ±1/√inputs).
    """

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __init__(
        self,
        inputs: int,
        outputs: int,
        initialization: Initialization = "glorot",
        *,
        key: PRNGKeyArray,
    ):
        if initialization == "glorot":
            self.weight = jax.nn.initializers.glorot_uniform()(key, (inputs, outputs))
            self.bias = jnp.zeros(outputs)
        else:
            weight_key, bias_key = jax.random.split(key)
            most = 1 / math.sqrt(inputs)
            uniform = lambda key, shape: jax.random.uniform(key, shape, minval=-most, maxval=most)
            self.weight = uniform(weight_key, (inputs, outputs))
            self.bias = uniform(bias_key, (outputs,))

    def __call__(self, x: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
        return x @ self.weight + self.bias


class MLP(eqx.Module):
    """Affine maps with LeakyReLU (slope 0.3) or ReLU between them. Without hidden sizes, one affine
    map.

    >>> import jax, jax.numpy as jnp
    >>> mlp = MLP(784, (200, 200), 200, key=jax.random.key(0))
    >>> mlp(jnp.zeros((7, 5, 784))).shape
    (7, 5, 200)
    """

    layers: tuple[Dense, ...]
    activation: Activation = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        activation: Activation = "leaky_relu",
        initialization: Initialization = "glorot",
        *,
        key: PRNGKeyArray,
    ):
        self.activation = activation
        sizes = (inputs, *hidden, outputs)
        keys = jax.random.split(key, len(sizes) - 1)
        pairs = zip(itertools.pairwise(sizes), keys, strict=True)
        self.layers = tuple(Dense(a, b, initialization, key=k) for (a, b), k in pairs)

    def __call__(self, x: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
        for layer in self.layers[:-1]:
            x = layer(x)
            x = jax.nn.relu(x) if self.activation == "relu" else jax.nn.leaky_relu(x, 0.3)
        return self.layers[-1](x)
