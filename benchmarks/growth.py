"""How one RODEO estimate grows with coordinates, samples and hidden units, in time and memory.

python benchmarks/growth.py
"""

from typing import Any

import jax
import jax.numpy as jnp
from timing import race, save, show, summarise

import steingrad as sg

BATCH = 20


def contestant(d: int, samples: int, surrogate: sg.MLPSurrogate):
    """A call of `adapt` (estimate and the gradient for its control variates), and its memory."""
    estimator = sg.Rodeo(samples, surrogate=surrogate)
    dist = sg.Bernoulli(jax.random.normal(jax.random.key(0), (BATCH, d)))
    x = estimator.sample(jax.random.key(1), dist)
    fx, dfx = jnp.sum(jnp.sin(x), axis=-1), jnp.cos(x)
    arguments = (estimator.init(jax.random.key(2)), dist, x, fx, dfx)
    compiled = jax.jit(estimator.adapt).lower(*arguments).compile()
    memory: Any = compiled.memory_analysis()
    return lambda: compiled(*arguments), memory.temp_size_in_bytes


def growth(title: str, settings: dict[int, tuple], unit: str) -> dict:
    built = {f"{unit}={n}": contestant(*setting) for n, setting in settings.items()}
    first = next(iter(built))
    result = summarise(race({name: call for name, (call, _) in built.items()}), first)
    smallest = next(iter(settings))
    notes = {f"{unit}={n}": f"linear: {n / smallest:g}" for n in settings}
    show(f"{title}: ratio to {first}", result, notes)
    for name, (_, memory) in built.items():
        result[name]["temporaries_mb"] = memory / 1e6
    print("Temporaries, MB:", {k: round(v["temporaries_mb"], 1) for k, v in result.items()})
    return result


def main() -> None:
    paper = sg.MLPSurrogate()
    save("growth", {
        "coordinates": growth(
            "One estimate by d", {d: (d, 2, paper) for d in (200, 800, 3200)}, "d"),
        "samples, pooled": growth(
            "One estimate by K, pooled surrogate",
            {k: (200, k, sg.PooledSurrogate()) for k in (2, 4, 8)}, "K"),
        "samples": growth(
            "One estimate by K, paper's surrogate", {k: (200, k, paper) for k in (2, 4, 8)}, "K"),
        "hidden": growth(
            "One estimate by hidden units",
            {h: (200, 2, sg.MLPSurrogate(hidden=h)) for h in (8, 16, 32, 100)}, "hidden"),
    })  # fmt: skip


if __name__ == "__main__":
    main()
