"""Records and metrics of runs as they are on disk, by this version and by earlier ones."""

import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ..data.sources import SOURCES
from .config import DEFAULTS, NUMBERS, used

FORMAT = 2
"""Of `config.json`, of checkpoints and of lines of `results.jsonl`."""


class RunError(RuntimeError):
    """A run folder that cannot be used as asked."""


def _each(values: Any, *kinds: type) -> bool:
    return isinstance(values, dict) and all(type(value) in kinds for value in values.values())


def _environment(values: Any) -> bool:
    return (
        isinstance(values, dict)
        and type(values.get("cores")) in (int, type(None))
        and _each(values.get("versions", {}), str)
    )


# What each field of a record is; those that a record may lack are None there.
RECORD: dict[str, Callable[[Any], bool]] = {
    "status": lambda status: status in ("running", "finished", "diverged"),
    "data_files": lambda files: _each(files, str),
    "published": lambda files: files is None or _each(files, bool, type(None)),
    "environment": _environment,
    "earlier": lambda places: isinstance(places, (list, type(None))),
    "run": lambda identity: isinstance(identity, (str, type(None))),
}


def to_present(record: Any) -> dict[str, Any]:
    """A record (its `config`, `data_files`, `published`) in the present format."""
    if not isinstance(record, dict) or not isinstance(record.get("config"), dict):
        raise RunError("it was not written by `steingrad train`.")
    form = record.get("format")
    if form in (1, FORMAT):
        for name, sound in RECORD.items():
            if not sound(record.get(name)):
                raise RunError(f"it is damaged: its {name} is {record.get(name)!r:.60}.")
        return (
            _from_1(record) if form == 1 else {**record, "published": record.get("published") or {}}
        )
    raise RunError(
        f"it has format {form}, and this version of steingrad reads formats 1 to {FORMAT}: use the "
        "version that wrote it."
    )


def _from_1(record: Mapping[str, Any]) -> dict[str, Any]:
    """Format 1 had a value for every setting, whether it did anything or not; modified RELAX was
    a setting of RELAX; and a run folder did not say which data files were published."""
    config = dict(record["config"])
    if config.pop("relax_surrogate"):
        config["estimator"] = "modified_relax"
    idle = DEFAULTS.keys() - used({**DEFAULTS, **config}).keys()
    config = {name: value for name, value in config.items() if name not in idle}
    known = {name: _known(name, sha256) for name, sha256 in record["data_files"].items()}
    return {**record, "config": config, "published": record.get("published", known)}


def _known(name: str, sha256: str) -> bool | None:
    """Whether a file has a published SHA-256; None where only other hashes are published."""
    for source in SOURCES.values():
        for file in (file for forms in source.files for file in forms):
            if name == f"{source.folder}/{file.name}":
                if f"sha256:{sha256}" in file.hashes:
                    return True
                only = all(known.startswith("sha256:") for known in file.hashes)
                return False if only else None
    return True  # bundled with a package


def json_line(values: Mapping[str, Any]) -> str:
    """A line of JSON. It has no word for numbers that are not finite: they are null.

    >>> json_line({"step": 5, "elbo": math.nan})
    '{"step": 5, "elbo": null}'
    """
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
    return json.dumps(finite, allow_nan=False)


def parse_metrics(line: bytes | str) -> dict[str, Any]:
    """A line of metrics; a ValueError says what is wrong with it.

    >>> parse_metrics('{"step": 5, "seed": 1, "elbo": null}')
    {'step': 5, 'seed': 1, 'elbo': nan}
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    check_metrics(found)
    return {name: math.nan if value is None else value for name, value in found.items()}


def check_metrics(line: Any) -> None:
    """Raise a ValueError unless this is a line of metrics: when, whose, and numbers."""
    if not isinstance(line, dict):
        raise ValueError("not an object")
    for name in ("step", "seed"):
        if type(line.get(name)) is not int or not 0 <= line[name] < NUMBERS:
            raise ValueError(f"{name} is {line.get(name)!r:.40}")
    if line.get("final", True) is not True:
        raise ValueError(f"final is {line['final']!r:.40}")
    for name, value in line.items():
        if name in ("run", "final"):
            continue
        number = type(value) in (int, float, type(None))
        if not number or (value is not None and abs(value) > sys.float_info.max):
            raise ValueError(f"{name} is {value!r:.40}")
