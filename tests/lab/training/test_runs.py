"""Run folders: what is read and what is refused."""

import dataclasses
import errno
import json
import math
import os
import shutil
import subprocess

import jax
import jax.numpy as jnp
import pytest

from small_runs import SMALL
from steingrad_lab.training import Config, Run, RunError, Task, runs


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


def test_checkpoints_without_the_rest_of_the_sum_are_read(trained, tmp_path):
    """Version 0.2 wrote the same arrays except for the last one."""
    shutil.copytree(trained.path, tmp_path / "run")
    run, like = Run(tmp_path / "run"), Task.load(SMALL).initial_state()
    step, state = run.load(like)
    run.save(step, state[:-1])
    assert run.load(like)[0] == step
    assert jax.tree.all(jax.tree.map(jnp.array_equal, run.load(like)[1][:-1], state[:-1]))
    assert float(run.load(like)[1].elbo_rest) == 0.0
    run.save(step, state[:-2])
    with pytest.warns(UserWarning, match="0060.eqx does not fit this model"):
        assert run.load(like)[0] == 40


# The settings in a record of format 1, as an earlier version wrote them.
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
    [
        (b"{", "is damaged"),
        (b"\xff\xfe{}", "is damaged"),
        (b"[" * 100_000, "is damaged"),
        (b"[]", "was not written by"),
        (b"{}", "was not written by"),
        (b'{"format": 2, "config": {}}', "is damaged: its status is None"),
    ],
)
def test_other_content(tmp_path, content, says):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(RunError, match=says):
        Run(tmp_path)


@pytest.mark.parametrize("lines", [False, True])
def test_a_disk_that_is_full(lines, tmp_path, monkeypatch):
    """The error names the file, and no incomplete file is left behind."""

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    run = Run.create(tmp_path / "run", SMALL, {}, {})
    if lines:
        run.append({"step": 1, "seed": 1})
    before = sorted(path.name for path in run.path.iterdir())
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"cannot be written: No space left.* Free some space"):
        run.update(status="finished")
    assert sorted(path.name for path in run.path.iterdir()) == before
    assert Run(run.path).status == "running"


def test_the_commit_is_of_our_own_files(tmp_path, monkeypatch):
    """The commit is not that of a repository around the virtual environment."""
    git = lambda *command: subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *command], cwd=tmp_path, check=True
    )
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "theirs")
    installed = tmp_path / "runs.py"
    installed.write_text("")
    monkeypatch.setattr(runs, "__file__", str(installed))
    assert runs._commit() is None
    git("add", "runs.py")
    git("commit", "-q", "-m", "ours")
    commit = runs._commit()
    assert commit is not None
    assert len(commit) == 40
    installed.write_text("changed")
    assert runs._commit() == f"{commit}-dirty"


def test_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file", tmp_path / "nowhere"):
        with pytest.raises(
            RunError, match=r"is not a run folder: it has no config\.json\. Name a folder"
        ):
            Run(path)


def test_updates_keep_the_rest(tmp_path):
    run = Run.create(tmp_path / "run", SMALL, {"digits": "1"}, {"digits": True})
    run.update(status="finished")
    again = Run(run.path)
    assert (again.status, again.config, again.published) == ("finished", SMALL, {"digits": True})
    with pytest.raises(RunError, match=r"contains a run already. Continue it \(resume\)"):
        Run.create(run.path, dataclasses.replace(SMALL, steps=5), {}, {})


@pytest.mark.parametrize(
    "fields",
    [
        {"config": {"steps": "many"}},
        {"config": {"steps": 60.5}},
        {"config": {"seeds": [1.5]}},
        {"config": {"speed": 1}},
        {"environment": 3},
        {"environment": {"versions": 3}},
        {"environment": {"cores": "two"}},
        {"status": None},
        {"status": "lost"},
        {"data_files": {"digits": 5}},
        {"published": ["digits"]},
        {"earlier": 5},
        {"run": [1]},
    ],
    ids=str,
)
def test_damaged_fields(tmp_path, fields):
    run = Run.create(tmp_path / "run", SMALL, {}, {})
    rewrite(run.path, **fields)
    with pytest.raises(RunError, match=r"config\.json"):
        Run(run.path)


def test_metrics_that_cannot_be(tmp_path):
    """Impossible lines are left out, with a warning."""
    run = Run.create(tmp_path / "run", SMALL, {}, {})
    good = {"step": 20, "seed": 1, "objective": 0.5}
    run.append(good)
    bad = [
        {"step": 10**400},
        {"seed": 7},
        {"final": "no"},
        {"final": False},
        {"objective": 10**400},
        {"objective": "high"},
        {"objective": True},
    ]
    path = run.path / "metrics.jsonl"
    with path.open("a") as file:
        for fields in bad:
            file.write(json.dumps({**good, **fields, "run": run.identity}) + "\n")
        file.write(json.dumps({**good, "objective": math.inf, "run": run.identity}) + "\n")
    path.write_bytes(path.read_bytes() + path.read_bytes().splitlines(True)[0])
    with pytest.warns(UserWarning, match=r"Ignored: line 2 .step is 10+.*and 6 more"):
        assert list(run.metrics()) == [good]


def test_every_file_has_the_run_s_identity(tmp_path):
    """Files of another run in the folder are not used, and a warning says so."""
    ours, theirs = (Run.create(tmp_path / name, SMALL, {}, {}) for name in ("ours", "theirs"))
    assert ours.identity != theirs.identity
    for number, run in enumerate((ours, theirs)):
        run.append({"step": 20, "seed": 1, "objective": float(number)})
        run.save(20 + number, {"weight": jnp.asarray(float(number))})
    with (ours.path / "metrics.jsonl").open("ab") as file:
        file.write((theirs.path / "metrics.jsonl").read_bytes())
    shutil.copy(theirs.checkpoints()[0], ours.path)
    with pytest.warns(UserWarning, match=r"Ignored: line 2 \(it belongs to another run\)"):
        assert [line["objective"] for line in ours.metrics()] == [0.0]
    with pytest.warns(UserWarning, match="0021.eqx belongs to another run"):
        assert ours.load({"weight": jnp.zeros(())}) == (20, {"weight": 0.0})


def test_a_run_without_identity_is_read(tmp_path):
    """Earlier versions wrote runs without identity."""
    run = Run.create(tmp_path / "run", SMALL, {}, {})
    rewrite(run.path, run=None)
    run = Run(run.path)
    run.append({"step": 20, "seed": 1, "objective": 1.0})
    assert (run.path / "metrics.jsonl").read_text() == (
        '{"step": 20, "seed": 1, "objective": 1.0}\n'
    )
    run.save(20, {"weight": jnp.ones(())})
    assert len(list(run.metrics())) == 1
    assert run.load({"weight": jnp.zeros(())}) == (20, {"weight": 1.0})


@pytest.mark.parametrize("left", ["metrics.jsonl", "checkpoint-0000000020.eqx"])
def test_what_is_left_of_another_run_is_not_taken_over(tmp_path, left):
    (tmp_path / left).write_text("")
    (tmp_path / "checkpoint-best.eqx").write_text("")  # not named like a checkpoint of ours
    with pytest.raises(RunError, match=f"has files of another run, .* missing: {left}. Move them"):
        Run.create(tmp_path, SMALL, {}, {})
    (tmp_path / left).unlink()
    Run.create(tmp_path, SMALL, {}, {})


def test_numbers_that_are_not_finite_are_valid_json(tmp_path):
    run = Run.create(tmp_path / "run", SMALL, {}, {})
    run.append({"step": 20, "seed": 1, "objective": math.inf})
    refuse = lambda word: pytest.fail(word)
    text = (run.path / "metrics.jsonl").read_text()
    assert json.loads(text, parse_constant=refuse)["objective"] is None
    assert math.isnan(next(run.metrics())["objective"])
