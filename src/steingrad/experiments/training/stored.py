"""Records of runs as they were written, by this version and by earlier ones."""

from collections.abc import Mapping
from typing import Any

from ...data.sources import SOURCES
from .config import DEFAULTS, belongs

FORMAT = 2
"""Of `config.json`, of checkpoints and of lines of `results.jsonl`."""


class RunError(RuntimeError):
    """A run folder that cannot be used as asked."""


def to_present(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record (its `config`, `data_files`, `published`) in the present format."""
    form = record.get("format")
    if form == FORMAT:
        return dict(record)
    if form == 1:
        return _from_1(record)
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
    used = {name: value for name, value in config.items() if belongs(name, {**DEFAULTS, **config})}
    known = {name: _known(name, sha256) for name, sha256 in record["data_files"].items()}
    return {**record, "config": used, "published": record.get("published", known)}


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
