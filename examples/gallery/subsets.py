"""Best-subset selection: choose the features of a linear model.

    python examples/gallery/subsets.py

A vector x of bits says which features are chosen, and f(x) = ½ RSS(x) / σ² + λ · number chosen has
no gradient. Bits are drawn from independent Bernoulli distributions, whose logits are trained to
maximise E[−f]. There are two problems: scikit-learn's diabetes data, where all 1,024 subsets can be
enumerated, and 60 observations of 200 correlated features of which three matter. The results are
compared with the lasso and forward selection. The script writes `subsets.png`.
"""

import argparse
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LassoLarsIC

import steingrad as sg

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def diabetes():
    features, target = map(np.asarray, load_diabetes(return_X_y=True))
    return features / features.std(0), (target - target.mean()) / target.std(), 0.7, None


def correlated(seed=0, n=60, p=200):
    """Generates a common benchmark, in which neighbouring features have a correlation of 0.5."""
    random = np.random.default_rng(seed)
    noise = random.normal(size=(n, p))
    features = noise.copy()
    for j in range(1, p):
        features[:, j] = 0.5 * features[:, j - 1] + np.sqrt(0.75) * noise[:, j]
    truth = np.zeros(p)
    truth[[0, 1, 4]] = 3.0, 1.5, 2.0
    return features, features @ truth + random.normal(size=n), 1.0, np.flatnonzero(truth)


def objective(features, target, sigma):
    """Returns f, computed with the normal equations of the chosen columns.

    The other columns get the equation b = 0. A small ridge makes dependent columns solvable.
    """
    features, target = jnp.asarray(features, jnp.float32), jnp.asarray(target, jnp.float32)
    gram, moment, square = features.T @ features, features.T @ target, target @ target
    price = float(np.log(len(target))) / 2  # Schwarz's criterion
    identity = jnp.eye(features.shape[1])

    def f(x):  # [..., p]
        left = x[..., :, None] * gram * x[..., None, :] + (1 - x)[..., None] * identity
        b = jnp.linalg.solve(left + 1e-2 * identity, (x * moment)[..., None])[..., 0]
        rss = square - jnp.sum(b * x * moment, axis=-1)
        return -(rss / (2 * sigma**2) + price * jnp.sum(x, axis=-1))

    return f


def climb(f, p, estimator, steps, seed, rate=0.1, start=-2.0):
    """Trains logits with Adam. Returns the most likely state, and E[f] during training."""
    logits = jnp.full(p, start)
    optimizer, cv_optimizer = optax.adam(rate), sg.cv_optimizer(estimator)
    cv = estimator.init(jax.random.key(seed), sg.Bernoulli(logits))

    def step(carry, key):
        logits, state, cv, cv_state = carry
        value, grads = sg.value_and_grad(f, sg.Bernoulli(logits), estimator, cv, key=key)
        updates, state = optimizer.update(-grads.parameters, state)
        cv_updates, cv_state = cv_optimizer.update(grads.cv, cv_state, cv)
        logits = optax.apply_updates(logits, updates)
        cv = optax.apply_updates(cv, cv_updates)
        return (logits, state, cv, cv_state), value

    carry = (logits, optimizer.init(logits), cv, cv_optimizer.init(cv))
    keys = jax.random.split(jax.random.key(seed), steps)
    (logits, *_), values = jax.jit(lambda carry: jax.lax.scan(step, carry, keys))(carry)
    return np.asarray(logits > 0, np.float32), np.asarray(values)


def forward(f, p):
    """Adds the feature that helps most, as long as one helps."""
    x, best = np.zeros(p, np.float32), float(f(jnp.zeros(p)))
    while True:
        values = np.asarray(jax.jit(f)(jnp.asarray(np.maximum(x, np.eye(p, dtype=np.float32)))))
        if values.max() <= best:
            return x
        x[values.argmax()], best = 1, float(values.max())


def add_row(table, f, name, x):
    table.add_row(name, f"{float(f(jnp.asarray(x))):.2f}", str(np.flatnonzero(x).tolist()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("subsets.png"))
    options = parser.parse_args()
    estimators = {
        "RLOO, 4 samples": sg.RLOO(4),
        "DisARM, 4 samples": sg.DisARM(4),
        "Lariat with memory, 4 samples": sg.Lariat(4, gradients=False),
    }
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for axes, problem in zip(panels, (diabetes, correlated), strict=True):
        features, target, sigma, truth = problem()
        p, f = features.shape[1], objective(features, target, sigma)
        table = Table(title=f"{problem.__name__}: {len(target)} observations, {p} features")
        for column in ("method", "f (higher is better)", "features chosen"):
            table.add_column(column)
        add = partial(add_row, table, f)
        if truth is not None:
            add("the truth", np.isin(np.arange(p), truth).astype(np.float32))
        else:
            states = sg.Bernoulli(jnp.zeros(p)).enumerate()
            add("best of all subsets", np.asarray(states[jnp.argmax(jax.jit(f)(states))]))
        add("forward selection", forward(f, p))
        coefficients = LassoLarsIC("bic", noise_variance=sigma**2).fit(features, target).coef_
        add("lasso (BIC)", (coefficients != 0).astype(np.float32))
        for name, estimator in estimators.items():
            curves = []
            for seed in range(options.seeds):
                x, values = climb(f, p, estimator, options.steps, seed)
                curves.append(values)
                add(f"{name}, seed {seed}", x)
            axes.plot(np.mean(curves, axis=0), label=name, linewidth=0.8)
        Console().print(table)
        axes.set(title=problem.__name__, xlabel="step", ylabel="mean of f over the samples")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(options.out, dpi=130)
    print(options.out)


if __name__ == "__main__":
    main()
