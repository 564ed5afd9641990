"""Time a whole training step: data, networks, estimator, Adam, control variates and variance.

    python benchmarks/steps.py single hierarchical categorical resnet upsampling

The data are random images of MNIST's size, because the time does not depend on their content.
"""

import argparse
import time
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from timing import race, save, show, summarise

from steingrad_lab.data import Dataset
from steingrad_lab.models import BernoulliLikelihood, mlp_vae
from steingrad_lab.models.resnet import UpConv
from steingrad_lab.paper.grid import Entry, find
from steingrad_lab.paper.reinmax import REINMAX
from steingrad_lab.paper.settings import configure
from steingrad_lab.training import Config, Task

STEPS = 20


def fake_dataset() -> Dataset:
    images = np.random.default_rng(0).integers(0, 256, (5000, 784), dtype=np.uint8)
    return Dataset("mnist", (28, 28), images, images[:100], images[:100], {})


def contestant(config: Config, steps: int = STEPS, dataset: Dataset | None = None):
    """Returns a function that runs `steps` training steps, and its compilation time in seconds."""
    program, arguments = training(config, steps, dataset or fake_dataset())
    start = time.perf_counter()
    compiled = program.compile()
    return partial(compiled, *arguments), time.perf_counter() - start


def training(config: Config, steps: int, dataset: Dataset):
    """Returns a program of this many steps, to be compiled, and its arguments."""
    task = Task.of(config, dataset)
    trainer = task.trainer._replace(max_steps=steps)
    images = jnp.asarray(task.dataset.train)
    number = lambda n: jnp.asarray(n, jnp.int32)
    arguments = (task.initial_state(), number(1), images, number(0), number(steps))
    return jax.jit(trainer.run).lower(*arguments), arguments


def bare_contestant(samples: int, steps: int = STEPS):
    """RLOO by hand: only sampling, forward and backward pass, and Adam in one loop."""
    model = mlp_vae(784, (200,), (200, 200), BernoulliLikelihood(), key=jax.random.key(0))
    params, rest = eqx.partition(model, eqx.is_inexact_array)
    optimizer = optax.adam(1e-3)
    images = jnp.asarray(fake_dataset().train)

    def loss(params, y, key):
        model = eqx.combine(params, rest)
        logits = model.encoders[0](y)
        theta = jax.nn.sigmoid(logits)
        x = (jax.random.uniform(key, (samples, *logits.shape)) < theta).astype(jnp.float32)
        x = jax.lax.stop_gradient(x)
        log_q = jnp.sum(x * logits - jax.nn.softplus(logits), axis=-1)
        outputs = model.decoders[0](x)
        log_p = jnp.sum(y * outputs - jax.nn.softplus(outputs), axis=-1)
        f = jax.lax.stop_gradient(log_p - log_q)
        advantage = f - (jnp.sum(f, axis=0) - f) / (samples - 1)
        return -jnp.mean(log_p + advantage * log_q)

    def step(i, carry):
        params, state = carry
        batch_key, x_key = jax.random.split(jax.random.fold_in(jax.random.key(1), i))
        batch = jax.lax.dynamic_slice_in_dim(images, i * 100 % 5000, 100)
        y = jax.random.bernoulli(batch_key, batch.astype(jnp.float32) / 255).astype(jnp.float32)
        updates, state = optimizer.update(jax.grad(loss)(params, y, x_key), state)
        return optax.apply_updates(params, updates), state

    run = jax.jit(lambda carry: jax.lax.fori_loop(0, steps, step, carry))
    carry = (params, optimizer.init(params))
    return lambda: run(carry)


def per_step(seconds: dict[str, list[float]], steps: int = STEPS) -> dict[str, list[float]]:
    return {name: [s / steps for s in times] for name, times in seconds.items()}


def published(experiment: str, config: Config, reference: Config) -> str:
    """Returns the paper's ratio of two times."""
    table = find(experiment)
    ours, theirs = (table.published(Entry("", c), "ms_per_step") for c in (config, reference))
    assert ours is not None
    assert theirs is not None
    return f"published {ours.mean / theirs.mean:.2f}"


def single() -> None:
    """Times models with one stochastic layer, with two and three evaluations of f."""
    for samples, names in (
        (2, ("rloo", "double_cv", "disarm", "rodeo", "lariat", "bronco")),
        (3, ("rloo", "double_cv", "arms", "rodeo", "relax", "lariat", "bronco")),
    ):
        contestants, compilation = {"bare RLOO": bare_contestant(samples)}, {}
        configs = {name: Config(estimator=name, samples=samples, dataset="mnist") for name in names}
        if samples == 2:
            configs["bronco, two flips"] = Config(
                estimator="bronco", samples=3, flips=2, dataset="mnist"
            )
        for name, config in configs.items():
            contestants[name], compilation[name] = contestant(config)
        result = summarise(per_step(race(contestants)), "rloo")
        targets = {"rodeo": f"≤ {1.4 if samples == 2 else 1.8}", "relax": "≤ 3.5",
                   "double_cv": "≤ 1.1", "disarm": "≤ 1.1", "arms": "≤ 1.1",
                   "bare RLOO": "≥ 0.87", "lariat": "≤ 1.15", "bronco": "≤ 1.1",
                   "bronco, two flips": "≤ 1.15"}  # fmt: skip
        show(f"Training step, {samples} evaluations: ratio to RLOO", result, targets)
        print("Compilation, s:", {k: round(v, 1) for k, v in compilation.items()})
        save(f"steps-k{samples}", {"steps": result, "compilation_seconds": compilation})


def hierarchical() -> None:
    """Times models with two to four stochastic layers and affine maps, K = 2."""
    everything = {}
    for layers in (2, 3, 4):
        config = partial(configure, dataset="mnist", layers=layers)
        build = lambda config=config, **settings: contestant(config(**settings))[0]
        contestants = {
            **{
                name: build(estimator=name)
                for name in ("disarm", "double_cv", "rodeo", "lariat", "bronco")
            },
            "rodeo, 50 of 200 coordinates": build(coordinates=50),
            "rodeo, adapt every 4": build(adapt_every=4),
            "rodeo, both": build(coordinates=50, adapt_every=4),
        }
        result = summarise(per_step(race(contestants)), "disarm")
        notes = {
            name: published("timing", config(estimator=name), config(estimator="disarm"))
            for name in ("double_cv", "rodeo")
        } | {"lariat": "≤ 1.3"}
        show(f"{layers} stochastic layers, K = 2: ratio to DisARM", result, notes)
        everything[f"layers-{layers}"] = result
    save("steps-hierarchical", everything)


def categorical() -> None:
    """Times ReinMax's six VAEs of categories."""
    everything = {}
    for categories, codes in REINMAX:
        config = partial(
            configure,
            preset="reinmax",
            dataset="mnist",
            model="categorical",
            categories=categories,
            codes=codes,
            seeds=(1,),
        )
        build = lambda config=config, **settings: contestant(config(**settings))[0]
        names = ("reinmax", "gumbel_softmax", "rloo", "carms")
        contestants = {name: build(estimator=name) for name in names}
        for flips in (1, 2, 4, 8):
            contestants[f"bronco, flips={flips}"] = build(estimator="bronco", flips=flips)
        result = summarise(per_step(race(contestants, rounds=7)), "reinmax")
        show(f"{codes} codes of {categories} values: ratio to ReinMax", result, {})
        everything[f"{categories}x{codes}"] = result
        save("steps-categorical", everything)


def resnet() -> None:
    """Times the ResNet VAE, K = 2."""
    configs = {
        name: Config(estimator=name, dataset="mnist", network="resnet")
        for name in ("rloo", "rodeo")
    }
    contestants = {name: contestant(config, 1)[0] for name, config in configs.items()}
    result = summarise(race(contestants, rounds=7), "rloo")
    note = published("resnet", configs["rodeo"], configs["rloo"])
    show("ResNet VAE, K = 2: ratio to RLOO", result, {"rodeo": note})
    save("steps-resnet", {"steps": result})


def upsampling() -> None:
    """Compares the ResNet decoder's upsampling with a transposed convolution, with gradients."""
    layer = UpConv(64, 32, 3, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (200, 7, 7, 64))
    transposed = lambda w, x: jax.lax.conv_transpose(
        x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    ours = lambda w, x: eqx.tree_at(lambda m: m.weight, layer, w)(x)

    def contest(f):
        both = jax.jit(jax.value_and_grad(lambda w, x: jnp.sum(jnp.sin(f(w, x))), (0, 1)))
        return partial(both, layer.weight, x)

    contestants = {"transposed": contest(transposed), "UpConv": contest(ours)}
    result = summarise(race(contestants), "transposed")
    show("Upsampling 7 × 7 × 64 to 14 × 14 × 32: ratio to a transposed convolution", result, {})
    save("upsampling", {"steps": result})


def main() -> None:
    parts = {
        "single": single,
        "hierarchical": hierarchical,
        "categorical": categorical,
        "resnet": resnet,
        "upsampling": upsampling,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    # The default is no list, because argparse would look for the list among the choices.
    parser.add_argument("parts", nargs="*", default="all", choices=[*parts, "all"])
    asked = parser.parse_args().parts
    for part in parts if "all" in asked else asked:
        parts[part]()


if __name__ == "__main__":
    main()
