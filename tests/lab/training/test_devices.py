"""Runs on several devices or processes give the same results as on one."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from steingrad_lab.training import Run, RunError
from steingrad_lab.training.devices import ADDRESS, PROCESS, PROCESSES, Devices, join

SETTINGS = [
    "--steps", "40", "--layer-sizes", "6", "--hidden", "8", "--batch-size", "24",
    "--bound-samples", "5", "--report-every", "20", "--checkpoint-every", "20", "--seed", "3",
]  # fmt: skip


def command(*arguments, devices, **environment):
    """Starts `steingrad train` on simulated devices."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, "-m", "steingrad_lab", "train", *SETTINGS, *map(str, arguments)],
        env={
            **os.environ,
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}",
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def numbers(path):
    """Returns all lines of metrics, without measured times."""
    lines = Run(path).metrics()
    return [{k: v for k, v in line.items() if k not in ("ms_per_step", "final")} for line in lines]


def assert_same(one, other):
    ours, theirs = numbers(one), numbers(other)
    assert len(ours) == len(theirs) == 3
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        np.testing.assert_allclose(list(a.values()), list(b.values()), rtol=2e-4)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    path = tmp_path_factory.mktemp("alone") / "run"
    finished(command("--estimator", "bronco", "--out", path, devices=1))
    return path


@pytest.mark.slow
def test_two_devices(alone, tmp_path):
    path = tmp_path / "run"
    finished(command("--estimator", "bronco", "--out", path, "--devices", "2", devices=2))
    assert_same(alone, path)


@pytest.mark.slow
def test_another_seed_is_not_the_same(alone, tmp_path):
    path = tmp_path / "run"
    finished(command("--estimator", "bronco", "--out", path, "--seed", "4", devices=1))
    with pytest.raises(AssertionError):
        assert_same(alone, path)


@pytest.mark.slow
def test_checkpoints_move_between_numbers_of_devices(alone, tmp_path):
    path = tmp_path / "run"
    bronco = ("--estimator", "bronco", "--out", path)
    finished(command(*bronco, "--devices", "8", "--steps", "20", devices=8))
    finished(command(*bronco, "--devices", "2", "--steps", "40", "--resume", devices=8))
    ours, theirs = numbers(path)[-1], numbers(alone)[-1]
    np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [("rodeo",), ("lariat",), ("rloo", "--layer-sizes", "6", "4"), ("rodeo", "--seeds", "1", "2")],
    ids=lambda settings: "-".join(settings).replace("--", ""),
)
def test_eight_devices(settings, tmp_path):
    one, eight = tmp_path / "one", tmp_path / "eight"
    finished(command("--estimator", *settings, "--out", one, devices=8))
    finished(command("--estimator", *settings, "--out", eight, "--devices", "all", devices=8))
    ours, theirs = numbers(one), numbers(eight)
    assert len(ours) == len(theirs) >= 3
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(list(a.values()), list(b.values()), rtol=1e-3)


def processes(number, *arguments):
    """Starts several processes that share one run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return [
        command(
            "--estimator", "bronco", "--devices", "all", *arguments, devices=1,
            **{ADDRESS: address, PROCESSES: str(number), PROCESS: str(process)},
        )
        for process in range(number)
    ]  # fmt: skip


@pytest.mark.slow
def test_two_processes(alone, tmp_path):
    path = tmp_path / "run"
    outputs = [finished(process) for process in processes(2, "--out", path)]
    # Only the last line, because collectives on a CPU also print that they are connected.
    assert outputs[0].splitlines()[-1] == str(path)
    assert str(path) not in outputs[1]
    assert_same(alone, path)
    assert json.loads((path / "config.json").read_text())["status"] == "finished"


@pytest.mark.slow
def test_the_first_process_stops(alone):
    """The first process says what is wrong, and the second ends without waiting for a timeout."""
    first, second = processes(2, "--out", alone)
    _, err = first.communicate(timeout=120)
    assert first.returncode == 1
    assert "contains a run already" in err
    second.communicate(timeout=120)
    assert second.returncode != 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_terminated(tmp_path):
    """SIGTERM, which cluster managers send, ends the run."""
    path = tmp_path / "run"
    (process,) = processes(1, "--out", path, "--steps", "1000000")
    deadline = time.monotonic() + 120
    while not list(path.glob("checkpoint-*.eqx")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert list(path.glob("checkpoint-*.eqx"))
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM


def test_more_devices_than_there_are():
    with pytest.raises(RunError, match=r"999 devices were asked for, but JAX sees 1"):
        Devices.of(999, 100)
    with pytest.raises(RunError, match="0 devices"):
        Devices.of(0, 100)


@pytest.mark.slow
def test_uneven_batch(tmp_path):
    uneven = ("--batch-size", "25", "--devices", "2", "--out", tmp_path / "run")
    process = command(*uneven, devices=2)
    _, err = process.communicate(timeout=300)
    assert process.returncode != 0
    assert "A batch of 25 images cannot be divided evenly among 2 devices" in " ".join(err.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("processes", "process"), [(None, "0"), ("2", None), ("two", "0"), ("2", "2"), ("2", "-1")]
)
def test_half_an_environment(processes, process):
    environment = {ADDRESS: "127.0.0.1:1", PROCESSES: processes, PROCESS: process}
    given = {name: value for name, value in environment.items() if value is not None}
    with pytest.raises(RunError, match=r"JAX_NUM_PROCESSES"):
        join(given)


@pytest.mark.parametrize(
    ("environment", "joins"),
    [
        ({}, []),
        ({"SLURM_NTASKS": "1", "OMPI_COMM_WORLD_SIZE": ""}, []),
        ({"SLURM_NTASKS": "2"}, [()]),
        ({ADDRESS: "host:1", PROCESSES: "2", PROCESS: "1"}, [("host:1", 2, 1)]),
    ],
)
def test_others_are_joined_if_there_are_any(environment, joins, monkeypatch):
    called = []
    monkeypatch.setattr("jax.distributed.initialize", lambda *where, **_: called.append(where))
    join(environment)
    assert called == joins
