"""The paper's settings, and configurations made from them."""

from typing import Any

from ..data import label
from ..training.config import Config, ConfigError, differences, used

STEPS = 1_000_000
SEEDS = (1, 2, 3, 4, 5)
BOUND_SAMPLES = 100
LAYER_SIZE = 200
# Where the published times come from.
TIMED_ON = "an NVIDIA 3080Ti"


def architecture(layers: int, network: str = "mlp") -> dict[str, Any]:
    """MLP VAEs with one layer, linear ones with more; residual networks have no setting."""
    sizes: dict[str, Any] = {"layer_sizes": (LAYER_SIZE,) * layers}
    if network == "mlp":
        sizes["hidden"] = (200, 200) if layers == 1 else ()
    return sizes


def paper_settings(
    dataset: str, likelihood: str, layers: int, network: str = "mlp"
) -> dict[str, Any]:
    """What the paper has for a task.

    >>> paper_settings("fashion_mnist", "bernoulli", 1)["learning_rate"]
    0.0003
    """
    if likelihood == "gaussian" or layers > 1:
        learning_rate = 1e-4
    else:
        learning_rate = 3e-4 if dataset == "fashion_mnist" else 1e-3
    return {
        "steps": STEPS,
        "seeds": SEEDS,
        "batch_size": 100,
        "learning_rate": learning_rate,
        "bound_samples": BOUND_SAMPLES,
        **architecture(layers, network),
    }


def configure(*, preset: str = "none", layers: int | None = None, **given: Any) -> Config:
    """A configuration from what is given; the rest from the preset `paper`, or the defaults.

    `layers` is short for the paper's architecture with so many stochastic layers, which also
    settles the hidden units where only `layer_sizes` are given.

    >>> configure(layers=2, estimator="disarm").layer_sizes
    (200, 200)
    >>> configure(preset="paper", dataset="fashion_mnist", steps=5).learning_rate
    0.0003
    """
    if layers is not None and layers < 1:
        raise ConfigError(f"layers must be 1 or more, not {layers}.")
    if layers is not None and "layer_sizes" in given:
        raise ConfigError("Give layers or layer_sizes, not both.")
    count = layers or max(1, len(given.get("layer_sizes", ())))
    dataset, likelihood, network = (
        given.get(name, getattr(Config, name)) for name in ("dataset", "likelihood", "network")
    )
    if preset == "paper":
        rest = paper_settings(dataset, likelihood, count, network)
    else:
        rest = architecture(count, network)
    return Config(**{**rest, **given})


def task_slug(config: Config) -> str:
    """What is estimated, and how.

    >>> task_slug(Config(dataset="mnist", layer_sizes=(200, 200), estimator="disarm"))
    'mnist-bernoulli-layers2-disarm-k2'
    """
    layers = f"layers{len(config.layer_sizes)}" if len(config.layer_sizes) > 1 else ""
    parts = (
        label(config.dataset),
        config.likelihood,
        layers,
        config.estimator,
        f"k{config.samples}",
    )
    return "-".join(part for part in parts if part)


def run_name(config: Config) -> str:
    """A folder name for a configuration: its task, and whatever differs from the paper's settings.

    Unlike configurations have unlike names, but for the number of steps and what is done when they
    are made: a larger budget goes on with the same run.

    >>> run_name(Config(dataset="mnist", operator="mpf", damping=1e-3, seeds=(1, 2)))
    'mnist-bernoulli-rodeo-k2-operator=mpf-damping=0.001-seed1+2'
    """
    parts = [task_slug(config)]
    for name, given in unusual_settings(config).items():
        text = "+".join(map(str, given)) if isinstance(given, tuple) else str(given)
        parts.append(f"{name.strip('_')}={text}")
    return "-".join([*parts, "seed" + "+".join(map(str, config.seeds))])


def unusual_settings(config: Config) -> dict[str, Any]:
    """What `task_slug` does not say, where it is not as in the paper."""
    usual = configure(
        preset="paper",
        dataset=config.dataset,
        likelihood=config.likelihood,
        estimator=config.estimator,
        samples=config.samples,
        network=config.network,
        layers=len(config.layer_sizes),
    )
    told = ("steps", "seeds", "bound_samples")
    there, changes = used(vars(config)), differences(usual, config)
    changed = {name: given for name, (_, given) in changes.items() if name in there}
    network = {"network": config.network} if config.network != Config.network else {}
    return network | {name: given for name, given in changed.items() if name not in told}
