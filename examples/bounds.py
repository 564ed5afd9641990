"""Train a VAE of 200 bits with an importance-weighted bound, with several estimators.

    python examples/bounds.py --samples 5 50 --steps 20000 --out runs/bounds.json

Images are binarised MNIST, drawn anew at each visit, and the VAE is that of the paper. All
estimators start from the same weights and see the same images. `evaluations` is the number of
evaluations of log w for one image in a step. Each line has the mean bound over the steps since the
line before, and the bound with 100 samples on up to 1,000 validation images. `seconds` is the time
of training, with compilation. A line also appears in the file `--out`, as JSON.
"""

import argparse
import json
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import steingrad as sg
from steingrad_lab.data import binarize, load
from steingrad_lab.models import BernoulliLikelihood, mlp_vae


def estimators(count: int) -> dict[str, tuple]:
    """Returns estimators for a bound of `count` samples: estimator, K, and evaluations."""
    return {
        "VIMCO": (sg.VIMCO(count), None, count),
        "VIMCO, arithmetic": (sg.VIMCO(count, mean="arithmetic"), None, count),
        "OVIS, 1 auxiliary": (sg.OVIS(count), None, count + 1),
        "OVIS, 10 auxiliary": (sg.OVIS(count, 10), None, count + 10),
        "OVIS, gamma 0": (sg.OVIS(count, 0), None, count),
        "OVIS, gamma 1 (biased)": (sg.OVIS(count, 0, 1.0), None, count),
        "local DisARM": (sg.LocalDisARM(count), None, 2 * count),
        "local DisARM, symmetric": (sg.LocalDisARM(count, symmetric=True), None, 2 * count),
        "RLOO, 2 groups": (sg.RLOO(2), count, 2 * count),
        "straight-through (biased)": (sg.StraightThrough(), count, count),
        "ReinMax (biased)": (sg.ReinMax(), count, count),
    }


def log_weights(model, q, images):
    """log w as a function of the states."""
    return lambda x: model.log_likelihood(0, images, x) + model.log_prior(x) - q.log_prob(x)


def train(name, choice, data, arguments, seed, report):
    estimator, count, evaluations = choice
    key, model_key = jax.random.split(jax.random.key(seed))
    sizes = (arguments.bits,), arguments.hidden
    likelihood = BernoulliLikelihood()
    model = mlp_vae(data.train.shape[1], *sizes, likelihood, key=model_key)
    optimizer = optax.adam(arguments.learning_rate)
    weights, rest = eqx.partition(model, eqx.is_inexact_array)
    state = optimizer.init(weights)
    train_images, valid_images = jnp.asarray(data.train), jnp.asarray(data.valid[:1000])

    def loss(weights, images, key):
        model = eqx.combine(weights, rest)
        q = model.encode(0, images)
        log_w = log_weights(model, q, images)
        return -sg.multi_sample_bound(log_w, q, estimator, key=key, num_samples=count)

    @jax.jit
    def steps(weights, state, keys, train_images):
        def step(carry, key):
            weights, state = carry
            choose, pixels, own = jax.random.split(key, 3)
            rows = jax.random.choice(choose, len(train_images), (arguments.batch_size,))
            images = binarize(pixels, train_images[rows])
            value, grads = jax.value_and_grad(loss)(weights, images, own)
            updates, state = optimizer.update(grads, state)
            return (optax.apply_updates(weights, updates), state), -value

        (weights, state), bounds = jax.lax.scan(step, (weights, state), keys)
        return weights, state, jnp.mean(bounds)

    @jax.jit
    def evaluate(weights, key, valid_images):
        model = eqx.combine(weights, rest)
        pixels, own = jax.random.split(key)
        images = binarize(pixels, valid_images)
        q = model.encode(0, images)
        log_w = log_weights(model, q, images)(q.sample(own, (100,)))
        return jax.nn.logsumexp(log_w, axis=0) - np.log(100)

    done, seconds = 0, 0.0
    while done < arguments.steps:
        now = min(arguments.every, arguments.steps - done)
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(done, done + now))
        start = time.perf_counter()
        weights, state, bound = jax.block_until_ready(steps(weights, state, keys, train_images))
        seconds, done = seconds + time.perf_counter() - start, done + now
        blocks = range(0, len(valid_images), 100)  # 100 samples of more images need much memory
        own_keys = jax.random.split(jax.random.key(0), len(blocks))
        valid = jnp.concatenate(
            [
                evaluate(weights, k, valid_images[b : b + 100])
                for b, k in zip(blocks, own_keys, strict=True)
            ]
        ).mean()
        line = {
            "estimator": name, "seed": seed, "step": done, "evaluations": evaluations,
            "train_bound": float(bound), "valid_bound_100": float(valid), "seconds": seconds,
        }  # fmt: skip
        report(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, nargs="+", default=[5, 50], help="K of the bound")
    parser.add_argument("--only", nargs="+", help="names of estimators; default: all")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=1_000, help="steps between lines")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--data-dir")
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--bits", type=int, default=200)
    parser.add_argument("--hidden", type=int, nargs="*", default=[200, 200])
    parser.add_argument("--out", type=Path, help="a file of JSON lines")
    arguments = parser.parse_args()
    data = load(arguments.dataset, arguments.data_dir)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)

    for count in arguments.samples:
        for name, choice in estimators(count).items():
            if arguments.only and name not in arguments.only:
                continue
            for seed in arguments.seeds:

                def report(line, count=count):
                    line = {"samples": count, **line}
                    print(*(f"{key}={value}" for key, value in line.items()), flush=True)
                    if arguments.out:
                        with arguments.out.open("a") as file:
                            file.write(json.dumps(line) + "\n")

                train(name, choice, data, arguments, seed, report)


if __name__ == "__main__":
    main()
