"""A VAE with binary latent variables on scikit-learn's digits, in PyTorch, with Bronco.

    python examples/pytorch_vae.py            # pip install 'steingrad[torch,experiments]'

This takes about a minute on two cores. Use `--estimator` to compare with RLOO or another estimator.
"""

import argparse
import itertools
import math
import time
from collections.abc import Iterator

import torch
from torch import distributions, nn

import steingrad.torch as sgt
from steingrad_lab.data import load


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.LeakyReLU(0.3)]
        nn.init.xavier_uniform_(layers[-2].weight)
        nn.init.zeros_(layers[-2].bias)
    return nn.Sequential(*layers[:-1])


class VAE(nn.Module):
    """A VAE of bits x with a uniform prior. The objective f is log p(y, x) − log q(x)."""

    def __init__(self, pixels: int, bits: int, hidden: int, estimator: sgt.Estimator):
        super().__init__()
        self.bits, self.estimator = bits, estimator
        self.encoder = mlp(pixels, hidden, hidden, bits)
        self.decoder = mlp(bits, hidden, hidden, pixels)

    def elbo(self, y: torch.Tensor) -> torch.Tensor:
        logits = self.encoder(y)
        # The direct gradient of log q has mean 0, so leaving it out only removes noise.
        q = distributions.Bernoulli(logits=logits.detach(), validate_args=False)

        def f(x):
            p = distributions.Bernoulli(logits=self.decoder(x), validate_args=False)
            return p.log_prob(y).sum(-1) - self.bits * math.log(2) - q.log_prob(x).sum(-1)

        return self.estimator(f, distributions.Bernoulli(logits=logits, validate_args=False))


def train(vae: VAE, images: torch.Tensor, steps: int, batch: int = 100) -> Iterator[float]:
    """Yields the ELBO of each step. Pixels are drawn from grey values (0 to 255) in each step."""
    optimizer = torch.optim.Adam(vae.parameters(), lr=1e-3)
    for _ in range(steps):
        chosen = images[torch.randint(len(images), (batch,))]
        elbo = vae.elbo(torch.bernoulli(chosen.float() / 255))
        optimizer.zero_grad()
        (-elbo).backward()
        optimizer.step()
        yield elbo.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--estimator", default="Bronco", help="a name in steingrad.torch")
    parser.add_argument("--steps", type=int, default=5_000)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    images = torch.from_numpy(load("digits").train)
    vae = VAE(images.shape[1], 50, 100, getattr(sgt, arguments.estimator)())
    recent: list[float] = []
    start = time.perf_counter()
    for step, elbo in enumerate(train(vae, images, arguments.steps), 1):
        recent.append(elbo)
        if step % 500 == 0:
            mean = sum(recent[-500:]) / 500
            print(f"step {step:6d}   ELBO {mean:8.2f}   {time.perf_counter() - start:5.1f} s")


if __name__ == "__main__":
    main()
