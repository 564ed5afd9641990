"""One run of a sweep, in a process of its own."""

import contextlib
import dataclasses
import os
import pickle
import platform
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from ... import data
from ..training.config import Config, ConfigError
from ..training.loop import Diverged, train
from ..training.runs import RunError
from ..training.schedule import Schedule

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# For this long a run waits for the process that holds its folder: one whose node was lost may take
# a moment to notice.
LOCK_SECONDS = 30


@dataclasses.dataclass(frozen=True)
class Job:
    """What a worker needs to know. Paths are absolute: it may start in another directory."""

    config: Config
    folder: Path
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    data_dir: Path | None = None


def attempt(job: Job, cores: int | None = None) -> str | None:
    """Train from wherever the run has come to; what went wrong as a sentence, or `None`.

    `cores` is the number of threads; it has an effect as long as JAX has computed nothing yet.
    """
    if cores is not None:
        os.environ["PJRT_NPROC"] = str(cores)
    try:
        with exclusive(job.folder):
            train(
                job.config,
                job.folder,
                schedule=job.schedule,
                resume=True,
                data_dir=job.data_dir,
                quiet=True,
            )
    except Exception as error:
        with contextlib.suppress(OSError), (job.folder / "errors.log").open("a") as log:
            traceback.print_exc(file=log)
        if isinstance(error, (ConfigError, RunError, Diverged, data.DataError, OSError)):
            return str(error)
        return f"{type(error).__name__}: {error}"
    return None


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """No two processes write to one run, such as those of a sweep that was started twice.

    The system gives the lock back when its process dies, however it dies.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+") as file:
        _lock(file, folder)
        file.truncate(0)
        file.write(f"{platform.node()} {os.getpid()}\n")
        file.flush()
        yield


def _lock(file, folder: Path) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while fcntl is not None:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.seek(0)
                host, pid = [*file.read().split(), "?", "?"][:2]
                raise RunError(
                    f"Process {pid} on {host} is at work in {folder}. Wait for it, or stop it."
                ) from None
            time.sleep(0.2)
        except OSError:  # a file system without locks
            return None
    return None


def main() -> None:
    """Read the job and the cores from stdin; write the sentence to stdout, if there is one."""
    job, cores, count = pickle.load(sys.stdin.buffer)
    if cores:
        os.sched_setaffinity(0, cores)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    problem = attempt(job, count)
    if problem is not None:
        print(problem)
        sys.exit(1)


def _die_with_parent() -> None:
    """The sweep keeps our stdin open; it ends when the sweep does, even by SIGKILL."""
    while os.read(0, 1):
        pass
    os._exit(1)
