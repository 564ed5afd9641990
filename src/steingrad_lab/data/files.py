"""The files of a dataset: find them, download what is missing, check them, read them."""

import hashlib
import os
import re
import sys
import tempfile
import warnings
from pathlib import Path

from .formats import MOST_BYTES, DataError, Images, unpack
from .sources import File, Source

SYSTEM_DIR = Path("/usr/share/datasets")  # Debian's dataset packages, such as dataset-fashion-mnist


def user_cache() -> Path:
    """Where downloads go unless the user names a folder."""
    import pooch

    return Path(pooch.os_cache("steingrad"))


def folders(source: Source, data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """The folders in which the files of a dataset are looked for, in this order."""
    own = data_dir or os.environ.get("STEINGRAD_DATA_DIR")
    roots = [existing(own)] if own else []
    return [root / source.folder for root in (*roots, user_cache(), SYSTEM_DIR)]


def existing(data_dir: str | os.PathLike[str]) -> Path:
    """A folder that the user names; it may be misspelt, so it is not made."""
    place = Path(data_dir).expanduser()
    if not os.path.isdir(place):
        raise DataError(
            f"the folder of the datasets, {place}, is not there: check --data-dir (or "
            "STEINGRAD_DATA_DIR), or make that folder."
        )
    return place


def read_bytes(path: Path) -> bytes:
    """A whole file, unless it is larger than any of a dataset."""
    if path.stat().st_size > MOST_BYTES:
        raise DataError(
            f"{path} is larger than any file of a dataset: put the published one there."
        )
    return path.read_bytes()


def find(forms: tuple[File, ...], places: list[Path]) -> tuple[File, Path] | None:
    """The first of the forms of a file that is there, and its path."""
    for place in places:
        for file in forms:
            if os.path.isfile(place / file.name):  # not Path.is_file: it raises in a locked folder
                return file, place / file.name
    return None


def locate(
    name: str, source: Source, data_dir: str | os.PathLike[str] | None, download: bool
) -> list[tuple[File, Path]]:
    """Every file of a dataset and its path, downloading what is missing."""
    places = folders(source, data_dir)
    located, missing, failure = [], [], ""
    for forms in source.files:
        found = find(forms, places)
        if found is None and download and not failure:  # one failure is enough: do not wait again
            try:
                found = _download(forms, places[:-1])
            except DataError as error:
                failure = str(error)
        if found is None:
            missing.append(forms)
        else:
            located.append(found)
    if missing:
        wanted = ", ".join(" or ".join(file.name for file in forms) for forms in missing)
        searched = ", ".join(str(place) for place in places)
        attempt = f"could not be downloaded ({failure})" if download else "not downloaded"
        raise DataError(
            f"the dataset '{name}' was not found in {searched} and {attempt}: put {wanted} into "
            f"{places[0]}, or set STEINGRAD_DATA_DIR (or --data-dir) to the folder that holds "
            f"{source.folder}/."
        )
    return located


def is_published(file: File, content: bytes) -> bool:
    r"""Whether one of the published hashes of a file is that of this content.

    >>> file = File("hello", bytes, hashes=("git-blob:ce013625030ba8dba906f756967f9e9ca394464a",))
    >>> is_published(file, b"hello\n"), is_published(file, b"goodbye\n")
    (True, False)
    """
    digests = {
        "sha256": lambda: hashlib.sha256(content),
        "git-blob": lambda: hashlib.sha1(b"blob %d\0" % len(content) + content),
        "unpacked-md5": lambda: hashlib.md5(unpack(content), usedforsecurity=False),
    }
    for algorithm, _, expected in (published.partition(":") for published in file.hashes):
        try:
            if digests[algorithm]().hexdigest() == expected:
                return True
        except DataError:  # it does not unpack: certainly not the published one
            continue
    return False


def read(file: File, path: Path) -> tuple[Images, str, bool]:
    """The images in a file, the SHA-256 of the file, and whether it is the published one.

    A file that is not the published one is used, with a warning: it may be a rebuilt one.
    """
    try:
        content = read_bytes(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}): check its permissions.") from error
    try:
        images = file.read(content)
    except DataError as error:
        raise DataError(
            f"{path} {error}: delete it to have it downloaded again, or put the published file in "
            "its place."
        ) from error
    sha256 = hashlib.sha256(content).hexdigest()
    published = is_published(file, content)
    if not published:
        warnings.warn(
            f"{path} is used although it is not the published file: results may not compare with "
            f"published ones (its SHA-256 is {sha256})",
            stacklevel=3,
        )
    return images, sha256, published


def _download(forms: tuple[File, ...], places: list[Path]) -> tuple[File, Path]:
    """Downloads a file into the first writable folder, from the first address that has it."""
    import pooch

    place = next(filter(_is_writable, places), None)
    if place is None:
        raise DataError(f"nothing can be written to {' or '.join(map(str, places))}")
    failures = []
    for file, url in [(form, url) for form in forms for url in form.urls]:
        try:
            # Not pooch.retrieve: it cannot check the hash that git gives a file. The file gets its
            # name only when complete and checked, so that nobody ever sees half of it.
            with tempfile.TemporaryDirectory(dir=place) as scratch, _ProgressBar(file.name) as bar:
                arriving = Path(scratch, file.name)
                fetch = pooch.HTTPDownloader(bar, chunk_size=2**16)  # pyright: ignore[reportArgumentType]
                fetch(url, str(arriving), None)
                if not is_published(file, arriving.read_bytes()):
                    raise DataError("what came is not the published file, its hash differs")
                return file, arriving.replace(place / file.name)
        except (OSError, DataError) as error:
            # requests repeats the address and wraps the cause: keep what the user can act on.
            cause = re.search(r"Caused by (\w+)", str(error))
            reason = cause[1] if cause else str(error).partition(" for url")[0]
            failures.append(f"{url}: {reason}")
    raise DataError("; ".join(failures))


def _is_writable(place: Path) -> bool:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(place, os.W_OK)


class _ProgressBar:
    """What pooch asks of a progress bar (`total`, set first, and methods), drawn by rich."""

    def __init__(self, label: str):
        from rich import progress
        from rich.console import Console

        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task(label, total=None)

    def __enter__(self) -> "_ProgressBar":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    @property
    def total(self) -> float | None:
        return self._bar.tasks[0].total

    @total.setter
    def total(self, size: int) -> None:
        self._bar.update(self._task, total=size or None)  # 0: the server does not say

    def update(self, size: int) -> None:
        self._bar.advance(self._task, size)

    def reset(self) -> None:
        self._bar.reset(self._task)

    def close(self) -> None:
        pass
