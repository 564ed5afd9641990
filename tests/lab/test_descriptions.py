"""The descriptions of the estimators agree with the estimators."""

import jax
import jax.numpy as jnp
import pytest

from steingrad import Bernoulli
from steingrad_lab.estimators import DESCRIPTIONS
from steingrad_lab.report.styles import STYLES
from steingrad_lab.settings import learns
from steingrad_lab.training import Config

CONFIGS = [
    Config(estimator="reinforce", baseline="learned"),
    *(Config(estimator=name, samples=6) for name in DESCRIPTIONS),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.estimator)
def test_description_is_true(config):
    """Estimators that are said to learn have parameters, and watched parameters are scalars."""
    description = DESCRIPTIONS[config.estimator]
    for size, estimator in zip(config.layer_sizes, config.build_estimators(5), strict=True):
        cv = estimator.init(jax.random.key(0), Bernoulli(jnp.zeros(size)))
        assert learns(estimator) == (cv is not None)
        assert description.biased == estimator.biased
        watched = [getattr(cv, name) for name in description.watch if cv is not None]
        assert all(value.shape == () for value in watched)


def test_each_looks_different():
    styles = [description.style for description in DESCRIPTIONS.values()]
    assert len(set(styles)) == len(styles)
    assert max(styles) < len(STYLES)
    looks = {(style.dashes, style.marker) for style in STYLES}
    assert len(looks) == len(STYLES)
    assert len({description.label for description in DESCRIPTIONS.values()}) == len(DESCRIPTIONS)
