"""The free energy of a spin glass, estimated with an autoregressive network.

    python examples/gallery/free_energy.py

In Sherrington and Kirkpatrick's model N spins of ±1 have the energy H(s) = −Σ_{i<j} J_ij s_i s_j,
with normal couplings of variance 1/N. For any q, F(q) = E_q[H] + E_q[log q] / β is an upper bound
of the free energy F = −log Z / β. A network q that draws one spin after the other is trained to
lower F(q). The exact F is known, as a sum over 2^14 states. The script writes `free_energy.png`.
"""

import argparse
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

import steingrad as sg

matplotlib.use("Agg")
import matplotlib.pyplot as plt

N, BETA, EVERY = 14, 1.5, 20
ESTIMATORS = {
    "REINFORCE, 32 samples": sg.Reinforce(32),
    "RLOO, 8 samples": sg.RLOO(8),
    "RLOO, 32 samples": sg.RLOO(32),
    "Lariat without gradients, 32 samples": sg.Lariat(32, gradients=False, memory=False),
}


def couplings(seed):
    J = np.random.default_rng(seed).normal(size=(N, N)) / np.sqrt(N)
    return jnp.asarray(np.triu(J, 1), jnp.float32)


def energy(J, x):  # x: [..., N, 2], one-hot: down, up
    s = x[..., 1] - x[..., 0]
    return -jnp.sum((s @ J) * s, axis=-1)


def exact(J):
    """Returns F as a sum over all states. One spin is fixed, because H(−s) = H(s)."""
    bits = np.arange(2 ** (N - 1))[:, None] >> np.arange(N - 1) & 1
    s = 2.0 * np.concatenate([bits, np.ones((len(bits), 1))], axis=1) - 1
    H = -np.sum((s @ np.asarray(J, np.float64)) * s, axis=1)
    low = H.min()
    return low - np.log(2 * np.sum(np.exp(-BETA * (H - low)))) / BETA


class Spins(eqx.Module):
    """The weights of a network with one hidden layer, from earlier spins to the next logit."""

    first: jax.Array
    second: jax.Array

    def __init__(self, key, hidden=32):
        first, second = jax.random.split(key)
        self.first = jax.random.normal(first, (N, hidden, N + 1)) / np.sqrt(N)
        self.second = 0.1 * jax.random.normal(second, (N, hidden))


def step(spins, carry, token):
    """Returns the new carry and the logits of the next spin.

    The carry is the index of the next spin, and the earlier spins, with 0 for those not yet drawn.
    """
    t, before = carry
    before = jnp.where(jnp.arange(N) == t - 1, token[1] - token[0], before)
    hidden = jnp.tanh(spins.first[t] @ jnp.append(before, 1.0))
    logit = spins.second[t] @ hidden
    return (t + 1, before), jnp.stack([-logit, logit])


def distribution(spins):
    return sg.Autoregressive(step, spins, (jnp.int32(0), jnp.zeros(N)), length=N, vocabulary=2)


def train(estimator, J, steps, seed):
    """Returns F(q) during training, estimated from 2,000 samples each time."""
    spins_key, key = jax.random.split(jax.random.key(seed))
    spins: Any = Spins(spins_key)
    cv = estimator.init(key, distribution(spins))
    optimizer, cv_optimizer = optax.adam(3e-3), sg.cv_optimizer(estimator)

    def one(carry, key):
        spins, state, cv, cv_state = carry
        q = distribution(spins)
        # E[∇ log q] = 0, so log q inside f need not be differentiated.
        f = lambda x: energy(J, x) + jax.lax.stop_gradient(q.log_prob(x)) / BETA
        _, grads = sg.value_and_grad(f, q, estimator, cv, key=key)
        updates, state = optimizer.update(grads.parameters, state)
        if cv is not None:
            cv_updates, cv_state = cv_optimizer.update(grads.cv, cv_state, cv)
            cv = optax.apply_updates(cv, cv_updates)
        return (optax.apply_updates(spins, updates), state, cv, cv_state), None

    @jax.jit
    def some(carry, keys):
        carry, _ = jax.lax.scan(one, carry, keys[:-1])
        q = distribution(carry[0])
        x = q.sample(keys[-1], (2000,))
        return carry, jnp.mean(energy(J, x) + q.log_prob(x) / BETA)

    carry, curve = (spins, optimizer.init(spins), cv, cv_optimizer.init(cv)), []
    for keys in jax.random.split(key, (max(steps // EVERY, 1), EVERY + 1)):
        carry, now = some(carry, keys)
        curve.append(float(now))
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("free_energy.png"))
    options = parser.parse_args()
    J = couplings(0)
    free_energy = exact(J)
    table = Table(title=f"{N} spins, β = {BETA}: F = {free_energy:.4f} by summation")
    for column in ("gradient", f"F(q) − F after {options.steps} steps", "after half of them"):
        table.add_column(column)
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for name, estimator in ESTIMATORS.items():
        curve = np.asarray(train(estimator, J, options.steps, 0)) - free_energy
        table.add_row(name, f"{curve[-5:].mean():.4f}", f"{curve[len(curve) // 2]:.4f}")
        axes.plot(EVERY * np.arange(1, len(curve) + 1), curve, label=name, linewidth=0.9)
    Console().print(table)
    axes.set(xlabel="step", ylabel="F(q) − F", yscale="log")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(options.out, dpi=130)
    print(options.out)


if __name__ == "__main__":
    main()
