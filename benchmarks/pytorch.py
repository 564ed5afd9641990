"""The RLOO training step of the paper's VAE, written straightforwardly in PyTorch.

    pip install -e '.[pytorch]' && python benchmarks/pytorch.py

Side by side with ours in one process; both use all cores.
"""

import itertools
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from steps import contestant, fake_dataset, per_step
from timing import race, save, show, summarise
from torch import nn  # pyright: ignore[reportMissingImports]

from steingrad.experiments import Config

STEPS = 20


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number, (a, b) in enumerate(itertools.pairwise(sizes)):
        layers += [nn.LeakyReLU(0.3)] if number else []
        layers.append(nn.Linear(a, b))
    return nn.Sequential(*layers)


def torch_contestant(samples: int, steps: int = STEPS):
    """A call that makes `steps` training steps."""
    torch.manual_seed(0)
    encoder, decoder = mlp(784, 200, 200, 200), mlp(200, 200, 200, 784)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    images = torch.from_numpy(np.array(fake_dataset().train))
    decay, means, squares = 0.999, {}, {}

    def step(batch):
        y = torch.bernoulli(batch.float() / 255)
        logits = encoder(y)
        with torch.no_grad():
            x = torch.bernoulli(torch.sigmoid(logits).expand(samples, -1, -1))
        log_q = -nn.functional.binary_cross_entropy_with_logits(
            logits.expand_as(x), x, reduction="none"
        ).sum(-1)
        outputs = decoder(x)
        log_p = -nn.functional.binary_cross_entropy_with_logits(
            outputs, y.expand_as(outputs), reduction="none"
        ).sum(-1)
        f = (log_p - log_q).detach()
        advantage = f - (f.sum(0) - f) / (samples - 1)
        loss = -(log_p + advantage * log_q).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():  # the moving averages behind grad_variance
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
    results = {}
    for samples in (2, 3):
        contestants = {"PyTorch RLOO": torch_contestant(samples)}
        for name in ("rloo", "rodeo"):
            config = Config(estimator=name, samples=samples, dataset="mnist")
            contestants[f"steingrad {name}"] = contestant(config)[0]
        result = summarise(per_step(race(contestants, rounds=11)), "PyTorch RLOO")
        show(
            f"Training step, K = {samples}: ratio to RLOO in PyTorch {torch.__version__}",
            result,
            {},
        )
        results[f"K={samples}"] = result
    save("pytorch", {"torch": torch.__version__, **results})


if __name__ == "__main__":
    main()
