"""The paper's settings, and configurations and run names that are based on them."""

from typing import Any

from ..data import label
from ..training.config import (
    MOST_LAYERS,
    Config,
    ConfigError,
    differences,
    used,
    with_effect,
)
from .reinmax import binary_settings, categorical_settings

STEPS = 1_000_000
SEEDS = (1, 2, 3, 4, 5)
BOUND_SAMPLES = 100
LAYER_SIZE = 200
# The codes of a VAE of categories if their number is not given: one of ReinMax's configurations.
CODES = 16
# The device on which the published times were measured.
TIMED_ON = "an NVIDIA 3080Ti"


def architecture(layers: int, network: str = "mlp") -> dict[str, Any]:
    """Returns the paper's layer sizes and hidden units. Several layers have no hidden units."""
    sizes: dict[str, Any] = {"layer_sizes": (LAYER_SIZE,) * layers}
    if network == "mlp":  # the sizes of residual networks are fixed
        sizes["hidden"] = (200, 200) if layers == 1 else ()
    return sizes


def paper_settings(
    dataset: str, likelihood: str, layers: int, network: str = "mlp"
) -> dict[str, Any]:
    """Returns the paper's settings for a task.

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


def configure(
    *, preset: str = "none", layers: int | None = None, codes: int | None = None, **given: Any
) -> Config:
    """Returns a configuration from the given settings and, for the rest, the preset or defaults.

    `layers` selects the paper's architecture with this number of stochastic layers. If only
    `layer_sizes` are given, the number of layers selects the paper's hidden units. `codes` is the
    number of codes in one stochastic layer.

    >>> configure(layers=2, estimator="disarm").layer_sizes
    (200, 200)
    >>> configure(preset="paper", dataset="fashion_mnist", steps=5).learning_rate
    0.0003
    >>> configure(preset="reinmax", model="categorical", codes=4, estimator="reinmax").samples
    1
    """
    if layers is not None and layers < 1:
        raise ConfigError(f"layers must be 1 or more, not {layers}.")
    if layers is not None and layers > MOST_LAYERS:
        raise ConfigError(f"layers must be at most {MOST_LAYERS}, not {layers}.")
    sizes = {"layers": layers, "codes": codes, "layer_sizes": given.get("layer_sizes")}
    both = [name for name, value in sizes.items() if value is not None]
    if len(both) > 1:
        raise ConfigError(f"Both {both[0]} and {both[1]} are given. Give only one of them.")
    if not both and given.get("model") == "categorical":
        codes = CODES
    if codes is not None:
        given["layer_sizes"] = (codes,)
    count = layers or max(1, len(given.get("layer_sizes", ())))
    dataset, likelihood, network = (
        given.get(name, getattr(Config, name)) for name in ("dataset", "likelihood", "network")
    )
    if preset == "paper":
        rest = paper_settings(dataset, likelihood, count, network)
    else:
        rest = architecture(count, network)
    if preset == "reinmax":
        estimator, categories, samples = (
            given.get(name, getattr(Config, name))
            for name in ("estimator", "categories", "samples")
        )
        if given.get("model") == "categorical":
            sizes = given.get("layer_sizes") or rest["layer_sizes"]
            rest |= categorical_settings(estimator, categories, sizes[0], given.get("flips"))
        else:
            rest |= binary_settings(estimator, dataset, samples)
        rest = with_effect({**rest, **given}, rest)
    return Config(**{**rest, **given})


def task_slug(config: Config) -> str:
    """Returns a name for the dataset, likelihood, number of layers, estimator and K.

    The name of a VAE of categories has the number of categories and of codes, too.

    >>> task_slug(Config(dataset="mnist", layer_sizes=(200, 200), estimator="disarm"))
    'mnist-bernoulli-layers2-disarm-k2'
    >>> task_slug(configure(dataset="mnist", model="categorical", codes=4, estimator="carms"))
    'mnist-bernoulli-8x4-carms-k2'
    """
    layers = [f"layers{len(config.layer_sizes)}"] if len(config.layer_sizes) > 1 else []
    if config.model == "categorical":
        layers = ["x".join(map(str, (config.categories, *config.layer_sizes)))]
    task = [label(config.dataset), config.likelihood, *layers]
    return "-".join([*task, config.estimator, f"k{config.samples}"])


def run_name(config: Config) -> str:
    """Returns a folder name for a configuration: its task and what differs from the paper, or from
    ReinMax's experiments if the codes are categories.

    Different configurations have different names. Exceptions are the settings that may change when
    a run is continued: the number of steps, and the samples of the bound at the end.

    >>> run_name(Config(dataset="mnist", operator="mpf", damping=1e-3, seeds=(1, 2)))
    'mnist-bernoulli-rodeo-k2-operator=mpf-damping=0.001-seed1+2'
    """
    parts = [task_slug(config)]
    for name, given in unusual_settings(config).items():
        text = "+".join(map(str, given)) if isinstance(given, tuple) else str(given)
        parts.append(f"{name.strip('_')}={text}")
    return "-".join([*parts, "seed" + "+".join(map(str, config.seeds))])


def unusual_settings(config: Config) -> dict[str, Any]:
    """Returns the settings that differ from the published ones and are not part of `task_slug`."""
    names = ("dataset", "likelihood", "estimator", "samples", "network")
    task: dict[str, Any] = {name: getattr(config, name) for name in names}
    if config.model == "categorical":
        task |= {name: getattr(config, name) for name in ("model", "categories", "layer_sizes")}
        usual = configure(preset="reinmax", **task)
    else:
        usual = configure(preset="paper", layers=len(config.layer_sizes), **task)
    told = ("steps", "seeds", "bound_samples")
    there, changes = used(vars(config)), differences(usual, config)
    changed = {name: given for name, (_, given) in changes.items() if name in there}
    network = {"network": config.network} if config.network != Config.network else {}
    return network | {name: given for name, given in changed.items() if name not in told}
