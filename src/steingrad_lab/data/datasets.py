"""Load a dataset, and say which ones are there."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from . import files
from .formats import DataError, Images
from .own import SPLITS, read_own
from .sources import SOURCES

NAMES = tuple(SOURCES)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images of one dataset, a row of pixels (0 to 255) for each, in three splits.

    `value / 255` is the probability that a binarised pixel is 1 (0 or 1 where the data are binary).
    For the record of a run, `files` maps the name of each file to its SHA-256, and `published` to
    whether it is the published one.
    """

    name: str
    image_shape: tuple[int, int]
    train: UInt8[np.ndarray, "train pixels"]
    valid: UInt8[np.ndarray, "valid pixels"]
    test: UInt8[np.ndarray, "test pixels"]
    files: Mapping[str, str]
    published: Mapping[str, bool] = field(default_factory=dict)


def load(
    name: str, data_dir: str | os.PathLike[str] | None = None, download: bool = True
) -> Dataset:
    """Loads a dataset, one of `NAMES`, or images of one's own, by their path (see `read_own`).

    Files are looked for in `data_dir` (else `$STEINGRAD_DATA_DIR`), in the user's cache and in
    Debian's `/usr/share/datasets`, in the folder of the dataset there. What is missing is
    downloaded, unless `download` is off, into the first of the former two that is given and can be
    written to. A local file that is not the published one is used with a warning.

    >>> digits = load("digits")
    >>> digits.image_shape, digits.train.shape, digits.valid.shape, digits.test.shape
    ((8, 8), (1297, 64), (200, 64), (300, 64))
    """
    if is_own(name):
        splits, hashes = read_own(Path(name))
        rows = [splits[split].reshape(len(splits[split]), -1) for split in SPLITS]
        return Dataset(label(name), splits["train"].shape[1:], *rows, files=hashes)
    if name not in SOURCES:
        raise DataError(f"there is no dataset '{name}': choose one of {', '.join(NAMES)}.")
    source = SOURCES[name]
    if name == "digits":
        if data_dir:
            files.existing(data_dir)  # of no use here, but misspelt all the same
        parts = [_digits()]
        # The hash of the pixels stands for the file, which is scikit-learn's own affair.
        hashes = {"digits": hashlib.sha256(parts[0].tobytes()).hexdigest()}
        published = {"digits": True}
    else:
        parts, hashes, published = [], {}, {}
        for file, path in files.locate(name, source, data_dir, download):
            key = f"{source.folder}/{file.name}"
            images, hashes[key], published[key] = files.read(file, path)
            parts.append(images)
    train, valid, _ = source.splits
    splits = np.split(np.concatenate(parts), [train, train + valid])
    return Dataset(name, source.image_shape, *splits, files=hashes, published=published)


def is_own(name: str) -> bool:
    """Whether this is the path of images of one's own, and not a name.

    >>> is_own("mnist"), is_own("flowers.npz"), is_own("/data/flowers")
    (False, True, True)
    """
    return name.endswith(".npz") or os.sep in name


def label(name: str) -> str:
    """A dataset's name, short if it is a path.

    >>> label("mnist"), label("/data/flowers.npz")
    ('mnist', 'flowers')
    """
    return Path(name).stem if is_own(name) else name


def _digits() -> Images:
    """The 1797 images of scikit-learn, in an order that makes the three splits alike.

    They come writer by writer, and writers differ, so splits of consecutive images would too.
    Taking every 1111th image instead, around and around, spreads each split evenly over the writers
    (1797 / 1111 is close to the golden ratio), and needs no random generator that may change.
    """
    from sklearn.datasets import load_digits

    images = load_digits(return_X_y=True)[0]
    return np.rint(images[np.arange(1797) * 1111 % 1797] * (255 / 16)).astype(np.uint8)


@dataclass(frozen=True)
class FileStatus:
    """A file of a dataset: where it is (None: nowhere), its bytes, is it the published one?"""

    name: str
    path: Path | None
    size: int
    published: bool


@dataclass(frozen=True)
class Status:
    """What is there of a dataset. `where`: the folders that hold its files, or should."""

    name: str
    found: bool
    where: str
    image_shape: tuple[int, int]
    splits: tuple[int, int, int]
    files: tuple[FileStatus, ...]

    @property
    def published(self) -> bool:
        """Whether all files are there and are the published ones."""
        return self.found and all(file.published for file in self.files)


def status(data_dir: str | os.PathLike[str] | None = None) -> list[Status]:
    """What is there of each dataset, without downloading anything.

    >>> digits = status()[0]
    >>> digits.name, digits.found, digits.where, digits.splits
    ('digits', True, 'scikit-learn', (1297, 200, 300))
    """
    listing = []
    for name, source in SOURCES.items():
        places = files.folders(source, data_dir)
        entries = tuple(_file_status(files.find(forms, places), forms) for forms in source.files)
        if name == "digits":
            found, where = find_spec("sklearn") is not None, "scikit-learn"
        else:
            found = all(entry.path for entry in entries)
            holders = dict.fromkeys(str(entry.path.parent) for entry in entries if entry.path)
            where = ", ".join(holders) or str(places[0])
        listing.append(Status(name, found, where, source.image_shape, source.splits, entries))
    return listing


def _file_status(
    found: tuple[files.File, Path] | None, forms: tuple[files.File, ...]
) -> FileStatus:
    if found is None:
        return FileStatus(" or ".join(file.name for file in forms), None, 0, False)
    file, path = found
    try:
        content = files.read_bytes(path)
    except (OSError, DataError):  # not readable: it is there, and that is all one can say
        return FileStatus(file.name, path, 0, False)
    return FileStatus(file.name, path, len(content), files.is_published(file, content))
