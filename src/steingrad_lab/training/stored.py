"""The format of records and metrics on disk, written by this version and earlier ones."""

import json
import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from ..data.sources import SOURCES
from .config import DEFAULTS, NUMBERS, used

FORMAT = 2
"""The version of the format of `config.json`, checkpoints and `results.jsonl`."""


# The size of numbers in metrics: they are means of float32 numbers.
BEYOND = 1e39
# The most characters of a name or a path.
LONGEST = 4096


class RunError(RuntimeError):
    """Raised when a run folder cannot be used as requested."""


def is_name(value: Any) -> bool:
    """Whether this is text that can be a name or a path.

    >>> is_name("two words"), is_name("nu\\0l"), is_name("x" * 5000), is_name(3)
    (True, False, False, False)
    """
    return isinstance(value, str) and "\0" not in value and len(value) <= LONGEST


def is_number(value: Any) -> bool:
    """Whether this is a number that a metric can have. `True` and NaN are none.

    >>> [is_number(value) for value in (3, -0.5, 1e308, 10**300, math.nan, True, "3")]
    [True, True, False, False, False, False, False]
    """
    if type(value) is int:
        return abs(value) < 2**53
    return type(value) is float and abs(value) < BEYOND


def _each(values: Any, *kinds: type) -> bool:
    """Whether this is a dictionary of names and values of these types."""
    return isinstance(values, dict) and all(
        is_name(name) and type(value) in kinds and (type(value) is not str or is_name(value))
        for name, value in values.items()
    )


def _environment(values: Any) -> bool:
    if not isinstance(values, dict):
        return False
    others = {name: value for name, value in values.items() if name != "versions"}
    cores = values.get("cores")
    return (
        _each(values.get("versions", {}), str)
        and _each(others, str, int, bool, type(None))
        and (cores is None or (type(cores) is int and 0 <= cores < NUMBERS))
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
                raise RunError(f"it is damaged: its {name} is {reprlib.repr(record.get(name))}.")
        dataset = record["config"].get("dataset")
        if isinstance(dataset, str) and not is_name(dataset):
            raise RunError(f"it is damaged: its dataset is {reprlib.repr(dataset)}.")
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
            raise ValueError(f"{name} is {reprlib.repr(line.get(name))}")
    if line.get("final", True) is not True:
        raise ValueError(f"final is {reprlib.repr(line['final'])}")
    if not isinstance(line.get("run"), (str, type(None))):
        raise ValueError(f"run is {reprlib.repr(line['run'])}")
    for name, value in line.items():
        if name not in ("run", "final") and value is not None and not is_number(value):
            raise ValueError(f"{reprlib.repr(name)} is {reprlib.repr(value)}")
