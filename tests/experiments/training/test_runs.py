"""Run folders: what is read, what is refused."""

import dataclasses
import json
import shutil

import pytest

from small_runs import SMALL
from steingrad.experiments import Config, Run, RunError
from steingrad.experiments.training import Task


def rewrite(path, **fields):
    record = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**record, **fields}))


def test_format_is_checked(tmp_path):
    run = Run.create(tmp_path / "run", SMALL, {}, {})
    assert run.record["format"] == 2
    rewrite(run.path, format=99)
    with pytest.raises(RunError, match=r"has format 99, and this version .* reads formats 1 to 2"):
        Run(run.path)


def test_format_of_a_checkpoint_is_checked(trained, tmp_path):
    shutil.copytree(trained.path, tmp_path / "run")
    newest, *_ = Run(tmp_path / "run").checkpoints()
    header, _, payload = newest.read_bytes().partition(b"\n")
    header = json.dumps({**json.loads(header), "format": 99}).encode()
    newest.write_bytes(header + b"\n" + payload)
    like = Task.load(SMALL).initial_state()
    with pytest.warns(UserWarning, match="has format 99"):
        found = Run(tmp_path / "run").load(like)
    assert found is not None
    assert found[0] == 40


# A record of format 1 as it was written, but for the environment.
FORMAT_1 = {
    "dataset": "mnist", "likelihood": "bernoulli", "estimator": "rodeo", "samples": 2,
    "operator": "gibbs", "scan": "random", "damping": 0.0, "coordinates": None, "surrogate": "mlp",
    "surrogate_hidden": 100, "surrogate_layers": 1, "loo": True, "local": True, "global_": True,
    "baseline": "none", "relax_surrogate": False, "network": "mlp", "layer_sizes": [200],
    "common_random_numbers": False, "average_decoder": False, "hidden": [200, 200], "steps": 10000,
    "batch_size": 100, "learning_rate": 0.001, "cv_learning_rate": 0.001, "adapt_every": 1,
    "seeds": [1], "bound_samples": 100,
}  # fmt: skip
MNIST = "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Config("mnist")),
        ({"estimator": "rloo", "operator": "mpf"}, Config("mnist", estimator="rloo")),
        (
            {"estimator": "relax", "relax_surrogate": True, "surrogate_hidden": 7},
            Config("mnist", estimator="modified_relax", surrogate_hidden=7),
        ),
        ({"operator": "mpf", "damping": 1e-3}, Config("mnist", operator="mpf", damping=1e-3)),
        ({"estimator": "reinforce", "adapt_every": 4}, Config("mnist", estimator="reinforce")),
    ],
    ids=str,
)
def test_format_1_is_read(tmp_path, changes, expected):
    record = {
        "format": 1,
        "status": "finished",
        "config": {**FORMAT_1, **changes},
        "data_files": {
            "mnist/train-images-idx3-ubyte.gz": MNIST,
            "mnist/t10k-images-idx3-ubyte.gz": "f" * 64,
            "omniglot/chardata.mat": "0" * 64,
        },
        "environment": {},
    }
    (tmp_path / "config.json").write_text(json.dumps(record))
    run = Run(tmp_path)
    assert run.config == expected
    assert list(run.published.values()) == [True, False, None]


@pytest.mark.parametrize(
    ("content", "says"),
    [("{", "is damaged"), ("[]", "was not written by"), ("{}", "was not written by")],
)
def test_other_content(tmp_path, content, says):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(RunError, match=says):
        Run(tmp_path)


def test_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file", tmp_path / "nowhere"):
        with pytest.raises(
            RunError, match=r"is not a run: it has no config\.json\. Name the folder"
        ):
            Run(path)


def test_updates_keep_the_rest(tmp_path):
    run = Run.create(tmp_path / "run", SMALL, {"digits": "1"}, {"digits": True})
    run.update(status="finished")
    again = Run(run.path)
    assert (again.status, again.config, again.published) == ("finished", SMALL, {"digits": True})
    with pytest.raises(RunError, match=r"holds a run already. Go on with it \(resume\)"):
        Run.create(run.path, dataclasses.replace(SMALL, steps=5), {}, {})
