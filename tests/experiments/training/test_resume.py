"""Interrupted, killed, damaged: a run goes on and ends with the same numbers."""

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import time

import pytest

from marks import slow
from small_runs import SCHEDULE, SMALL, lines
from steingrad.experiments import Run, RunError, Schedule, train
from steingrad.experiments.training.resume import environments


def command(*arguments):
    return [sys.executable, "-m", "steingrad", *map(str, arguments)]


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
    assert environments(run, 60) == {}
    monkeypatch.setenv("PJRT_NPROC", "7")
    assert environments(run, 60) == {
        "environment": {**before, "cores": 7},
        "earlier": [{"until_step": 60, "environment": before}],
    }


def test_cutting_and_resuming_change_nothing(trained, tmp_path):
    """Other dispatches, and a stop after 20 steps: the same numbers to the last bit."""
    short = dataclasses.replace(SMALL, steps=20)
    train(short, tmp_path / "run", schedule=Schedule(20, 10), quiet=True)
    resumed = train(SMALL, tmp_path / "run", schedule=Schedule(20, 7), resume=True, quiet=True)
    at_20 = {"step": 20, "seed": 1}
    first, evaluation, *others = lines(resumed)
    assert evaluation.items() >= at_20.items()  # what was final then
    assert "test_bound" in evaluation
    assert [first, *others] == lines(trained)


def test_a_finished_run_is_left_alone(trained):
    before = (trained.path / "metrics.jsonl").read_bytes()
    again = train(SMALL, trained.path, schedule=SCHEDULE, resume=True, quiet=True)
    assert again.status == "finished"
    assert (trained.path / "metrics.jsonl").read_bytes() == before


def test_another_configuration_is_refused(trained):
    other = dataclasses.replace(SMALL, learning_rate=0.5)
    with pytest.raises(RunError, match=r"learning_rate is 0\.001 there and 0\.5 here"):
        train(other, trained.path, resume=True, quiet=True)
    with pytest.raises(RunError, match=r"holds a run already.*resume"):
        train(SMALL, trained.path, quiet=True)
    with pytest.raises(RunError, match="step 60 already"):
        train(dataclasses.replace(SMALL, steps=30), trained.path, resume=True, quiet=True)


def test_a_run_of_format_1_is_not_continued(trained, tmp_path):
    run = copy_of(trained, tmp_path / "run")
    config = {**run.record["config"], "relax_surrogate": False}
    (run.path / "config.json").write_text(json.dumps({**run.record, "format": 1, "config": config}))
    assert Run(run.path).config == SMALL
    with pytest.raises(RunError, match="begun by an earlier version"):
        train(SMALL, run.path, resume=True, quiet=True)
