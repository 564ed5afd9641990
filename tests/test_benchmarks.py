"""The benchmarks can be run, and every bad data file is refused. Times are not tested here."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import steingrad as sg
from marks import slow
from steingrad_lab.training import Config

ROOM = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def _room(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOM))


def answers(code, place):
    """Returns the dictionary that a program prints. The program may hang, or take all memory."""
    begin = (
        "import resource, sys, pathlib; place = pathlib.Path(sys.argv[1]);"
        "resource.setrlimit(resource.RLIMIT_DATA, (2**32, 2**32))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", begin + code, str(place)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOM), *sys.path])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes")
def test_bad_data_is_refused_by_a_sentence(tmp_path):
    """Every bad file is read in one process, which would hang at a pipe."""
    code = (
        "from bad_data import BAD_DATA\n"
        "from steingrad_lab.data import DataError, load\n"
        "found = {}\n"
        "for number, (name, write) in enumerate(BAD_DATA.items()):\n"
        "    folder = place / str(number)\n"
        "    folder.mkdir()\n"
        "    try:\n"
        "        found[name] = load(str(write(folder))) and 'read'\n"
        "    except DataError as error:\n"
        "        found[name] = 'a sentence' if str(error).endswith('.') else str(error)\n"
        "    except Exception as error:\n"
        "        found[name] = repr(error)\n"
        "print(found)\n"
    )
    found = answers(code, tmp_path)
    assert len(found) > 40
    assert found == dict.fromkeys(found, "a sentence")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="fork")
def test_attacks_with_bad_data(tmp_path):
    found = answers("import attacks; print(attacks.bad_data(place))", tmp_path)
    assert {outcome for outcome, _ in found.values()} == {"a sentence"}
    assert max(megabytes for _, megabytes in found.values()) < 200


@pytest.mark.parametrize("estimator", [sg.Bronco(flips=2), *slow(sg.Lariat(), sg.Rodeo())])
def test_growth_runs(estimator):
    call, memory = importlib.import_module("growth").contestant(4, estimator)
    _, grads = call()
    assert grads.parameters.shape == (20, 4)
    assert memory > 0


@pytest.mark.slow
def test_steps_run():
    steps = importlib.import_module("steps")
    with jax.numpy_dtype_promotion("standard"):
        call, _ = steps.contestant(Config(estimator="bronco", samples=2, dataset="mnist"), 2)
        state = call()[0]
        bare = steps.bare_contestant(2, 2)()
    for tree in (state, bare):
        leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
        assert leaves
        assert all(jnp.all(jnp.isfinite(leaf)) for leaf in leaves)


@pytest.mark.slow
def test_scaling_runs():
    scaling, steps = map(importlib.import_module, ("scaling", "steps"))
    config = Config(estimator="bronco", samples=2, dataset="mnist", batch_size=10, layer_sizes=(7,))
    with jax.numpy_dtype_promotion("standard"):
        call, memory = scaling.contestant(config, steps.fake_dataset())
        state = call()[0]
    assert memory > 0
    leaves = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    assert all(jnp.all(jnp.isfinite(leaf)) for leaf in leaves)
