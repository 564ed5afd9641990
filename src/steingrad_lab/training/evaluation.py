"""What a run measures: metrics of training steps, and bounds of a model on a whole split."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8

from ..estimators import DESCRIPTIONS
from ..models import VAE
from .step import State, grad_variance
from .task import Task

IMAGES_AT_A_TIME = 100
SAMPLES_AT_A_TIME = 20


class Bounds(NamedTuple):
    """The ELBO and the importance-weighted bound (Burda et al. 2016), averaged over images.

    With one sample the two are equal, unless the KL divergence in the ELBO is computed exactly.
    """

    elbo: float
    bound: float


def evaluate(
    model: VAE,
    images: UInt8[np.ndarray, "images pixels"],
    samples: int,
    key: PRNGKeyArray,
    watch: Callable[[Sequence[int]], Iterable[int]] = iter,
    batch_size: int = IMAGES_AT_A_TIME,
) -> Bounds:
    r"""Returns the mean ELBO and the mean of $\log \frac1S \sum_s p(y, x_s) / q(x_s \mid y)$.

    $S$ is the number of `samples`. Images and samples are processed in batches, so any number fits
    in memory; the random numbers depend on `batch_size`. `watch` wraps the iterable of batches, as
    a progress bar does.
    """
    pieces = []
    for number, start in enumerate(watch(range(0, len(images), batch_size))):
        piece = images[start : start + batch_size]
        # The last batch is padded, so that one compiled program serves all batches.
        piece = np.pad(piece, ((0, batch_size - len(piece)), (0, 0)))
        pieces.append(_bounds(model, piece, samples, jax.random.fold_in(key, number)))
    per_image = np.concatenate(pieces, axis=1)
    elbo, bound = np.mean(per_image[:, : len(images)], axis=1)
    return Bounds(float(elbo), float(bound))


def _bounds(
    model: VAE, images: UInt8[np.ndarray, "images pixels"], samples: int, key: PRNGKeyArray
) -> Float[np.ndarray, "2 images"]:
    """Returns the ELBO and the importance-weighted bound of each image."""
    pixels = jnp.asarray(images)
    # These sums are in float64: there may be millions of samples.
    total, log_total = np.zeros(len(images)), np.full(len(images), -np.inf)
    for number, start in enumerate(range(0, samples, SAMPLES_AT_A_TIME)):
        count = min(SAMPLES_AT_A_TIME, samples - start)
        key_number = jnp.asarray(number, jnp.int32)
        sums = _weight_sums(model, pixels, count, key, key_number)
        elbo, log_sum = np.asarray(sums, np.float64)
        total, log_total = total + elbo, np.logaddexp(log_total, log_sum)
    return np.stack([total / samples, log_total - math.log(samples)])


@eqx.filter_jit
def _weight_sums(
    model: VAE,
    images: UInt8[Array, "images pixels"],
    samples: int,
    key: PRNGKeyArray,
    number: Int[Array, ""],
) -> Float[Array, "2 images"]:
    """Returns the sum of the ELBO's terms of some samples, and the log of the sum of weights."""
    observe_key, weight_key = jax.random.split(key)
    y = model.likelihood.observe(observe_key, images)
    key = jax.random.fold_in(weight_key, number)
    weights, elbos = model.log_weights_and_elbos(y, samples=samples, key=key)
    return jnp.stack([jnp.sum(elbos, axis=0), jax.nn.logsumexp(weights, axis=0)])


def report_lines(
    task: Task, state: State, step: int, since: int, seconds: float
) -> list[dict[str, Any]]:
    """Returns a line of metrics for each seed, about the steps from `since` to `step`."""
    lines = []
    for number, seed in enumerate(task.config.seeds):
        own = task.state_of(state, number)
        line = {
            "step": step,
            "seed": seed,
            "objective": (float(own.elbo_sum) + float(own.elbo_rest)) / int(own.elbo_steps),
            "grad_variance": float(grad_variance(own, step)),
            "ms_per_step": 1000 * seconds / (step - since),
        }
        for layer, cv in enumerate(own.cv, 1):
            suffix = f"_{layer}" if len(own.cv) > 1 else ""
            for name in DESCRIPTIONS[task.config.estimator].watch if cv is not None else ():
                line[name + suffix] = float(getattr(cv, name))
        lines.append(line)
    return lines


def elbos(task: Task, state: State, number: int, step: int) -> dict[str, float]:
    """Returns the ELBO on each split for the seed at position `number`, with one sample for each
    image. Validation images that are trained on do not count as a split."""
    model, key = task.model(state, number), evaluation_key(task.config.seeds[number], step)
    return {
        f"{split}_elbo": evaluate(model, getattr(task.dataset, split), 1, key).elbo
        for split in ("train", *task.held_out)
    }


def final_bounds(task: Task, state: State, number: int) -> dict[str, float]:
    """Returns all ELBOs and bounds at the end of a run, for the seed at position `number`."""
    config = task.config
    found = elbos(task, state, number, config.steps)
    model, key = task.model(state, number), evaluation_key(config.seeds[number], config.steps)
    for split in task.held_out:
        images = getattr(task.dataset, split)
        found[f"{split}_bound"] = evaluate(model, images, config.bound_samples, key).bound
        found[f"{split}_bound_k"] = evaluate(model, images, config.samples, key).bound
    return found


def evaluation_key(seed: int, step: int) -> PRNGKeyArray:
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 3), step)
