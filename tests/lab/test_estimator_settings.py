"""The settings of estimators: what the library says about them, and nothing else."""

import re
import subprocess
import sys

import pytest

import steingrad as sg
from steingrad_lab.cli import main
from steingrad_lab.estimators import DESCRIPTIONS
from steingrad_lab.settings import DECIDED, KINDS, NAMES, SETTINGS, build_estimator, settings_of
from steingrad_lab.training import Config

FLAGS_OF_0_2 = """
--adapt-every --average-decoder --baseline --batch-size --bound-samples --checkpoint-every
--coefficients --common-random-numbers --context --coordinates --cv-learning-rate --damping
--data --data-dir --dataset --devices --estimator --eval-every --flips --global --gradients
--hidden --layer-sizes --layers --learning-rate --likelihood --local --loo --network
--no-average-decoder --no-common-random-numbers --no-context --no-global --no-gradients
--no-local --no-loo --no-resume --no-stein --no-tensorboard --no-values --no-weighted --operator
--out --preset --report-every --resume --samples --scan --seed --seeds --stein --steps
--surrogate --surrogate-hidden --surrogate-layers --tensorboard --uniform --values --weighted
"""


def test_the_flags_of_version_0_2(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    names = re.findall(r"^\W{1,3}(--.*)", capsys.readouterr().out, re.MULTILINE)
    there = {flag for line in names for flag in re.findall(r"--[a-z][a-z-]*", line)}
    assert set(FLAGS_OF_0_2.split()) - there == set()


def test_a_new_field_is_a_new_flag(tmp_path):
    """Name, type, default, choices and help come from the library; so does what it goes with."""
    script = tmp_path / "newer.py"
    script.write_text(
        '''
from typing import Literal

import equinox as eqx
import steingrad.estimators

class Bronco(steingrad.estimators.Bronco):
    """A newer Bronco."""

    saddle: float = eqx.field(static=True, default=2.5)
    """The height of the
    saddle."""
    gait: Literal["trot", "gallop"] | None = eqx.field(static=True, default=None)
    """How fast it goes."""

steingrad.estimators.Bronco = Bronco

from steingrad_lab.cli import main
from steingrad_lab.training import Config

config = Config(estimator="bronco", gait="trot", saddle=2.5)
assert config == Config(estimator="bronco", gait="trot") != Config(estimator="bronco")
(estimator,) = config.build_estimators(5)
assert (estimator.gait, estimator.saddle) == ("trot", 2.5)
try:
    main(["train", "--saddle", "3"])
except SystemExit:
    pass
main(["train", "--help"])
'''
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "saddle goes with estimator bronco" in " ".join(done.stderr.split())
    said = " ".join(done.stdout.replace("│", " ").split())
    assert "--saddle FLOAT Bronco: The height of the saddle. (default: 2.5)" in said
    assert "--gait {none,trot,gallop} Bronco: How fast it goes. (default: none)" in said


def test_names_are_used_once():
    """A field of an estimator that is called like a setting of the laboratory needs another name
    in `settings.NAMES`."""
    declared = [vars(kind).get("__annotations__", {}) for kind in Config.__mro__]
    names = [name for annotations in declared for name in annotations]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_every_field_is_a_setting_or_decided(name):
    """A field that the laboratory decides about, or calls by another name, is there."""
    estimator = build_estimator(name, 6, {})
    assert type(estimator) is DESCRIPTIONS[name].kind
    assert settings_of(estimator).keys() <= SETTINGS.keys()


def test_the_exceptions_are_still_needed():
    """Each field that has another name, or that the laboratory decides about, is in the library."""
    kinds = [*KINDS.values(), *(about.kind for about in DESCRIPTIONS.values())]
    there = {field for kind in kinds for field in kind.__dataclass_fields__}
    there |= {f"{kind.__name__}.{field}" for kind in kinds for field in kind.__dataclass_fields__}
    assert DECIDED | NAMES.keys() <= there


def test_a_number_or_a_word():
    config = Config(estimator="reinforce", baseline=1.5)
    assert config.build_estimators(5) == (sg.Reinforce(2, baseline=1.5),)
    assert Config(estimator="reinforce", baseline="none") == Config(estimator="reinforce")


def test_settings_that_need_each_other():
    config = Config(estimator="gumbel_softmax", straight_through=True, jacobian_draws=3)
    assert config.build_estimators(5) == (
        sg.GumbelSoftmax(2, straight_through=True, jacobian_draws=3),
    )
