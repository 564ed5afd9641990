"""The files of a dataset: find, download, verify and read them."""

import hashlib
import os
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from .formats import DataError, Images, read_bytes, unpack
from .sources import File, Source

# Where Debian's dataset packages, such as dataset-fashion-mnist, put their files.
SYSTEM_DIR = Path("/usr/share/datasets")


def user_cache() -> Path:
    """Returns the folder for downloads if the user names none."""
    import pooch

    return Path(pooch.os_cache("steingrad"))


def folders(source: Source, data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """Returns the folders that are searched for the files of a dataset, in order."""
    own = data_dir or os.environ.get("STEINGRAD_DATA_DIR")
    roots = [existing(own)] if own else []
    return [root / source.folder for root in (*roots, user_cache(), SYSTEM_DIR)]


def existing(data_dir: str | os.PathLike[str]) -> Path:
    """Returns a folder named by the user; raises if it does not exist, as it may be misspelt."""
    place = Path(data_dir).expanduser()
    if not os.path.isdir(place):
        raise DataError(
            f"The folder of the datasets, {place}, does not exist. Correct --data-dir (or "
            "STEINGRAD_DATA_DIR), or create the folder."
        )
    return place


def find(forms: tuple[File, ...], places: list[Path]) -> tuple[File, Path] | None:
    """Returns the first form of a file that exists in one of the folders, with its path."""
    for place in places:
        for file in forms:
            # Not Path.is_file, which raises an error in a folder without read permission.
            if os.path.isfile(place / file.name):
                return file, place / file.name
    return None


def locate(
    name: str, source: Source, data_dir: str | os.PathLike[str] | None, download: bool
) -> list[tuple[File, Path]]:
    """Returns every file of a dataset with its path. Missing files are downloaded."""
    places = folders(source, data_dir)
    located, missing, failure = [], [], ""
    for forms in source.files:
        found = find(forms, places)
        # After one failed download the others are not tried: each could take long to time out.
        if found is None and download and not failure:
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
        attempt = f"could not be downloaded ({failure})" if download else "was not downloaded"
        raise DataError(
            f"The dataset '{name}' was not found in {searched} and {attempt}. Put {wanted} into "
            f"{places[0]}, or set --data-dir (or STEINGRAD_DATA_DIR) to the folder that contains "
            f"{source.folder}/."
        )
    return located


def is_published(file: File, content: bytes) -> bool:
    r"""Whether the content has one of the published hashes of a file.

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
        except DataError:  # the content cannot be unpacked, so this hash cannot match
            continue
    return False


def read(file: File, path: Path) -> tuple[Images, str, bool]:
    """Returns the images in a file, its SHA-256, and whether it is identical to the published one.

    A file that differs is used, with a warning: someone may have rebuilt it.
    """
    try:
        content = read_bytes(path)
        images = file.read(content)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}). Check its permissions.") from error
    except DataError as error:
        raise DataError(
            f"{path} {error}. Delete the file, and it will be downloaded again; or replace it by "
            "the published file."
        ) from error
    sha256 = hashlib.sha256(content).hexdigest()
    published = is_published(file, content)
    if not published:
        warnings.warn(
            f"{path} is used, but it is not the published file (its SHA-256 is {sha256}). Results "
            "may not be comparable with published ones.",
            stacklevel=3,
        )
    return images, sha256, published


def _download(forms: tuple[File, ...], places: list[Path]) -> tuple[File, Path]:
    """Downloads a file into the first writable folder, from the first URL that delivers it."""
    import pooch

    place = next(filter(_is_writable, places), None)
    if place is None:
        raise DataError(f"no folder is writable: {', '.join(map(str, places))}")
    failures = []
    for file, url in [(form, url) for form in forms for url in form.urls]:
        try:
            # Not pooch.retrieve, which cannot verify a git hash. The file is moved to its final
            # name only when it is complete and verified, so no other process sees half of it.
            with tempfile.TemporaryDirectory(dir=place) as scratch, _progress() as progress:
                arriving = Path(scratch, file.name)
                bar: Any = _Bar(progress, file.name)
                pooch.HTTPDownloader(bar, chunk_size=2**16)(url, str(arriving), None)
                if not is_published(file, arriving.read_bytes()):
                    raise DataError("the downloaded file has a different hash")
                return file, arriving.replace(place / file.name)
        except (OSError, DataError) as error:
            # The text of requests repeats the URL and wraps the cause. Keep what helps the user.
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


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


class _Bar:
    """The progress bar interface of pooch, drawn by rich. pooch sets `total` before it starts."""

    def __init__(self, progress: Progress, label: str):
        self.total = 0
        self._progress, self._task = progress, progress.add_task(label, total=None)

    def update(self, size: int) -> None:
        # A total of 0 means that the size is unknown.
        self._progress.update(self._task, total=self.total or None, advance=size)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        pass
