"""The format of records and metrics on disk, written by this version and earlier ones."""

import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ..data.sources import SOURCES
from .config import DEFAULTS, NUMBERS, used

FORMAT = 2
"""The version of the format of `config.json`, checkpoints and `results.jsonl`."""


class RunError(RuntimeError):
    """Raised when a run folder cannot be used as requested."""


def _each(values: Any, *kinds: type) -> bool:
    return isinstance(values, dict) and all(type(value) in kinds for value in values.values())


def _environment(values: Any) -> bool:
    return (
        isinstance(values, dict)
        and type(values.get("cores")) in (int, type(None))
        and _each(values.get("versions", {}), str)
    )


# A check for each field of a record. Fields that may be missing are checked as None.
RECORD: dict[str, Callable[[Any], bool]] = {
    "status": lambda status: status in ("running", "finished", "diverged"),
    "data_files": lambda files: _each(files, str),
    "published": lambda files: files is None or _each(files, bool, type(None)),
    "environment": _environment,
    "earlier": lambda places: isinstance(places, (list, type(None))),
    "run": lambda identity: isinstance(identity, (str, type(None))),
}


def to_present(record: Any) -> dict[str, Any]:
    """Converts a record to the current format. Raises if the record is damaged."""
    if not isinstance(record, dict) or not isinstance(record.get("config"), dict):
        raise RunError("it was not written by `steingrad train`.")
    form = record.get("format")
    if form in (1, FORMAT):
        for name, sound in RECORD.items():
            if not sound(record.get(name)):
                raise RunError(f"it is damaged: its {name} is {record.get(name)!r:.60}.")
        if form == 1:
            return _from_1(record)
        return {**record, "published": record.get("published") or {}}
    raise RunError(
        f"it has format {form}, and this version of steingrad reads formats 1 to {FORMAT}. Use the "
        "version that wrote it."
    )


def _from_1(record: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a record of format 1, which differs from format 2 in three ways.

    Unused settings had values, modified RELAX was a setting of RELAX, and a run folder did not say
    which data files were published.
    """
    config = dict(record["config"])
    if config.pop("relax_surrogate"):
        config["estimator"] = "modified_relax"
    idle = DEFAULTS.keys() - used({**DEFAULTS, **config}).keys()
    config = {name: value for name, value in config.items() if name not in idle}
    known = {name: _known(name, sha256) for name, sha256 in record["data_files"].items()}
    return {**record, "config": config, "published": record.get("published", known)}


def _known(name: str, sha256: str) -> bool | None:
    """Whether a file has a published SHA-256. `None` if only other kinds of hashes are known."""
    published = {
        f"{source.folder}/{file.name}": file.hashes
        for source in SOURCES.values()
        for forms in source.files
        for file in forms
    }
    hashes = published.get(name)
    if hashes is None or f"sha256:{sha256}" in hashes:  # None: scikit-learn's digits
        return True
    return False if all(known.startswith("sha256:") for known in hashes) else None


def numbers_of(line: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics in a line, without the fields that identify the line."""
    return {name: value for name, value in line.items() if name not in ("step", "seed", "final")}


def json_line(values: Mapping[str, Any]) -> str:
    """Returns a line of JSON. Non-finite numbers, which JSON cannot represent, become null.

    >>> json_line({"step": 5, "elbo": math.nan})
    '{"step": 5, "elbo": null}'
    """
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
    return json.dumps(finite, allow_nan=False)


def parse_metrics(line: bytes | str) -> dict[str, Any]:
    """Parses a line of metrics. Raises a ValueError that says what is wrong with a bad line.

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
    """Raises a ValueError unless this is a line of metrics: a step, a seed and numbers."""
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
