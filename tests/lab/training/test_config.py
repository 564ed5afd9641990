"""Settings are checked, refused if they have no effect, and stored."""

import dataclasses
import json

import pytest

from steingrad_lab.settings import SETTINGS
from steingrad_lab.training import Config, ConfigError, Schedule
from steingrad_lab.training.config import DEFAULTS, check_types, from_json, to_json, used


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"steps": 0}, "^steps must be 1 or more, not 0"),
        ({"learning_rate": 0.0}, "^learning_rate must be above 0"),
        ({"layer_sizes": (0,)}, "one unit or more"),
        ({"surrogate_layers": 3}, "1 or 2 hidden layers"),
        ({"seeds": (1, 1)}, "^seeds must be one or more different"),
        ({"seeds": (2**31,)}, "^seeds must be between"),
        ({"steps": 2**31}, r"^steps must be below 2\^31"),
        ({"adapt_every": 10**12}, r"^adapt_every must be below 2\^31, not 1000000000000\."),
        ({"bound_samples": 2**31}, r"^bound_samples must be below 2\^31, not 2147483648\."),
        ({"batch_size": 10**20}, r"^batch_size must be below 2\^31"),
        ({"samples": 2**16}, r"^samples must be below 2\^16, not 65536\."),
        ({"layer_sizes": (5, 10**9)}, r"^layer_sizes must be below 2\^16, not 1000000000\."),
        ({"hidden": (10**9,)}, r"^hidden must be below 2\^16, not 1000000000\."),
        ({"surrogate_hidden": 10**9}, r"^surrogate_hidden must be below 2\^16"),
        (
            {"estimator": "relax", "samples": 3, "relax_hidden": 10**9},
            r"^relax_hidden must be below",
        ),
        ({"estimator": "bronco", "samples": 10**9, "flips": 10**9 - 1}, r"^flips must be below"),
        ({"layer_sizes": (5,) * 101}, "^layer_sizes must be at most 100 numbers, but 101 were"),
        ({"hidden": (5,) * 101}, "^hidden must be at most 100 numbers, but 101 were given"),
        ({"seeds": tuple(range(1001))}, "^seeds must be at most 1000 numbers, but 1001 were"),
        ({"coordinates": 300}, "^coordinates 300 is more than the codes"),
        ({"dataset": "cifar"}, "^dataset must be one of digits, mnist, .* not 'cifar'"),
        ({"estimator": "rodoe"}, "^estimator must be one of .*rodeo"),
        ({"operator": "gips"}, "^operator must be one of gibbs"),
        ({"samples": 1}, "num_samples of 2 or more"),
        ({"estimator": "relax"}, "multiple of 3"),
        ({"network": "resnet", "layer_sizes": (200, 200)}, "one stochastic layer"),
    ],
)
def test_refused_values(settings, says):
    with pytest.raises(ConfigError, match=says) as refused:
        Config(**settings)
    assert "--" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"seeds": (1.5,)}, r"seeds must be a list of whole numbers, not \(1.5,\)"),
        ({"seeds": 1}, "seeds must be a list of whole numbers, not 1"),
        ({"steps": 60.5}, "steps must be a whole number, not 60.5"),
        ({"steps": True}, "steps must be a whole number, not True"),
        ({"steps": None}, "steps must be a whole number, not None"),
        ({"learning_rate": "fast"}, "learning_rate must be a number, not 'fast'"),
        ({"dataset": ("digits",)}, r"dataset must be one of digits, .*, not \('digits',\)"),
        ({"loo": 1}, "loo must be true or false, not 1"),
    ],
    ids=str,
)
def test_types(settings, says):
    """Types in a file are checked. With jaxtyping active, `Config` itself would refuse them."""
    check_types({**DEFAULTS, "learning_rate": 1, "damping": 0, "loo": False})
    with pytest.raises(ConfigError, match=says):
        check_types({**DEFAULTS, **settings})


@pytest.mark.parametrize(
    ("settings", "owner"),
    [
        ({"estimator": "rloo", "operator": "mpf"}, "operator goes with estimator rodeo"),
        ({"estimator": "rloo", "operator": "gibbs"}, "operator goes with estimator rodeo"),
        ({"estimator": "rloo", "local": False}, "local goes with estimator rodeo"),
        ({"estimator": "rloo", "surrogate_hidden": 7}, "goes with surrogate mlp or pooled"),
        ({"estimator": "rloo", "adapt_every": 2}, "adapt_every goes with an estimator that learns"),
        ({"estimator": "reinforce", "adapt_every": 2}, "goes with an estimator that learns"),
        ({"surrogate": "linear", "surrogate_hidden": 7}, "goes with surrogate mlp or pooled"),
        ({"operator": "mpf", "scan": "own"}, "scan goes with operator gibbs"),
        ({"damping": 0.1}, "damping goes with operator mpf, barker, birth_death or difference"),
        ({"baseline": "learned"}, "baseline goes with estimator reinforce"),
        ({"average_decoder": True}, "average_decoder goes with several layers"),
        ({"network": "resnet", "hidden": (5,)}, "hidden goes with network mlp"),
        (
            {"estimator": "modified_relax", "surrogate": "mlp"},
            "surrogate goes with estimator rodeo",
        ),
    ],
)
def test_settings_of_others(settings, owner):
    with pytest.raises(ConfigError, match=owner):
        Config(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"estimator": "modified_relax", "surrogate_hidden": 7},
        {"estimator": "reinforce", "baseline": "learned", "adapt_every": 2},
        {"operator": "barker", "damping": 0.1, "coordinates": 3},
        {"surrogate": "pooled", "surrogate_layers": 2},
        {"estimator": "bronco", "samples": 4, "flips": 1},
        {"estimator": "lariat", "stein": True},
    ],
)
def test_settings_beside_their_owner(settings):
    """Such settings are accepted and kept."""
    config = Config(**settings)
    assert settings.items() <= vars(config).items()


@pytest.mark.parametrize(
    ("estimator", "some"),
    [
        ("rodeo", {"operator": "gibbs", "scan": "random", "surrogate_hidden": 100, "loo": True}),
        ("bronco", {"flips": 1, "uniform": 0.1}),
        ("lariat", {"values": True, "gradients": True, "stein": False}),
        ("reinforce", {"baseline": "none"}),
    ],
)
def test_the_default_by_name_is_the_default(estimator, some):
    """Writing out the library's defaults gives the same configuration."""
    config = Config(estimator=estimator)
    there = used(vars(config))
    spelled = {name: value for name, value in there.items() if name in SETTINGS}
    assert some.items() <= spelled.items()
    assert Config(estimator=estimator, **spelled) == config
    plain = Config(estimator=estimator, **spelled)
    assert dataclasses.replace(plain, estimator="rloo") == Config(estimator="rloo")


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(estimator="rloo", layer_sizes=(5, 6), hidden=(), average_decoder=True),
        Config(operator="mpf", damping=1e-3, coordinates=7),
        Config(estimator="modified_relax", surrogate_hidden=7, seeds=(1, 2)),
    ],
)
def test_written_and_read(config):
    record = json.loads(json.dumps(to_json(config)))
    assert from_json(record) == config
    assert record["surrogate_hidden"] == {"rloo": None, "rodeo": 100}.get(config.estimator, 7)


def test_unknown_stored_setting():
    with pytest.raises(ConfigError, match="settings this version does not know"):
        from_json({"speed": 3})


@pytest.mark.parametrize("name", ["report_every", "checkpoint_every", "eval_every"])
def test_schedule(name):
    Schedule(**{name: 0})
    with pytest.raises(ConfigError, match=f"^{name} must be 0 .* or more, not -1"):
        Schedule(**{name: -1})
