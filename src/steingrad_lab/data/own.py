"""Read the user's own images from an .npz file or a folder of pictures.

Sizes are taken from headers and checked before anything of that size is read, because a small file
can unpack to more than fits in memory.
"""

import contextlib
import hashlib
import io
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from numpy.lib import format as npy

from .formats import MOST_BYTES, DataError, check_regular, read_bytes

SPLITS = ("train", "valid", "test")
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff")
# Pillow recognises a format by its content, and would start other programs for some formats.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF")
Stack = UInt8[np.ndarray, "images height width"]


def read_own(path: Path) -> tuple[dict[str, Stack], dict[str, str]]:
    """Returns the three splits, and a hash of the content by the name of the file or folder.

    An .npz file has an array `train` of shape `[images, height, width]` (or `[images, pixels]`),
    and optionally `valid` and `test`. A folder has pictures of one size, or folders `train`,
    `valid` and `test` of such pictures; colours are converted to grey. If only `train` is given,
    a tenth of the images becomes the validation split and another tenth the test split.
    """
    try:
        if not path.exists():
            raise DataError("does not exist. Give an .npz file or a folder of pictures")
        arrays, digest = _folder(path) if path.is_dir() else _npz(path)
        return _split(arrays), {path.name: digest}
    except DataError as error:
        raise DataError(f"{path} {error}.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}). Check its permissions.") from error


def _split(arrays: dict[str, np.ndarray]) -> dict[str, Stack]:
    arrays = {name: _images(name, array) for name, array in arrays.items()}
    splits = _pixels(arrays)
    if set(splits) == {"train"}:
        everything, number = splits["train"], np.arange(len(splits["train"]))
        where = {"train": number % 10 < 8, "valid": number % 10 == 8, "test": number % 10 == 9}
        splits = {name: everything[chosen] for name, chosen in where.items()}
    shapes = {name: splits[name].shape[1:] for name in SPLITS}
    if len(set(shapes.values())) > 1:
        raise DataError(f"has images of different sizes: {shapes}. Give all images one size")
    empty = [name for name in SPLITS if not len(splits[name])]
    if empty:
        raise DataError(f"has no image for {' and '.join(empty)}. Give ten images or more")
    return splits


def _npz(path: Path) -> tuple[dict[str, np.ndarray], str]:
    if path.suffix != ".npz":
        raise DataError(
            "is neither an .npz file nor a folder. Write an .npz file with "
            "np.savez_compressed(path, train=images), with images of shape [images, height, width]"
        )
    content = read_bytes(path)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [
                (member.filename.removesuffix(".npy"), member) for member in archive.filelist
            ]
            names = sorted(name for name, _ in members)
            if names not in (["train"], sorted(SPLITS)):
                listed = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
                raise DataError(
                    f"has the arrays {listed or 'none'}. Give train alone, or train, valid and test"
                )
            size = sum(member.file_size for _, member in members)
            if size > MOST_BYTES:
                raise DataError(f"unpacks to {size} bytes, but at most {MOST_BYTES} are read")
            return {name: _array(archive, name, member) for name, member in members}, _sha(content)
    except DataError:
        raise
    except Exception as error:  # zipfile raises many kinds of errors for damaged files
        raise DataError(
            f"cannot be read as an .npz file of arrays ({_why(error)}). Save it again with "
            "np.savez_compressed"
        ) from error


def _array(archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo) -> np.ndarray:
    """Reads an array if its size is what its header says. NumPy would trust the header."""
    if member.flag_bits & 1:
        raise DataError(f"has the array {name}, which is encrypted. Save it without a password")
    try:
        with archive.open(member) as file:
            version = npy.read_magic(file)
            header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, _, dtype = header(file)
            there, announced = member.file_size - file.tell(), math.prod(shape) * dtype.itemsize
        if dtype.hasobject:
            raise DataError(
                f"has the array {name} of Python objects, which are not read. Save an array of "
                "numbers"
            )
        if announced != there:
            raise DataError(
                f"has the array {name}, which is damaged: its header says {announced} bytes (shape "
                f"{shape}, {dtype}), but there are {there}. Save the file again"
            )
        with archive.open(member) as file:
            return npy.read_array(file, allow_pickle=False)
    except DataError:
        raise
    except Exception as error:  # NumPy, zipfile and the decompressors raise many kinds of errors
        raise DataError(
            f"has the array {name}, which cannot be read ({_why(error)}). Save the file again with "
            "np.savez_compressed"
        ) from error


def _folder(path: Path) -> tuple[dict[str, np.ndarray], str]:
    parts = [name for name in SPLITS if (path / name).is_dir()]
    if parts and len(parts) < 3:
        raise DataError(f"has only the folders {parts}. Give train, valid and test, or none")
    files, sizes = {}, {}
    for name, folder in ({part: path / part for part in parts} or {"train": path}).items():
        files[name] = sorted(p for p in folder.iterdir() if p.suffix.lower() in PICTURES)
        if not files[name]:
            raise DataError(f"has no pictures ({', '.join(PICTURES)}) in {folder.name}")
        found = {_size(file) for file in files[name]}
        if len(found) > 1:
            listed = ", ".join(map(str, sorted(found)[:4]))
            raise DataError(
                f"has pictures of different sizes in {folder.name}: {listed}. Give all one size"
            )
        sizes[name] = found.pop()
    pixels = sum(len(files[name]) * math.prod(size) for name, size in sizes.items())
    if pixels > MOST_BYTES:
        raise DataError(
            f"has pictures of {pixels} pixels together, but at most {MOST_BYTES} are read"
        )
    arrays, hashes = {}, []
    for name, size in sizes.items():
        arrays[name] = np.empty((len(files[name]), *size), np.uint8)
        for number, file in enumerate(files[name]):
            arrays[name][number] = _picture(file, size)
        hashes.append(_sha(arrays[name]))
    return arrays, hashes[0] if len(hashes) == 1 else _sha("".join(hashes).encode())


def _size(path: Path) -> tuple[int, int]:
    """Returns the height and width in a picture's header. Refuses what is no grey picture."""
    try:
        check_regular(path)
    except DataError as error:
        raise DataError(f"has the picture {path.name}, which {error}") from error
    with _opened(path) as image:
        if image.mode in ("I", "F") or image.mode.startswith("I;16"):
            raise DataError(
                f"has the picture {path.name} with more than 8 bits a pixel ({image.mode}). "
                "Save it with 8 bits, or put numbers from 0 to 1 into an .npz file"
            )
        # The further pictures of an MPO file, as cameras write them, are previews.
        if getattr(image, "is_animated", False) and image.format != "MPO":
            raise DataError(
                f"has {path.name} with several pictures in one file. Save each of them as a file"
            )
        return image.height, image.width


def _picture(path: Path, size: tuple[int, int]) -> UInt8[np.ndarray, "height width"]:
    with _opened(path) as image:
        grey = np.asarray(image.convert("L"))
    if grey.shape != size:
        raise DataError(
            f"has the picture {path.name} of size {grey.shape}, but its header says {size}. Save "
            "it again"
        )
    return grey


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Opens a picture, of which only the header is read at first."""
    from PIL import Image

    try:
        with Image.open(path, formats=FORMATS) as image:
            yield image
    except DataError:
        raise
    except Exception as error:  # Pillow raises many kinds of errors for damaged files
        raise DataError(
            f"has the picture {path.name}, which cannot be read ({_why(error)}). Save it again, or "
            "move it away"
        ) from error


def _sha(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__


def _images(name: str, array: np.ndarray) -> np.ndarray:
    """Returns real numbers of shape [images, height, width]. Rows of pixels become squares."""
    if array.dtype.kind not in "biuf":
        raise DataError(f"has the array {name} of {array.dtype}, which cannot be grey values")
    if array.ndim not in (2, 3) or not array.size:
        raise DataError(
            f"has the array {name} of shape {array.shape}. Give grey images, of shape "
            "[images, height, width] or [images, pixels]"
        )
    if array.ndim == 3:
        return array
    side = math.isqrt(array.shape[1])
    shape = (side, side) if side**2 == array.shape[1] else (1, array.shape[1])
    return array.reshape(len(array), *shape)


def _pixels(arrays: dict[str, np.ndarray]) -> dict[str, Stack]:
    """Returns grey values from 0 to 255. Floating-point numbers are scaled from [0, 1].

    Each split is judged by itself: one of them may have another range than the others.
    """
    spans = {name: (float(array.min()), float(array.max())) for name, array in arrays.items()}
    ranges = ", ".join(
        f"{name} has values from {low:g} to {high:g} ({arrays[name].dtype})"
        for name, (low, high) in spans.items()
    )
    splits = {}
    for name, array in arrays.items():
        whole, (low, high) = array.dtype.kind in "iu", spans[name]
        most = 255 if whole else 1
        if not 0 <= low <= high <= most:  # in this form NaN is refused too
            raise DataError(
                f"has an array that is not on a scale of grey values: {ranges}. Give whole numbers "
                "from 0 to 255, or floating-point numbers from 0 to 1"
            )
        if array.dtype.kind == "f":
            array = array * 255
            np.rint(array, out=array)
        splits[name] = array.astype(np.uint8) * np.uint8(255 if array.dtype.kind == "b" else 1)
        if splits[name].max() <= 1 and high > 0:
            said = "the whole numbers 0 and 1, which are both" if whole else "numbers that are all"
            raise DataError(
                f"has only {said} nearly black on the scale from 0 to {most}, in {name}: {ranges}. "
                "Save the pixels as bool or as floating-point numbers from 0 to 1, or as whole "
                "numbers from 0 to 255"
            )
    return splits
