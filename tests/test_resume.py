"""Interrupted, killed, damaged: a run goes on and ends with the same numbers."""

import shutil
import signal
import subprocess
import sys
import time

import pytest

from marks import slow
from steingrad.experiments import Config, Run, RunError, Schedule, train
from steingrad.experiments.training.loop import _environments

SMALL = Config(
    steps=60, layer_sizes=(6,), hidden=(8,), surrogate_hidden=5, batch_size=20, bound_samples=5
)
SCHEDULE = Schedule(report_every=20, checkpoint_every=20)


pytestmark = pytest.mark.usefixtures("standard_promotion")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, standard_promotion):
    return train(SMALL, tmp_path_factory.mktemp("runs") / "small", schedule=SCHEDULE, quiet=True)


def lines(run):
    """The metrics without what the clock says."""
    return [{k: v for k, v in line.items() if k != "ms_per_step"} for line in run.metrics()]


def command(*arguments):
    return [sys.executable, "-m", "steingrad.cli", *map(str, arguments)]


def test_kill_and_resume(tmp_path):
    """SIGKILL at some moment after the first checkpoint, then --resume."""
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


@pytest.mark.parametrize("damage", ["flip", *slow("truncate", "header", "empty")])
def test_damaged_checkpoint_falls_back(trained, tmp_path, damage):
    run = copy_of(trained, tmp_path / "run")
    newest = run.checkpoints()[0]
    content = bytearray(newest.read_bytes())
    if damage == "truncate":
        content = content[: len(content) // 2]
    elif damage == "flip":
        content[-10] ^= 1
    elif damage == "header":
        content[:5] = b"?????"
    else:
        content = bytearray()
    newest.write_bytes(content)
    run.update(status="running")
    with pytest.warns(UserWarning, match="damaged.*Trying the one before"):
        again = train(SMALL, run.path, schedule=SCHEDULE, resume=True, quiet=True)
    assert lines(again) == lines(trained)


def test_all_checkpoints_damaged(trained, tmp_path):
    """Nothing is lost: the metrics stay, and the user decides."""
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
    assert _environments(run, 60) == {}
    monkeypatch.setenv("PJRT_NPROC", "7")
    assert _environments(run, 60) == {
        "environment": {**before, "cores": 7},
        "earlier": [{"until_step": 60, "environment": before}],
    }
