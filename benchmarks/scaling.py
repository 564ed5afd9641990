"""How time and memory of a training step grow with the batch and the number of bits.

    python benchmarks/scaling.py

The model is the paper's VAE on random images. Each estimator is compared with RLOO with the same
number of evaluations, which is two. Memory is that of the temporaries of one step.
"""

import argparse
from functools import partial
from typing import Any

import numpy as np
from steps import training
from timing import race, save, show, summarise

from steingrad_lab.data import Dataset
from steingrad_lab.training import Config

ESTIMATORS = ("rloo", "lariat", "bronco", "rodeo")
BATCHES = (100, 1_000, 10_000)
BITS = (200, 1_000, 10_000)
ROUNDS = 5


def contestant(config: Config, dataset: Dataset):
    """Returns a function that runs one training step, and the bytes of its temporaries."""
    program, arguments = training(config, 1, dataset)
    compiled = program.compile()
    memory: Any = compiled.memory_analysis()
    return partial(compiled, *arguments), memory.temp_size_in_bytes


def growth(title: str, setting: str, sizes: tuple[int, ...], build: Any) -> dict[str, Any]:
    images = np.random.default_rng(0).integers(0, 256, (max(BATCHES), 784), dtype=np.uint8)
    dataset = Dataset("mnist", (28, 28), images, images[:100], images[:100], {})
    out: dict[str, Any] = {}
    for size in sizes:
        built = {}
        for name in ESTIMATORS:
            config = Config(estimator=name, samples=2, dataset="mnist", **build(size))
            built[name] = contestant(config, dataset)
        result = summarise(race({n: call for n, (call, _) in built.items()}, ROUNDS), "rloo")
        for name, (_, memory) in built.items():
            result[name]["temporaries_mb"] = memory / 1e6
        notes = {name: f"{result[name]['temporaries_mb']:.0f} MB" for name in built}
        show(f"{title}, {setting} {size:,}: ratio to RLOO, and temporaries", result, notes)
        out[str(size)] = result
    return out


def main() -> None:
    save("scaling", {
        "batch": growth("Training step", "batch", BATCHES, lambda n: {"batch_size": n}),
        "bits": growth("Training step", "bits", BITS, lambda n: {"layer_sizes": (n,)}),
    })  # fmt: skip


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # only --help
    main()
