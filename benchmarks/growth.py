"""How time and memory of an estimate grow with coordinates, samples, flips, terms and hidden units.

python benchmarks/growth.py
python benchmarks/growth.py --values      only 64 codes of up to 512 values
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
from timing import race, save, show, summarise

import steingrad as sg

BATCH = 20


def contestant(shape: int | tuple[int, int], estimator: sg.Estimator):
    """Returns an estimate, with the gradient of its control variates, and its memory.

    `shape` is a number of bits, or numbers of codes and of their values. The objective f is so
    cheap that only the estimator's own cost is measured.
    """
    bits = isinstance(shape, int)
    logits = jax.random.normal(jax.random.key(0), (BATCH, shape) if bits else (BATCH, *shape))
    dist = sg.Bernoulli(logits) if bits else sg.Categorical(logits)
    cv = estimator.init(jax.random.key(2), dist)
    f = lambda x: jnp.sum(jnp.sin(x), axis=-1 if bits else (-2, -1))
    estimate = lambda key: estimator.per_element(f, dist, cv, key=key)
    compiled = jax.jit(estimate).lower(jax.random.key(1)).compile()
    memory: Any = compiled.memory_analysis()
    return lambda: compiled(jax.random.key(1)), memory.temp_size_in_bytes


def growth(title: str, settings: dict[Any, tuple[Any, sg.Estimator]], unit: str) -> dict:
    built = {f"{unit}={n}": contestant(*setting) for n, setting in settings.items()}
    first = next(iter(built))
    result = summarise(race({name: call for name, (call, _) in built.items()}), first)
    smallest = next(iter(settings))
    numbers = not isinstance(smallest, str)
    notes = {f"{unit}={n}": f"linear: {n / smallest:g}" for n in settings} if numbers else {}
    show(f"{title}: ratio to {first}", result, notes)
    for name, (_, memory) in built.items():
        result[name]["temporaries_mb"] = memory / 1e6
    print("Temporaries, MB:", {k: round(v["temporaries_mb"], 1) for k, v in result.items()})
    return result


def many_values() -> None:
    """Codes of up to 512 values, which have too many pairs for numbers of their own."""
    codes, sizes = 64, (8, 64, 512)
    rivals = {
        "RLOO(2)": sg.RLOO(2),
        "CARMS(2)": sg.CARMS(2),
        "Bronco(flips=1)": sg.Bronco(flips=1),
        "Bronco()": sg.Bronco(),
    }
    largest = (codes, sizes[-1])
    save("growth-values", {
        "bronco, values": growth(
            f"Bronco, {codes} codes, by values", {m: ((codes, m), sg.Bronco()) for m in sizes},
            "values"),
        "estimators": growth(
            f"{codes} codes of {sizes[-1]} values", {n: (largest, e) for n, e in rivals.items()},
            "estimator"),
    })  # fmt: skip


def main() -> None:
    sizes = (200, 800, 3200)
    pooled = sg.PooledSurrogate()
    terms = {
        "values": sg.Lariat(gradients=False, memory=False),
        "values and gradients": sg.Lariat(),
        "weighted": sg.Lariat(weighted=True),
        "weighted and memory": sg.Lariat(weighted=True, memory=True),
        "Stein": sg.Lariat(surrogate=sg.MLPSurrogate()),
    }
    save("growth", {
        "coordinates": growth("RODEO by d", {d: (d, sg.Rodeo()) for d in sizes}, "d"),
        "samples, pooled": growth(
            "RODEO by K, pooled surrogate",
            {k: (200, sg.Rodeo(k, surrogate=pooled)) for k in (2, 4, 8)}, "K"),
        "samples": growth(
            "RODEO by K, paper's surrogate", {k: (200, sg.Rodeo(k)) for k in (2, 4, 8)}, "K"),
        "hidden": growth(
            "RODEO by hidden units",
            {h: (200, sg.Rodeo(surrogate=sg.MLPSurrogate(hidden=h))) for h in (8, 16, 32, 100)},
            "hidden"),
        "lariat, coordinates": growth("Lariat by d", {d: (d, sg.Lariat()) for d in sizes}, "d"),
        "lariat, samples": growth(
            "Lariat by K", {k: (200, sg.Lariat(k)) for k in (2, 4, 8, 16, 64)}, "K"),
        "lariat, terms": growth(
            "Lariat by terms", {name: (200, e) for name, e in terms.items()}, "terms"),
        "bronco, coordinates": growth(
            "Bronco by d", {d: (d, sg.Bronco(flips=1)) for d in (*sizes, 10_000)}, "d"),
        "bronco, samples": growth(
            "Bronco by K", {k: (200, sg.Bronco(k, flips=1)) for k in (1, 2, 4, 8)}, "K"),
        "bronco, flips": growth(
            "Bronco by flips", {n: (200, sg.Bronco(flips=n)) for n in (1, 2, 4, 8)}, "flips"),
    })  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--values", action="store_true", help="only codes of many values")
    many_values() if parser.parse_args().values else main()
