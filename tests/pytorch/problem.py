"""A small problem in both frameworks, with the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import torch

import steingrad as sg
import steingrad.torch as sgt

BATCH = 3
JAX_KINDS = {
    "bernoulli": sg.Bernoulli,
    "categorical": sg.Categorical,
    "subset": lambda l: sg.Subset(l, 2),
}
EVENTS = {"bernoulli": (5,), "categorical": (4, 3), "subset": (5,)}


def numbers(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def logits(kind, dtype=torch.float64, batch=(BATCH,)):
    values = numbers(0, *batch, *EVENTS[kind])
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def law(kind, logits):
    if kind == "bernoulli":
        return torch.distributions.Bernoulli(logits=logits, validate_args=False)
    if kind == "subset":
        return sgt.Subset(logits, 2)
    return torch.distributions.OneHotCategorical(logits=logits, validate_args=False)


def objectives(kind):
    """The same f(x, w) twice: for tensors and for arrays."""
    axes = tuple(range(-len(EVENTS[kind]), 0))
    linear, mixed = numbers(1, *EVENTS[kind]), numbers(2, *EVENTS[kind])

    def in_torch(x, w):
        a, b = (x.new_tensor(v) for v in (linear, mixed))
        return (a * x).sum(axes) + 0.5 * (w * (b * x).sum(axes)) ** 2 + 1.3

    def in_jax(x, w):
        a, b = (jnp.asarray(v, x.dtype) for v in (linear, mixed))
        return jnp.sum(a * x, axes) + 0.5 * (w * jnp.sum(b * x, axes)) ** 2 + 1.3

    return in_torch, in_jax


def exact_gradient(kind, logits, w=1.0):
    with jax.enable_x64(True):
        dist = JAX_KINDS[kind](jnp.asarray(logits.detach().double().numpy()))
        f = objectives(kind)[1]
        return np.asarray(sg.exact_gradient(lambda x: f(x, w), dist))
