"""A run is a folder: `config.json`, `metrics.jsonl`, checkpoints."""

import hashlib
import importlib.metadata
import io
import json
import os
import platform
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

from .config import Config, from_json, to_json
from .stored import FORMAT, RunError, to_present

KEEP = 2


def write_atomically(path: Path, content: bytes) -> None:
    """The file has its old content or all of the new one, whatever happens on the way."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


class Run:
    """A run folder.

    >>> import tempfile
    >>> path, config = Path(tempfile.mkdtemp()) / "first", Config(steps=5)
    >>> run = Run.create(path, config, {"digits": "1234"}, {"digits": True})
    >>> run.append({"step": 5, "seed": 1, "train_elbo": -20.5})
    >>> [line["train_elbo"] for line in run.metrics()], run.config.steps, run.status
    ([-20.5], 5, 'running')
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        try:
            self.record = json.loads((self.path / "config.json").read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(
                f"{self.path} is not a run: it has no config.json. Name the folder that "
                "`steingrad train` wrote."
            ) from None
        except json.JSONDecodeError as error:
            raise RunError(f"{self.path / 'config.json'} is damaged: {error}.") from None
        if not isinstance(self.record, dict) or not isinstance(self.record.get("config"), dict):
            raise RunError(f"{self.path / 'config.json'} was not written by `steingrad train`.")
        try:
            present = to_present(self.record)
        except RunError as error:
            raise RunError(f"{self.path / 'config.json'}: {error}") from None
        self.config = from_json(present["config"])
        self.published: Mapping[str, bool | None] = present["published"]

    @classmethod
    def create(
        cls,
        path: Path,
        config: Config,
        data_files: Mapping[str, str],
        published: Mapping[str, bool],
    ) -> "Run":
        """A new run in an empty or absent folder.

        Of each data file the record has the SHA-256, and whether it is the published one.
        """
        cls.refuse_existing(path)
        path.mkdir(parents=True, exist_ok=True)
        record = {
            "format": FORMAT,
            "status": "running",
            "config": to_json(config),
            "data_files": dict(data_files),
            "published": dict(published),
            "environment": environment(),
        }
        write_atomically(path / "config.json", json.dumps(record, indent=2).encode())
        return cls(path)

    @staticmethod
    def refuse_existing(path: Path) -> None:
        """Raise if there is a run in this folder."""
        if (path / "config.json").exists():
            raise RunError(
                f"{path} holds a run already. Go on with it (resume), or name another folder."
            )

    @property
    def status(self) -> str:
        """`running` (or interrupted), `finished` or `diverged`."""
        return self.record["status"]

    def update(self, **fields: Any) -> None:
        """Change fields of `config.json`, such as `status`."""
        self.record = {**self.record, **fields}
        write_atomically(self.path / "config.json", json.dumps(self.record, indent=2).encode())
        self.config = from_json(to_present(self.record)["config"])

    def append(self, metrics: Mapping[str, Any]) -> None:
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(metrics) + "\n")

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The lines of `metrics.jsonl`; one cut off by a crash is left out."""
        path = self.path / "metrics.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                warnings.warn(f"{path} has a damaged line, left out: {line[:60]!r}", stacklevel=2)

    def rewind(self, step: int, steps: int) -> None:
        """Forget the metrics after `step`, which are about to be made again on the way to `steps`.

        What was final for fewer steps stays, as an evaluation on the way.
        """
        path = self.path / "metrics.jsonl"
        kept = []
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                metrics = json.loads(line)
            except json.JSONDecodeError:
                continue  # cut off by a crash
            if metrics.get("final") and metrics["step"] < steps:
                del metrics["final"]
            if metrics["step"] <= step and not metrics.get("final"):
                kept.append(json.dumps(metrics) + "\n")
        write_atomically(path, "".join(kept).encode())

    def checkpoints(self) -> list[Path]:
        """From the newest to the oldest."""
        return sorted(self.path.glob("checkpoint-*.eqx"), reverse=True)

    def save(self, step: int, state: Any) -> None:
        """Write a checkpoint: a line of JSON with a checksum, then the arrays (no pickle)."""
        buffer = io.BytesIO()
        eqx.tree_serialise_leaves(buffer, state)
        payload = buffer.getvalue()
        header = {"format": FORMAT, "step": step, "sha256": hashlib.sha256(payload).hexdigest()}
        content = json.dumps(header).encode() + b"\n" + payload
        write_atomically(self.path / f"checkpoint-{step:010d}.eqx", content)
        for old in self.checkpoints()[KEEP:]:
            old.unlink()

    def load(self, like: Any) -> tuple[int, Any] | None:
        """The step and the state of the newest good checkpoint; `None` if there is none."""
        for path in self.checkpoints():
            try:
                return _read_checkpoint(path, like)
            except RunError as error:
                warnings.warn(f"{error} Trying the one before.", stacklevel=2)
        return None


def _read_checkpoint(path: Path, like: Any) -> tuple[int, Any]:
    header_line, _, payload = path.read_bytes().partition(b"\n")
    try:
        header = json.loads(header_line)
        form, step, checksum = header["format"], header["step"], header["sha256"]
    except (ValueError, KeyError, TypeError):
        raise RunError(f"The checkpoint {path} is damaged: its header cannot be read.") from None
    if form != FORMAT:
        raise RunError(
            f"The checkpoint {path} has format {form}, which only the version of steingrad that "
            f"wrote it can read; this one reads {FORMAT}."
        )
    if hashlib.sha256(payload).hexdigest() != checksum:
        raise RunError(f"The checkpoint {path} is damaged: its checksum does not match.")
    try:
        return step, eqx.tree_deserialise_leaves(io.BytesIO(payload), like)
    except (RuntimeError, ValueError, EOFError, TypeError) as error:
        raise RunError(
            f"The checkpoint {path} does not fit this model: {str(error).splitlines()[0]}."
        ) from None


def environment() -> dict[str, Any]:
    """The versions and the machine, for the record."""
    packages = ("steingrad", "jax", "jaxlib", "equinox", "optax", "numpy")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": jax.devices()[0].device_kind,
        "cores": _cores(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "commit": _commit(),
    }


def _cores() -> int | None:
    """Those that this process may use: a worker of a sweep has its share."""
    share = os.environ.get("PJRT_NPROC")
    if share:
        return int(share)
    own = getattr(os, "sched_getaffinity", None)
    return len(own(0)) if own else os.cpu_count()


def _commit() -> str | None:
    """The commit of the source tree, if steingrad runs from one."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=5,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
