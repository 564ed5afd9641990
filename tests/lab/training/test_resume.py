"""Interrupted, killed or damaged runs continue and end with the same numbers."""

import contextlib
import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from marks import slow
from small_runs import PLAIN, SCHEDULE, SMALL, lines
from steingrad_lab.training import Run, RunError, Schedule, train
from steingrad_lab.training.lock import sole_owner
from steingrad_lab.training.resume import environments
from steingrad_lab.training.task import load_trained


def command(*arguments):
    return [sys.executable, "-m", "steingrad_lab", *map(str, arguments)]


@pytest.mark.slow
def test_kill_and_resume(tmp_path):
    """Kills a run after its first checkpoint and continues it with --resume."""
    arguments = [
        "train", "--steps", 600, "--layer-sizes", 20, "--hidden", 30, "--report-every", 50,
        "--checkpoint-every", 50, "--bound-samples", 5, "--surrogate-hidden", 10,
    ]  # fmt: skip
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen(
        command(*arguments, "--out", killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not list(killed.glob("checkpoint-*.eqx")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.15)
    process.send_signal(signal.SIGKILL)
    process.wait()
    reached = Run(killed).checkpoints()[0].name
    assert "checkpoint-0000000600" not in reached, "killed too late to show anything"
    for out, extra in ((killed, ["--resume"]), (whole, [])):
        done = subprocess.run(
            command(*arguments, "--out", out, *extra), capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
    assert Run(killed).status == "finished"
    assert lines(Run(killed)) == lines(Run(whole))


def copy_of(run, path):
    shutil.copytree(run.path, path)
    return Run(path)


@contextlib.contextmanager
def warned(*says):
    """Expects exactly these warnings, in this order."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    assert len(said) == len(says), [str(one.message) for one in said]
    for one, expected in zip(said, says, strict=True):
        assert re.search(expected, str(one.message))


@pytest.mark.parametrize("damage", ["flip", "infinite", *slow("truncate", "header", "empty")])
def test_damaged_checkpoint_falls_back(trained, tmp_path, damage):
    run = copy_of(trained, tmp_path / "run")
    newest = run.checkpoints()[0]
    content = bytearray(newest.read_bytes())
    if damage == "truncate":
        content = content[: len(content) // 2]
    elif damage == "flip":
        content[-10] ^= 1
    elif damage == "infinite":
        content = content.replace(b'"lines": ', b'"lines": Infinity, "": ', 1)
    elif damage == "header":
        content[:5] = b"?????"
    else:
        content = bytearray()
    newest.write_bytes(content)
    run.update(status="running")
    with warned("damaged.*Trying the previous", "continues from step 40.*0060.unused"):
        again = train(SMALL, run.path, schedule=SCHEDULE, resume=True, quiet=True)
    assert lines(again) == lines(trained)
    assert (run.path / "checkpoint-0000000060.unused").read_bytes() == content


def test_all_checkpoints_damaged(trained, tmp_path):
    """The metrics are kept, and the user decides what to do."""
    run = copy_of(trained, tmp_path / "run")
    for path in run.checkpoints():
        path.write_bytes(b"")
    run.update(status="running")
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(RunError, match="Delete them"):
        train(SMALL, run.path, schedule=SCHEDULE, resume=True, quiet=True)
    assert lines(run) == lines(trained)


def test_what_was_final_stays_when_a_run_is_extended(trained, tmp_path):
    for steps, kept in ((60, False), (100, True)):
        run = copy_of(trained, tmp_path / str(steps))
        final = lines(run)[-1]
        run.rewind(60, steps)
        del final["final"]
        assert (lines(run)[-1] == final) == kept
        assert not any("final" in line for line in run.metrics())


def test_going_on_elsewhere_is_recorded(trained, tmp_path, monkeypatch):
    run = copy_of(trained, tmp_path / "run")
    before = run.record["environment"]
    assert environments(run, 60) == {}
    monkeypatch.setenv("PJRT_NPROC", "7")
    assert environments(run, 60) == {
        "environment": {**before, "cores": 7},
        "earlier": [{"until_step": 60, "environment": before}],
    }


def test_cutting_and_resuming_change_nothing(trained, tmp_path):
    """Other dispatches and a stop after 20 steps give the same numbers, bit for bit."""
    short = dataclasses.replace(SMALL, steps=20)
    train(short, tmp_path / "run", schedule=Schedule(20, 10), quiet=True)
    resumed = train(SMALL, tmp_path / "run", schedule=Schedule(20, 7), resume=True, quiet=True)
    at_20 = {"step": 20, "seed": 1}
    first, evaluation, *others = lines(resumed)
    assert evaluation.items() >= at_20.items()  # the final evaluation of the shorter run
    assert "test_bound" in evaluation
    assert [first, *others] == lines(trained)


def test_a_finished_run_is_left_alone(trained):
    before = (trained.path / "metrics.jsonl").read_bytes()
    again = train(SMALL, trained.path, schedule=SCHEDULE, resume=True, quiet=True)
    assert again.status == "finished"
    assert (trained.path / "metrics.jsonl").read_bytes() == before


def test_images_of_one_s_own_are_those_of_the_run(tmp_path):
    """The user's own images may move, but other images are refused."""
    images = np.random.default_rng(0).random((60, 4, 4))
    place, moved = tmp_path / "own.npz", tmp_path / "moved.npz"
    np.savez(place, train=images)
    config = dataclasses.replace(PLAIN, dataset=str(place), steps=5)
    train(config, tmp_path / "run", quiet=True)
    place.rename(moved)
    with pytest.raises(RunError, match="no longer exists"):
        load_trained(tmp_path / "run")
    assert load_trained(tmp_path / "run", own=moved)[2] == 5
    further = dataclasses.replace(config, dataset=str(moved), steps=6)
    assert train(further, tmp_path / "run", resume=True, quiet=True).status == "finished"
    np.savez(place, train=1 - images)
    with pytest.raises(RunError, match="was trained on other data"):
        load_trained(tmp_path / "run", own=place)
    with pytest.raises(RunError, match="was trained on other data"):
        train(config, tmp_path / "run", resume=True, quiet=True)


def test_another_configuration_is_refused(trained):
    other = dataclasses.replace(SMALL, learning_rate=0.5)
    with pytest.raises(RunError, match=r"learning_rate is 0\.001 in the folder, but 0\.5 is given"):
        train(other, trained.path, resume=True, quiet=True)
    with pytest.raises(RunError, match=r"contains a run already.*resume"):
        train(SMALL, trained.path, quiet=True)
    with pytest.raises(RunError, match="reached step 60 already"):
        train(dataclasses.replace(SMALL, steps=30), trained.path, resume=True, quiet=True)


def test_a_run_of_format_1_is_not_continued(trained, tmp_path):
    run = copy_of(trained, tmp_path / "run")
    config = {**run.record["config"], "relax_surrogate": False}
    (run.path / "config.json").write_text(json.dumps({**run.record, "format": 1, "config": config}))
    assert Run(run.path).config == SMALL
    with pytest.raises(RunError, match="started by an earlier version"):
        train(SMALL, run.path, resume=True, quiet=True)


CUT = "metrics.jsonl is damaged. Ignored: line 3 .not JSON."
LACKS = "lacks 1 of its 3 lines of metrics up to step 60. Trying the previous checkpoint"
ASIDE = "continues from step 40. Newer checkpoints are kept as checkpoint-0000000060.unused"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            lambda text: b"".join(text.splitlines(True)[:2]) + b'{"step": 6',
            (CUT, LACKS, ASIDE, CUT),
        ),
        (lambda text: b"[1]\n" + text, ("line 1 .not an object.", "line 1")),
        (lambda text: text + text, ("line 5 .it is a copy of an earlier line.", "line 5")),
        *slow((lambda text: b"\xff\n" + text, ("line 1 .not JSON.", "line 1"))),
    ],
)
def test_damaged_metrics_fall_back(trained, tmp_path, damage, says):
    """The run continues from the newest checkpoint with complete metrics."""
    run = copy_of(trained, tmp_path / "run")
    path = run.path / "metrics.jsonl"
    path.write_bytes(damage(path.read_bytes()))
    run.update(status="running")
    with warned(*says):
        again = train(SMALL, run.path, schedule=SCHEDULE, resume=True, quiet=True)
    assert lines(again) == lines(trained)


def test_metrics_that_no_checkpoint_brings_back(trained, tmp_path):
    run = copy_of(trained, tmp_path / "run")
    (run.path / "metrics.jsonl").unlink()
    lacks = "lacks 3 of its 3 lines of metrics up to step 60"
    with warned(lacks, "continues without the missing metrics"):
        again = train(SMALL, run.path, schedule=SCHEDULE, resume=True, quiet=True)
    assert lines(again) == lines(trained)[-1:]  # evaluated again


@pytest.mark.slow
def test_without_checkpoints_a_run_begins_again(trained, tmp_path):
    run = copy_of(trained, tmp_path / "run")
    for path in run.checkpoints():
        path.unlink()
    with warned("has no checkpoint. The run restarts from its first step"):
        again = train(SMALL, run.path, schedule=SCHEDULE, resume=True, quiet=True)
    assert lines(again) == lines(trained)


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_newest_checkpoint_that_is_no_file(trained, tmp_path, kind):
    run = copy_of(trained, tmp_path / "run")
    newest = run.checkpoints()[0]
    newest.unlink()
    newest.mkdir() if kind == "folder" else newest.symlink_to("nowhere")
    with warned("0060.eqx cannot be read: (Is a directory|No such file)", ASIDE):
        again = train(SMALL, run.path, schedule=SCHEDULE, resume=True, quiet=True)
    assert lines(again) == lines(trained)


def test_metrics_are_on_the_disk_before_the_checkpoint(tmp_path, monkeypatch):
    """The metrics are flushed before the checkpoint, and the folder is flushed last."""
    run = Run.create(tmp_path / "run", SMALL, {}, {})
    flushed, fsync = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: flushed.append(os.readlink(f"/proc/self/fd/{fd}")) or fsync(fd)
    )
    run.append({"step": 20, "seed": 1, "objective": 1.0})
    run.save(20, {})
    names = [Path(path).name for path in flushed]
    assert names == ["metrics.jsonl", ".checkpoint-0000000020.eqx.tmp", "run"]


def test_one_owner(tmp_path):
    """A second process is refused before it writes, and told which process has the lock."""
    with sole_owner(tmp_path / "run"):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(
            RunError, match=rf"run is in use by process {os.getpid()} on \S+\. Wait"
        ):
            train(SMALL, tmp_path / "run", quiet=True)
        assert sorted(tmp_path.rglob("*")) == before
    with sole_owner(tmp_path / "run"):  # the lock was released
        pass


HOLD = """
import sys, pathlib
from steingrad_lab.training.lock import sole_owner
with sole_owner(pathlib.Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a file that is in use cannot be deleted")
@pytest.mark.parametrize("deleted", [[".lock"], [".lock", ".owner"]], ids=str)
def test_one_owner_although_the_lock_is_deleted(tmp_path, deleted):
    """Another process holds the lock, and its files are deleted. The lock ends with the process."""
    folder = tmp_path / "run"
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        for name in deleted:
            (folder / name).unlink()
        who = "another process" if ".owner" in deleted else f"process {other.pid} on"
        with pytest.raises(RunError, match=f"run is in use by {who}"), sole_owner(folder, 0.3):
            pytest.fail("two owners")
        other.kill()
        other.wait()
        with sole_owner(folder):
            assert json.loads((folder / ".owner").read_text())["pid"] == os.getpid()


def test_one_owner_where_folders_cannot_be_locked(tmp_path, monkeypatch):
    """On some network shares only files can be locked."""

    def refuse(*_):
        raise OSError(errno.EBADF, "Bad file descriptor")

    system = SimpleNamespace(flock=refuse, LOCK_EX=2, LOCK_NB=4)
    monkeypatch.setattr("steingrad_lab.training.lock.fcntl", system)
    with sole_owner(tmp_path), pytest.raises(RunError, match="is in use"), sole_owner(tmp_path):
        pytest.fail("two owners")
