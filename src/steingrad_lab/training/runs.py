"""Run folders: `config.json`, `metrics.jsonl` and checkpoints."""

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
import statistics
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax

from .config import Config, ConfigError, from_json, to_json
from .stored import FORMAT, RunError, json_line, numbers_of, parse_metrics, to_present

# How many checkpoints are kept: a second one in case the newest is damaged.
KEEP = 2
RESTORE = "Restore it from a copy, or use another folder."
CHECKPOINT = re.compile(r"checkpoint-(\d+)\.eqx")


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file so that after a crash it has either its old or its complete new content."""
    temporary = path.with_name(f".{path.name}.tmp")
    with _writing(path):
        try:
            with temporary.open("wb") as file:
                file.write(content)
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):  # free the space, as the disk may be full
                temporary.unlink()
            raise
    with contextlib.suppress(OSError):  # also flush the new name, if the system supports it
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turns an OSError into a RunError that names the file."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = " Free some space, then continue the run with --resume." if full else ""
        raise RunError(f"{path} cannot be written: {error.strerror}.{advice}") from None


class Stored(NamedTuple):
    """The content of a checkpoint."""

    step: int
    state: Any
    lines: int
    """How many lines of metrics the run had when the checkpoint was written."""


class Run:
    """A run folder.

    A run has a random identity, which all its files contain, so that files of other runs are
    recognised. Runs of earlier versions have no identity.

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
                f"{self.path} is not a run folder: it has no config.json. Name a folder that "
                "`steingrad train` wrote."
            ) from None
        except OSError as error:
            raise RunError(
                f"{place} cannot be read: {error.strerror}. Check its permissions."
            ) from None
        except (ValueError, RecursionError) as error:
            raise RunError(f"{place} is damaged: {error}. {RESTORE}") from None
        try:
            present = to_present(self.record)
            self.config = from_json(present["config"])
        except (RunError, ConfigError) as error:
            raise RunError(f"{place}: {error}") from None
        except Exception as error:  # a file may contain anything
            raise RunError(
                f"{place} is damaged: reading its settings gave {type(error).__name__}: {error}. "
                f"{RESTORE}"
            ) from None
        self.published: Mapping[str, bool | None] = present["published"]
        self.identity: str | None = self.record.get("run")
        self._metrics = self.path / "metrics.jsonl"

    @classmethod
    def create(
        cls,
        path: Path,
        config: Config,
        data_files: Mapping[str, str],
        published: Mapping[str, bool],
    ) -> "Run":
        """Creates a run in a folder without files of another run.

        `data_files` gives the SHA-256 of each data file; `published` says if it is published.
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
        """Whether a folder contains a run, readable or damaged."""
        return os.path.lexists(path / "config.json")

    @classmethod
    def refuse_existing(cls, path: Path) -> None:
        """Raises if a folder contains a run or files of one."""
        if cls.there(path):
            raise RunError(
                f"{path} contains a run already. Continue it (resume), or name another folder."
            )
        left = [path / "metrics.jsonl", *checkpoints(path)]
        left = [file.name for file in left if os.path.lexists(file)]
        if left:
            raise RunError(
                f"{path} has files of another run, whose config.json is missing: "
                f"{', '.join(left)}. Move them away, or name another folder."
            )

    @property
    def status(self) -> str:
        """One of `running` (also if interrupted), `finished` and `diverged`."""
        return self.record["status"]

    def update(self, **fields: Any) -> None:
        """Changes fields of `config.json`, such as `status`."""
        self._flush()
        self.record = {**self.record, **fields}
        write_atomically(self.path / "config.json", json.dumps(self.record, indent=2).encode())
        self.config = from_json(to_present(self.record)["config"])

    def append(self, metrics: Mapping[str, Any]) -> None:
        with _writing(self._metrics), self._metrics.open("a") as file:
            file.write(self._line(metrics))

    def _line(self, metrics: Mapping[str, Any]) -> str:
        own = {} if self.identity is None else {"run": self.identity}
        return json_line({**metrics, **own}) + "\n"

    def _content(self) -> bytes:
        return self._metrics.read_bytes() if self._metrics.exists() else b""

    def _flush(self) -> None:
        """Puts the metrics on the disk before a checkpoint or status that refers to them."""
        if self._metrics.exists():
            with _writing(self._metrics), self._metrics.open("ab") as file:
                os.fsync(file.fileno())

    def metrics(self) -> Iterator[dict[str, Any]]:
        """Yields the lines of `metrics.jsonl`. Bad lines are left out; a warning lists them."""
        left_out, seen = [], set()
        for number, line in enumerate(self._content().split(b"\n"), 1):
            if not line:
                continue
            try:
                found = parse_metrics(line)
                if found.pop("run", None) != self.identity:
                    raise ValueError("it belongs to another run")
                if found["seed"] not in self.config.seeds:
                    raise ValueError(f"this run has no seed {found['seed']}")
                if line in seen:
                    raise ValueError("it is a copy of an earlier line")
            except ValueError as error:
                left_out.append(f"line {number} ({error})")
                continue
            seen.add(line)
            yield found
        if left_out:
            more = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
            listed = ", ".join(left_out[:3]) + more
            warnings.warn(f"{self._metrics} is damaged. Ignored: {listed}.", stacklevel=2)

    def rewind(self, step: int, steps: int) -> None:
        """Deletes the metrics after `step`, from where the run continues until `steps`.

        The final evaluation of a shorter run is kept, but no longer marked as final.
        """
        kept = []
        for metrics in self.metrics():
            if metrics.get("final") and metrics["step"] < steps:
                del metrics["final"]
            if metrics["step"] <= step and not metrics.get("final"):
                kept.append(self._line(metrics))
        write_atomically(self._metrics, "".join(kept).encode())

    def checkpoints(self) -> list[Path]:
        """Returns the paths of the checkpoints, from the newest to the oldest."""
        return checkpoints(self.path)

    def save(self, step: int, state: Any) -> None:
        """Writes a checkpoint: a line of JSON with a checksum, then the arrays, without pickle."""
        self._flush()
        buffer = io.BytesIO()
        eqx.tree_serialise_leaves(buffer, state)
        payload = buffer.getvalue()
        header = {
            "format": FORMAT,
            "run": self.identity,
            "step": step,
            "lines": self._content().count(b"\n"),
            "sha256": hashlib.sha256(payload).hexdigest(),
        }
        content = json.dumps(header).encode() + b"\n" + payload
        write_atomically(self.path / f"checkpoint-{step:010d}.eqx", content)
        for old in self.checkpoints()[KEEP:]:
            with contextlib.suppress(OSError):  # a folder with the name of a checkpoint
                old.unlink()

    def stored(self, like: Any) -> Iterator[Stored]:
        """Yields the readable checkpoints, the newest first. Warns about each of the others."""
        for path in self.checkpoints():
            try:
                yield self._read(path, like)
            except RunError as error:
                warnings.warn(f"{error} Trying the previous checkpoint.", stacklevel=2)

    def load(self, like: Any) -> tuple[int, Any] | None:
        """Returns the step and state of the newest readable checkpoint, or `None`."""
        return next(((found.step, found.state) for found in self.stored(like)), None)

    def set_aside(self, step: int) -> list[Path]:
        """Renames the checkpoints after `step`, which would seem newer than those to come."""
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
                f"The checkpoint {path} has format {form}, but this version of steingrad reads "
                f"only format {FORMAT}. Use the version that wrote it."
            )
        if owner != self.identity:
            raise RunError(f"The checkpoint {path} belongs to another run.")
        if step != checkpoint_step(path):
            raise RunError(f"The checkpoint {path} was renamed: it is of step {step}.")
        if hashlib.sha256(payload).hexdigest() != checksum:
            raise RunError(f"The checkpoint {path} is damaged: its checksum does not match.")
        try:
            state = eqx.tree_deserialise_leaves(io.BytesIO(payload), like, _reader(payload, like))
        except (RuntimeError, ValueError, EOFError, TypeError) as error:
            raise RunError(
                f"The checkpoint {path} does not fit this model: {str(error).splitlines()[0]}."
            ) from None
        return Stored(step, state, lines)


def _reader(payload: bytes, like: Any) -> Callable[[Any, Any], Any]:
    """Returns a function that reads one array of a checkpoint.

    Checkpoints of earlier versions end before the last array, `elbo_rest`, which was zero then.
    """
    last = jax.tree.leaves(like)[-1:]

    def read(file: Any, leaf: Any) -> Any:
        if file.tell() == len(payload) and any(leaf is one for one in last):
            return leaf
        return eqx.default_deserialise_filter_spec(file, leaf)

    return read


def summary(run: Run) -> dict[str, float]:
    """Returns the last value of each metric, averaged over seeds."""
    last: dict[str, dict[int, float]] = {}
    for line in run.metrics():
        for name, value in numbers_of(line).items():
            last.setdefault(name, {})[line["seed"]] = value
    return {name: statistics.fmean(values.values()) for name, values in last.items()}


def checkpoints(folder: Path) -> list[Path]:
    """Returns the checkpoints in a folder, from the newest to the oldest."""
    found = [path for path in folder.glob("checkpoint-*.eqx") if CHECKPOINT.fullmatch(path.name)]
    return sorted(found, key=checkpoint_step, reverse=True)


def checkpoint_step(path: Path) -> int:
    """Returns the step in the name of a checkpoint.

    >>> checkpoint_step(Path("checkpoint-0000000040.eqx"))
    40
    """
    return int(path.stem.removeprefix("checkpoint-"))


def environment() -> dict[str, Any]:
    """Describes the software versions and the machine."""
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
    """Returns the number of cores that this process may use. Workers of a sweep share them."""
    share = os.environ.get("PJRT_NPROC")
    if share:
        return int(share)
    own = getattr(os, "sched_getaffinity", None)
    return len(own(0)) if own else os.cpu_count()


def _commit() -> str | None:
    """Returns the commit of the source tree, if git tracks this file.

    An installed package may lie in the repository of another project, which is not meant.
    """
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
