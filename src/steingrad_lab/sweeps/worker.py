"""Train one run of a sweep in a process of its own."""

import contextlib
import dataclasses
import json
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import data
from ..training.config import Config, ConfigError, from_json, to_json
from ..training.loop import Diverged, train
from ..training.runs import RunError
from ..training.schedule import Schedule

# How long a run waits for the lock of its folder. A process on a node that Ray has given up may
# take a moment to end.
LOCK_SECONDS = 30.0


@dataclasses.dataclass(frozen=True)
class Job:
    """The task of a worker. Its paths are absolute: a worker may start in another directory."""

    config: Config
    folder: Path
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    data_dir: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the job as JSON values."""
        return {
            "config": to_json(self.config),
            "folder": str(self.folder),
            "schedule": vars(self.schedule),
            "data_dir": None if self.data_dir is None else str(self.data_dir),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Job":
        """Returns the job that `to_json` was called on."""
        return cls(
            from_json(fields["config"]),
            Path(fields["folder"]),
            Schedule(**fields["schedule"]),
            None if fields["data_dir"] is None else Path(fields["data_dir"]),
        )


def attempt(job: Job, cores: int | None = None) -> str | None:
    """Trains a run from its newest checkpoint. Returns an error message, or `None`.

    `cores` is the number of threads. It has no effect if JAX was used before.
    """
    if cores is not None:
        os.environ["PJRT_NPROC"] = str(cores)
    try:
        job.folder.mkdir(parents=True, exist_ok=True)  # for the log of errors
        with warnings.catch_warnings(record=True) as said:
            try:
                train(
                    job.config,
                    job.folder,
                    schedule=job.schedule,
                    resume=True,
                    data_dir=job.data_dir,
                    quiet=True,
                    wait=LOCK_SECONDS,
                )
            finally:
                append_log(job, "".join(f"warning: {warning.message}\n" for warning in said))
    except Exception as error:
        append_log(job, traceback.format_exc())
        if isinstance(error, (ConfigError, RunError, Diverged, data.DataError, OSError)):
            return str(error)
        return f"{type(error).__name__}: {error}"
    return None


def append_log(job: Job, text: str) -> None:
    """Appends messages to `errors.log` in the run folder, as nobody sees a worker's output."""
    if text.strip():
        with contextlib.suppress(OSError), (job.folder / "errors.log").open("ab") as file:
            file.write(text.encode("utf-8", "backslashreplace"))


def main() -> None:
    """Reads the job and the cores from stdin, as a line of JSON. Writes an error to stdout."""
    given = json.loads(sys.stdin.buffer.readline())
    if given["cores"]:
        os.sched_setaffinity(0, given["cores"])
    threading.Thread(target=_die_with_parent, daemon=True).start()
    problem = attempt(Job.from_json(given["job"]), given["threads"])
    if problem is not None:
        print(problem)
        sys.exit(1)


def _die_with_parent() -> None:
    """Exits when stdin is closed, which happens when the sweep ends, even by SIGKILL."""
    while os.read(0, 1):
        pass
    os._exit(1)
