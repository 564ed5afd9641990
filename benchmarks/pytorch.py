"""Time the training step of the paper's VAE in PyTorch, by hand and with `steingrad.torch`.

    pip install -e '.[torch,experiments]' && python benchmarks/pytorch.py

The step in JAX is timed in the same process. All of them use all cores.
"""

import argparse
import itertools
from typing import Any

import numpy as np
import torch
from steps import contestant, fake_dataset, per_step
from timing import race, save, show, summarise
from torch import nn

import steingrad.torch as sgt
from steingrad_lab.training import Config

STEPS = 20
BY_HAND = "RLOO by hand"
TARGETS = {"RLOO": 1.0, "DisARM": 1.0, "Bronco": 1.12, "Lariat": 1.15, "Rodeo": 1.5}


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number, (a, b) in enumerate(itertools.pairwise(sizes)):
        layers += [nn.LeakyReLU(0.3)] if number else []
        layers.append(nn.Linear(a, b))
    return nn.Sequential(*layers)


def log_bernoulli(logits: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    shape = torch.broadcast_shapes(logits.shape, x.shape)
    loss = nn.functional.binary_cross_entropy_with_logits
    return -loss(logits.expand(shape), x.expand(shape), reduction="none").sum(-1)


def torch_contestant(samples: int, estimator: sgt.Estimator | None = None, steps: int = STEPS):
    """Returns a function that runs `steps` training steps, with RLOO by hand if no estimator."""
    torch.manual_seed(0)
    encoder, decoder = mlp(784, 200, 200, 200), mlp(200, 200, 200, 784)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    images = torch.from_numpy(np.array(fake_dataset().train))
    decay, means, squares = 0.999, {}, {}

    def by_hand(y, logits):
        with torch.no_grad():
            x = torch.bernoulli(torch.sigmoid(logits).expand(samples, -1, -1))
        log_q, log_p = log_bernoulli(logits, x), log_bernoulli(decoder(x), y)
        f = (log_p - log_q).detach()
        advantage = f - (f.sum(0) - f) / (samples - 1)
        return (log_p + advantage * log_q).mean()

    def by_estimator(y, logits):
        fixed = logits.detach()
        f = lambda x: log_bernoulli(decoder(x), y) - log_bernoulli(fixed, x)
        return estimator(f, logits)  # pyright: ignore[reportOptionalCall]

    elbo = by_hand if estimator is None else by_estimator

    def step(batch):
        y = torch.bernoulli(batch.float() / 255)
        loss = -elbo(y, encoder(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():  # the moving averages of grad_variance
            for name, parameter in encoder.named_parameters():
                gradient: Any = parameter.grad
                mean = means.setdefault(name, torch.zeros_like(parameter))
                square = squares.setdefault(name, torch.zeros_like(parameter))
                mean.lerp_(gradient, 1 - decay)
                square.lerp_(gradient**2, 1 - decay)

    def run():
        order = torch.randperm(len(images))
        for i in range(steps):
            step(images[order[100 * i : 100 * (i + 1)]])

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, nargs="*", default=[2, 3])
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    results = {}
    for samples in arguments.samples:
        # Bronco with the same number of evaluations: one sample and flips.
        modules: dict[str, sgt.Estimator] = {
            "RLOO": sgt.RLOO(samples),
            "Bronco": sgt.Bronco(1, flips=samples - 1),
            "Lariat": sgt.Lariat(samples),
            "Rodeo": sgt.Rodeo(samples),
        }
        if samples % 2 == 0:
            modules["DisARM"] = sgt.DisARM(samples)
        contestants = {BY_HAND: torch_contestant(samples)}
        for name, module in modules.items():
            contestants[f"{name} of steingrad.torch"] = torch_contestant(samples, module)
        for name in ("rloo", "rodeo"):
            config = Config(estimator=name, samples=samples, dataset="mnist")
            contestants[f"{name} in JAX"] = contestant(config)[0]
        result = summarise(per_step(race(contestants, arguments.rounds)), BY_HAND)
        targets = {f"{name} of steingrad.torch": f"≤ {most}" for name, most in TARGETS.items()}
        show(
            f"Training step, K = {samples}: ratio to RLOO by hand in PyTorch {torch.__version__}",
            result,
            targets if samples == 2 else {},
        )
        results[f"K={samples}"] = result
    save("pytorch", {"torch": torch.__version__, **results})


if __name__ == "__main__":
    main()
