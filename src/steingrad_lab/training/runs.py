"""A run is a folder: `config.json`, `metrics.jsonl`, checkpoints."""

import contextlib
import errno
import hashlib
import importlib.metadata
import io
import itertools
import json
import os
import platform
import re
import secrets
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax

from .config import Config, ConfigError, from_json, to_json
from .stored import FORMAT, RunError, json_line, parse_metrics, to_present

KEEP = 2
CHECKPOINT = re.compile(r"checkpoint-(\d+)\.eqx")


def write_atomically(path: Path, content: bytes) -> None:
    """The file has its old content or all of the new one, whatever happens on the way."""
    temporary = path.with_name(f".{path.name}.tmp")
    with _writing(path):
        try:
            with temporary.open("wb") as file:
                file.write(content)
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):  # half a file would fill a disk that is full already
                temporary.unlink()
            raise
    with contextlib.suppress(OSError):  # the new name too; not every system can
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """What the system says of a file that cannot be written becomes a sentence with its name."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = " Make room, then go on: a run with --resume." if full else ""
        raise RunError(f"{path} cannot be written: {error.strerror}.{advice}") from None


class Stored(NamedTuple):
    """A checkpoint that was read."""

    step: int
    state: Any
    lines: int
    """Lines of metrics that the run had written by then."""


class Run:
    """A run folder.

    All files of a run carry its identity, a random number made with it: those of another run are
    not taken for its own. (Runs of earlier versions have none, and neither have their files.)

    >>> import tempfile
    >>> path, config = Path(tempfile.mkdtemp()) / "first", Config(steps=5)
    >>> run = Run.create(path, config, {"digits": "1234"}, {"digits": True})
    >>> run.append({"step": 5, "seed": 1, "train_elbo": -20.5})
    >>> [line["train_elbo"] for line in run.metrics()], run.config.steps, run.status
    ([-20.5], 5, 'running')
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        place = self.path / "config.json"
        try:
            self.record = json.loads(place.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(
                f"{self.path} is not a run: it has no config.json. Name the folder that "
                "`steingrad train` wrote."
            ) from None
        except OSError as error:
            raise RunError(f"{place} cannot be read: {error.strerror}.") from None
        except (ValueError, RecursionError) as error:
            raise RunError(f"{place} is damaged: {error}.") from None
        try:
            present = to_present(self.record)
            self.config = from_json(present["config"])
        except (RunError, ConfigError) as error:
            raise RunError(f"{place}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(
                f"{place} is damaged, its settings cannot be read: {type(error).__name__}, {error}."
            ) from None
        self.published: Mapping[str, bool | None] = present["published"]

    @classmethod
    def create(
        cls,
        path: Path,
        config: Config,
        data_files: Mapping[str, str],
        published: Mapping[str, bool],
    ) -> "Run":
        """A new run in a folder that holds nothing of another one.

        Of each data file the record has the SHA-256, and whether it is the published one.
        """
        cls.refuse_existing(path)
        path.mkdir(parents=True, exist_ok=True)
        record = {
            "format": FORMAT,
            "run": secrets.token_hex(8),
            "status": "running",
            "config": to_json(config),
            "data_files": dict(data_files),
            "published": dict(published),
            "environment": environment(),
        }
        write_atomically(path / "config.json", json.dumps(record, indent=2).encode())
        return cls(path)

    @staticmethod
    def there(path: Path) -> bool:
        """Whether a folder holds a run, good or damaged."""
        return os.path.lexists(path / "config.json")

    @classmethod
    def refuse_existing(cls, path: Path) -> None:
        """Raise if there is a run in this folder, or what is left of one."""
        if cls.there(path):
            raise RunError(
                f"{path} holds a run already. Go on with it (resume), or name another folder."
            )
        left = [path / "metrics.jsonl", *checkpoints(path)]
        left = [file.name for file in left if os.path.lexists(file)]
        if left:
            raise RunError(
                f"{path} has files of another run, whose config.json is gone: {', '.join(left)}. "
                "Move them away, or name another folder."
            )

    @property
    def status(self) -> str:
        """`running` (or interrupted), `finished` or `diverged`."""
        return self.record["status"]

    @property
    def identity(self) -> str | None:
        return self.record.get("run")

    def update(self, **fields: Any) -> None:
        """Change fields of `config.json`, such as `status`."""
        self._flush()
        self.record = {**self.record, **fields}
        write_atomically(self.path / "config.json", json.dumps(self.record, indent=2).encode())
        self.config = from_json(to_present(self.record)["config"])

    @property
    def _metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    def append(self, metrics: Mapping[str, Any]) -> None:
        with _writing(self._metrics_path), self._metrics_path.open("a") as file:
            file.write(self._line(metrics))

    def _line(self, metrics: Mapping[str, Any]) -> str:
        own = {} if self.identity is None else {"run": self.identity}
        return json_line({**metrics, **own}) + "\n"

    def _written(self) -> int:
        path = self._metrics_path
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def _flush(self) -> None:
        """What the metrics say is on the disk before anything that follows from it."""
        if self._metrics_path.exists():
            with _writing(self._metrics_path), self._metrics_path.open("ab") as file:
                os.fsync(file.fileno())

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The lines of `metrics.jsonl`; what is damaged or of another run is left out, and said."""
        path = self._metrics_path
        content = path.read_bytes() if path.exists() else b""
        left_out, seen = [], set()
        for number, line in enumerate(content.split(b"\n"), 1):
            if not line:
                continue
            try:
                found = parse_metrics(line)
                if found.pop("run", None) != self.identity:
                    raise ValueError("of another run")
                if found["seed"] not in self.config.seeds:
                    raise ValueError(f"of seed {found['seed']}, which this run has not")
                if line in seen:
                    raise ValueError("there before")
            except ValueError as error:
                left_out.append(f"line {number} ({error})")
                continue
            seen.add(line)
            yield found
        if left_out:
            more = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
            warnings.warn(
                f"{path} is damaged: {', '.join(left_out[:3])}{more} left out.", stacklevel=2
            )

    def rewind(self, step: int, steps: int) -> None:
        """Forget the metrics after `step`, which are about to be made again on the way to `steps`.

        What was final for fewer steps stays, as an evaluation on the way.
        """
        kept = []
        for metrics in self.metrics():
            if metrics.get("final") and metrics["step"] < steps:
                del metrics["final"]
            if metrics["step"] <= step and not metrics.get("final"):
                kept.append(self._line(metrics))
        write_atomically(self._metrics_path, "".join(kept).encode())

    def checkpoints(self) -> list[Path]:
        """From the newest to the oldest."""
        return checkpoints(self.path)

    def save(self, step: int, state: Any) -> None:
        """Write a checkpoint: a line of JSON with a checksum, then the arrays (no pickle)."""
        self._flush()
        buffer = io.BytesIO()
        eqx.tree_serialise_leaves(buffer, state)
        payload = buffer.getvalue()
        header = {
            "format": FORMAT,
            "run": self.identity,
            "step": step,
            "lines": self._written(),
            "sha256": hashlib.sha256(payload).hexdigest(),
        }
        content = json.dumps(header).encode() + b"\n" + payload
        write_atomically(self.path / f"checkpoint-{step:010d}.eqx", content)
        for old in self.checkpoints()[KEEP:]:
            with contextlib.suppress(OSError):  # a folder of that name is not ours to remove
                old.unlink()

    def stored(self, like: Any) -> Iterator[Stored]:
        """The good checkpoints, from the newest on; a warning about each of the others."""
        for path in self.checkpoints():
            try:
                yield self._read(path, like)
            except RunError as error:
                warnings.warn(f"{error} Trying the one before.", stacklevel=2)

    def load(self, like: Any) -> tuple[int, Any] | None:
        """The step and the state of the newest good checkpoint; `None` if there is none."""
        return next(((found.step, found.state) for found in self.stored(like)), None)

    def set_aside(self, step: int) -> list[Path]:
        """Rename the checkpoints after `step`: they would be taken for newer than what follows."""
        renamed = []
        for path in self.checkpoints():
            if checkpoint_step(path) > step:
                names = (path.with_suffix(f".unused{number or ''}") for number in itertools.count())
                renamed.append(path.rename(next(n for n in names if not os.path.lexists(n))))
        return renamed

    def _read(self, path: Path, like: Any) -> Stored:
        try:
            header_line, _, payload = path.read_bytes().partition(b"\n")
        except OSError as error:
            raise RunError(f"The checkpoint {path} cannot be read: {error.strerror}.") from None
        try:
            header = json.loads(header_line)
            form, step, checksum = header["format"], header["step"], header["sha256"]
            owner, lines = header.get("run"), header.get("lines", 0)
            if any(type(number) is not int or number < 0 for number in (form, step, lines)):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise RunError(
                f"The checkpoint {path} is damaged: its header cannot be read."
            ) from None
        if form != FORMAT:
            raise RunError(
                f"The checkpoint {path} has format {form}, which only the version of steingrad "
                f"that wrote it can read; this one reads {FORMAT}."
            )
        if owner != self.identity:
            raise RunError(f"The checkpoint {path} is of another run.")
        if step != checkpoint_step(path):
            raise RunError(f"The checkpoint {path} is of step {step}, which its name does not say.")
        if hashlib.sha256(payload).hexdigest() != checksum:
            raise RunError(f"The checkpoint {path} is damaged: its checksum does not match.")
        try:
            state = eqx.tree_deserialise_leaves(io.BytesIO(payload), like)
        except (RuntimeError, ValueError, EOFError, TypeError) as error:
            raise RunError(
                f"The checkpoint {path} does not fit this model: {str(error).splitlines()[0]}."
            ) from None
        return Stored(step, state, lines)


def checkpoints(folder: Path) -> list[Path]:
    """Of a run folder, from the newest to the oldest."""
    found = [path for path in folder.glob("checkpoint-*.eqx") if CHECKPOINT.fullmatch(path.name)]
    return sorted(found, key=checkpoint_step, reverse=True)


def checkpoint_step(path: Path) -> int:
    """
    >>> checkpoint_step(Path("checkpoint-0000000040.eqx"))
    40
    """
    return int(path.stem.removeprefix("checkpoint-"))


def environment() -> dict[str, Any]:
    """The versions and the machine, for the record."""
    packages = ("steingrad", "jax", "jaxlib", "equinox", "optax", "numpy")
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
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
    """The commit of the source tree, if steingrad runs from one: its files are in it. (The
    repository around a virtual environment is somebody else's.)"""
    here = Path(__file__)
    known = _git("ls-files", "--error-unmatch", here.name, cwd=here.parent)
    describe = ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return _git(*describe, cwd=here.parent) if known else None


def _git(*command: str, cwd: Path) -> str | None:
    try:
        done = subprocess.run(["git", *command], cwd=cwd, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
