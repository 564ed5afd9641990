"""Engines that train the runs of a sweep: processes of this machine, or a Ray cluster."""

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from typing import IO, Any, Protocol, runtime_checkable

from ..training.config import ConfigError
from ..training.runs import RunError
from .worker import Job, append_log, attempt

# How many times Ray restarts a run if its worker or node is lost.
RAY_RETRIES = 3
MOST_WORKERS = 1000
# How long to wait for the server at the address of a Ray cluster.
ADDRESS_SECONDS = 5.0
# The first bytes of a connection by gRPC, which Ray uses, and the kind of the first answer.
HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
HTTP2_SETTINGS = b"\x04"
# With -P, modules in the current folder are not imported by mistake.
PYTHON = (sys.executable, "-P", "-c")


@runtime_checkable
class Engine(Protocol):
    """Trains runs in the background. The sweep decides on their order and on retries."""

    slots: int
    """How many runs can be active at a time."""

    def accelerated(self) -> bool:
        """Whether runs use an accelerator."""
        ...

    def start(self, job: Job) -> None: ...

    def finished(self) -> list[tuple[Job, str | None]]:
        """Returns the runs that ended since the last call, each with an error message or `None`."""
        ...

    def stop(self) -> None:
        """Stops all active runs."""
        ...


class Processes:
    """Processes of this machine, each on a part of the cores."""

    def __init__(self, workers: int | None = None):
        self.slots = _at_least_one(1 if workers is None else workers)
        there = getattr(os, "sched_getaffinity", None)
        cores = sorted(there(0)) if there else list(range(os.cpu_count() or 1))
        self._share = max(1, len(cores) // self.slots)
        starts = [(i * self._share) % len(cores) for i in range(self.slots)]
        self._free = deque(cores[i : i + self._share] if there else [] for i in starts)
        self._running: list[tuple[Job, subprocess.Popen, IO[bytes], list[int]]] = []

    def accelerated(self) -> bool:
        # JAX would reserve the accelerator's memory in this process, so another process is asked.
        code = "import jax; print(jax.default_backend())"
        done = subprocess.run([*PYTHON, code], capture_output=True, text=True)
        return done.returncode == 0 and done.stdout.split()[-1:] not in ([], ["cpu"])

    @property
    def pids(self) -> list[int]:
        return [process.pid for _, process, _, _ in self._running]

    def start(self, job: Job) -> None:
        cores = self._free.popleft()
        log = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the process has ended)
        environment = dict(os.environ)
        if self.slots > 1:  # by default each process takes 0.75 of an accelerator's memory
            fraction = f"{0.75 / self.slots:.3f}"
            environment.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", fraction)
        process = subprocess.Popen(
            [*PYTHON, "from steingrad_lab.sweeps.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches only the sweep, which stops its workers
        )
        self._running.append((job, process, log, cores))
        assert process.stdin is not None
        given = {"job": job.to_json(), "cores": cores, "threads": self._share}
        with contextlib.suppress(BrokenPipeError):  # `finished` reports a process that has died
            process.stdin.write(json.dumps(given).encode() + b"\n")
            process.stdin.flush()

    def finished(self) -> list[tuple[Job, str | None]]:
        ended = [entry for entry in self._running if entry[1].poll() is not None]
        self._running = [entry for entry in self._running if entry not in ended]
        results = []
        for job, process, log, cores in ended:
            output = process.communicate()[0].decode(errors="replace").strip()
            log.seek(0)
            errors = log.read().decode(errors="replace")
            log.close()
            self._free.append(cores)
            results.append((job, _problem(job, process.returncode, output, errors)))
        return results

    def stop(self) -> None:
        for _, process, log, cores in self._running:
            process.kill()  # safe, because a run can be resumed at any time
            process.communicate()
            log.close()
            self._free.append(cores)
        self._running = []


def _problem(job: Job, code: int, output: str, errors: str) -> str | None:
    """Returns an error message, or `None`. The output of a crash is kept in the run folder."""
    if code == 0:
        return None
    append_log(job, errors)
    if output:
        return output
    if code == -getattr(signal, "SIGKILL", 9):
        return "The worker was killed (SIGKILL), probably for lack of memory. Use fewer workers."
    how = f"by signal {-code}" if code < 0 else f"with code {code}"
    last = errors.strip().splitlines()[-1:] or ["there was no message"]
    return f"The worker ended {how}: {last[0]}"


class RayCluster:
    """A Ray cluster. The run folders must be on a file system that all nodes share."""

    def __init__(self, address: str | None = None, workers: int | None = None):
        try:
            import ray  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise ConfigError(
                "The engine ray needs the package ray, which is not installed: "
                "run pip install 'steingrad[ray]'."
            ) from None
        if workers is not None:
            _at_least_one(workers)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        _check_address(address or os.environ.get("RAY_ADDRESS"))
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError) as error:
            raise RunError(
                f"There is no Ray cluster at {address} ({error}). Start one, or correct --address."
            ) from None
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cores = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
        if not cores:
            ray.shutdown()
            raise RunError("The Ray cluster has no node with a CPU core. Add a node with one.")
        self.slots = workers or len(cores)
        # A run cannot use the cores of several nodes.
        self._share = max(1, min(sum(cores) // self.slots, min(cores)))
        self._gpus = any(node.get("GPU", 0) for node in nodes)
        self._ray: Any = ray
        remote: Any = ray.remote(
            num_cpus=self._share,
            num_gpus=int(self._gpus),
            max_retries=RAY_RETRIES,
            max_calls=1,  # a new process for each run, as JAX reads its cores when it starts
        )
        self._attempt = remote(attempt)
        self._running: dict[Any, Job] = {}

    def accelerated(self) -> bool:
        return self._gpus

    def start(self, job: Job) -> None:
        self._running[self._attempt.remote(job, self._share)] = job

    def finished(self) -> list[tuple[Job, str | None]]:
        if not self._running:
            return []
        references = list(self._running)
        ready, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        return [(self._running.pop(reference), self._result(reference)) for reference in ready]

    def _result(self, reference: Any) -> str | None:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return f"Ray could not complete the run: {str(error).strip().splitlines()[0]}"

    def stop(self) -> None:
        self._running = {}
        self._ray.shutdown()  # also stops the tasks that this program started


def _check_address(address: str | None) -> None:
    """Raises unless a server of Ray answers at `host:port`. Ray itself would try for minutes."""
    if address in (None, "", "auto", "local"):
        return
    kind, _, place = address.rpartition("://")
    host, _, port = place.rpartition(":")
    if kind not in ("", "ray"):
        return  # an address of a service that only Ray knows
    if not (host and port.isdecimal() and 0 < int(port) < 2**16):
        raise ConfigError(f"--address must be host:port, such as 10.0.0.1:6379, not {address!r}.")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ADDRESS_SECONDS) as server:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return
            server.settimeout(ADDRESS_SECONDS)
            server.sendall(HTTP2_HELLO)
            why = "" if server.recv(9)[3:4] == HTTP2_SETTINGS else "another program answers there"
    except (OSError, ValueError) as error:  # ValueError: impossible names of hosts
        why = str(error)
    if why:
        raise RunError(
            f"There is no Ray cluster at {address} ({why}). Start one, or correct --address."
        )


def _at_least_one(workers: int) -> int:
    if workers < 1:
        raise ConfigError(f"workers must be 1 or more, not {workers}.")
    if workers > MOST_WORKERS:
        raise ConfigError(f"workers must be at most {MOST_WORKERS}, not {workers}.")
    return workers
