"""Engines: processes that are killed, and a cluster that loses a node."""

import dataclasses
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest
from here import IMPOSSIBLE, LONG, OFTEN, SMALL, lines, statuses, wait_for

from steingrad_lab.sweeps.engines import Processes, RayCluster
from steingrad_lab.sweeps.plan import plan
from steingrad_lab.sweeps.sweep import sweep
from steingrad_lab.training import ConfigError, RunError, Schedule, train


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
class TestProcesses:
    @pytest.mark.slow
    def test_killed_and_interrupted(self, tmp_path, capsys):
        """One worker is killed, Ctrl-C stops the next, and a third one finishes the run."""
        out, runs, engine = tmp_path / "out", {"run": LONG}, Processes(2)
        pids = []

        def disturb():
            wait_for(lambda: list((out / "run").glob("checkpoint-*.eqx")))
            reached = statuses(runs, out)["run"][1]
            pids.extend(engine.pids)
            os.kill(pids[0], signal.SIGKILL)
            wait_for(lambda: engine.pids not in ([], pids))
            pids.extend(engine.pids)
            wait_for(lambda: statuses(runs, out)["run"][1] > reached)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=disturb)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            sweep(plan(runs, out), out, engine, schedule=OFTEN)
        thread.join()
        assert "The worker was killed (SIGKILL)" in capsys.readouterr().err
        assert len(pids) == 2
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        (planned,) = plan(runs, out)
        assert planned.status == "resumable"
        assert 0 < planned.step < LONG.steps

        # A run that fails does not affect another one.
        both = [planned, *plan({"bad": IMPOSSIBLE}, out)]
        broken = sweep(both, out, Processes(2), schedule=OFTEN, quiet=True)
        assert list(broken) == ["bad"]
        assert broken["bad"].startswith("batch_size is 5000, but digits has only")
        train(LONG, tmp_path / "whole", schedule=OFTEN, quiet=True)
        assert lines(out / "run") == lines(tmp_path / "whole")

    def test_worker_without_a_word(self, tmp_path, monkeypatch):
        """A worker that cannot start is reported with its last line of output."""
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        (tmp_path / "steingrad.py").write_text("raise SystemError('no memory for an import')")
        monkeypatch.chdir(tmp_path)
        out = tmp_path / "out"
        broken = sweep(plan({"run": SMALL}, out), out, Processes(1), quiet=True)
        assert broken["run"] == (
            "The worker ended with code 1: SystemError: no memory for an import"
        )


@pytest.fixture
def loopback():
    """A socket that has an address, and accepts connections once it listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(60)
        yield server


def answer(server, content: bytes):
    connection, _ = server.accept()
    with connection:
        connection.recv(100)
        connection.sendall(content)


class TestAddress:
    """An address without a cluster is refused at once. Ray itself tries for minutes."""

    @pytest.fixture(autouse=True)
    def _ray(self, monkeypatch):
        ray = pytest.importorskip("ray")
        monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray was asked"))

    @pytest.mark.parametrize("form", ["127.0.0.1:{}", "localhost:{}", "ray://127.0.0.1:{}"])
    def test_a_closed_port(self, loopback, form):
        address = form.format(loopback.getsockname()[1])
        with pytest.raises(RunError, match=rf"no Ray cluster at {address} \(.*refused\). Start"):
            RayCluster(address)

    def test_of_the_environment(self, loopback, monkeypatch):
        address = f"127.0.0.1:{loopback.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(RunError, match=f"no Ray cluster at {address}"):
            RayCluster()

    def test_a_server_that_says_nothing(self, loopback, monkeypatch):
        monkeypatch.setattr("steingrad_lab.sweeps.engines.ADDRESS_SECONDS", 0.2)
        loopback.listen()
        with pytest.raises(RunError, match=r"no Ray cluster at .* \(timed out\)"):
            RayCluster(f"127.0.0.1:{loopback.getsockname()[1]}")

    def test_another_kind_of_server(self, loopback):
        loopback.listen()
        content = b"HTTP/1.1 400 Bad Request\r\n\r\n"
        thread = threading.Thread(target=answer, args=(loopback, content))
        thread.start()
        with pytest.raises(RunError, match="another program answers there"):
            RayCluster(f"127.0.0.1:{loopback.getsockname()[1]}")
        thread.join()

    @pytest.mark.parametrize(
        "address", ["somewhere", "host:", ":6379", "host:port", "host:0", "host:70000", "ray://x"]
    )
    def test_no_address(self, address):
        with pytest.raises(ConfigError, match="--address must be host:port"):
            RayCluster(address)

    def test_a_name_that_is_no_host(self):
        with pytest.raises(RunError, match="There is no Ray cluster at"):
            RayCluster(f"{'x' * 300}.invalid:6379")


def owner(folder: Path) -> tuple[int, int] | None:
    """Returns the process that uses a run folder, and its parent."""
    try:
        pid = json.loads((folder / ".owner").read_text())["pid"]
        return pid, int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, ValueError):  # not started, or ended
        return None


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # Ray forks after JAX was used
def test_ray_node_lost(tmp_path):
    """One of two nodes is killed, and its run continues on the other node."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    longer = dataclasses.replace(SMALL, steps=100_000)
    schedule = Schedule(report_every=5000, checkpoint_every=1000)
    runs = {f"seed{seed}": dataclasses.replace(longer, seeds=(seed,)) for seed in (1, 2)}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    lost = cluster.add_node(num_cpus=1)
    raylets = [n.all_processes["raylet"][0].process.pid for n in (cluster.head_node, lost)]
    moves = []

    def there():
        """Returns the run on the node to be killed, once the run has a checkpoint."""
        found = [(name, owner(tmp_path / name)) for name, (_, step) in steps() if step > 0]
        return [(name, who) for name, who in found if who and who[1] == raylets[1]]

    def steps():
        return statuses(runs, tmp_path).items()

    def kill_node():
        wait_for(there, 120)
        ((name, before),) = there()
        cluster.remove_node(lost, allow_graceful=False)
        reached = dict(steps())[name]
        # Compare the process and not its parent: an orphan has another parent until it ends.
        later = lambda: (who := owner(tmp_path / name)) and who[0] != before[0] and who
        wait_for(later, 240)
        moves.append((reached, later()))

    thread = threading.Thread(target=kill_node)
    try:
        engine = RayCluster(cluster.address)
        assert engine.slots == 2
        thread.start()
        planned = plan({**runs, "bad": IMPOSSIBLE}, tmp_path)
        broken = sweep(planned, tmp_path, engine, schedule=schedule, quiet=True)
        thread.join()
    finally:
        cluster.shutdown()
    ((status, step), (_, raylet)) = moves[0]
    assert status == "resumable"
    assert 0 < step < longer.steps
    assert raylet == raylets[0]
    assert list(broken) == ["bad"]
    assert broken["bad"].startswith("batch_size is 5000, but digits has only")
    whole, one_core = tmp_path / "whole", Processes(os.cpu_count())
    assert sweep(plan(runs, whole), whole, one_core, schedule=schedule, quiet=True) == {}
    for name in runs:
        assert lines(tmp_path / name) == lines(whole / name)
