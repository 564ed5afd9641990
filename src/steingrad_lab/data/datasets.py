"""Load a dataset, and list which datasets are available."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from . import files
from .formats import DataError, Images, read_bytes
from .own import SPLITS, read_own
from .sources import SOURCES

NAMES = tuple(SOURCES)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images of one dataset in three splits, one row of pixels (0 to 255) for each image.

    `value / 255` is the probability that a binarised pixel is 1. `files` maps the name of each file
    to its SHA-256, and `published` says whether the file is identical to the published one; both
    are stored with every run.
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
    """Loads a dataset by name (one of `NAMES`) or the user's own images by path (see `read_own`).

    Files are looked for in three places: `data_dir` (or else `$STEINGRAD_DATA_DIR`), the user's
    cache, and Debian's `/usr/share/datasets`. Unless `download` is false, missing files are
    downloaded into the first of these that is writable, but never into Debian's folder. A local
    file that differs from the published one is used, with a warning.

    >>> digits = load("digits")
    >>> digits.image_shape, digits.train.shape, digits.valid.shape, digits.test.shape
    ((8, 8), (1297, 64), (200, 64), (300, 64))
    """
    if is_own(name):
        splits, hashes = read_own(Path(name))
        rows = [splits[split].reshape(len(splits[split]), -1) for split in SPLITS]
        return Dataset(label(name), splits["train"].shape[1:], *rows, files=hashes)
    if name not in SOURCES:
        raise DataError(f"There is no dataset '{name}'. Choose one of {', '.join(NAMES)}.")
    source = SOURCES[name]
    if name == "digits":
        if data_dir:
            files.existing(data_dir)  # not needed here, but a misspelt folder is still an error
        parts = [_digits()]
        # scikit-learn does not say which file it reads, so the pixels are hashed instead.
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
    """Whether `name` is the path of the user's own images and not the name of a dataset.

    >>> is_own("mnist"), is_own("flowers.npz"), is_own("/data/flowers")
    (False, True, True)
    """
    return name.endswith(".npz") or os.sep in name


def label(name: str) -> str:
    """Returns the name of a dataset, or the last part of its path without the suffix.

    >>> label("mnist"), label("/data/flowers.npz")
    ('mnist', 'flowers')
    """
    return Path(name).stem if is_own(name) else name


def _digits() -> Images:
    """Returns the 1797 images of scikit-learn, in an order that makes the three splits alike.

    scikit-learn orders the images by writer, so splits of consecutive images would differ. Taking
    every 1111th image, modulo 1797, spreads each split evenly over the writers, because
    1797 / 1111 is close to the golden ratio. Unlike a random order, this one can never change.
    """
    from sklearn.datasets import load_digits

    images = load_digits(return_X_y=True)[0]
    return np.rint(images[np.arange(1797) * 1111 % 1797] * (255 / 16)).astype(np.uint8)


@dataclass(frozen=True)
class FileStatus:
    """The state of one file of a dataset."""

    name: str
    path: Path | None
    """`None` if the file was not found."""
    size: int
    """The size in bytes; 0 if the file cannot be read."""
    published: bool
    """Whether the content is identical to the published file."""


@dataclass(frozen=True)
class Status:
    """Which files of a dataset are available."""

    name: str
    found: bool
    where: str
    """The folders that hold the files, or the folder where they should be put."""
    image_shape: tuple[int, int]
    splits: tuple[int, int, int]
    files: tuple[FileStatus, ...]

    @property
    def published(self) -> bool:
        """Whether all files were found and are identical to the published ones."""
        return self.found and all(file.published for file in self.files)


def status(data_dir: str | os.PathLike[str] | None = None) -> list[Status]:
    """Returns the status of each dataset. Downloads nothing.

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
        content = read_bytes(path)
    except (OSError, DataError):  # the file exists but cannot be read
        return FileStatus(file.name, path, 0, False)
    return FileStatus(file.name, path, len(content), files.is_published(file, content))
