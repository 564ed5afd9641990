"""Read the user's own images from an .npz file or a folder of pictures."""

import hashlib
import io
import math
import zipfile
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from .formats import MOST_BYTES, DataError, read_bytes

SPLITS = ("train", "valid", "test")
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff")
Stack = UInt8[np.ndarray, "images height width"]


def read_own(path: Path) -> tuple[dict[str, Stack], dict[str, str]]:
    """Returns the three splits, and a hash of the content by the name of the file or folder.

    An .npz file has an array `train` of shape `[images, height, width]` (or `[images, pixels]`),
    and optionally `valid` and `test`. A folder has pictures of one size, or folders `train`,
    `valid` and `test` of such pictures; colours are converted to grey. If only `train` is given,
    a tenth of the images becomes the validation split and another tenth the test split.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist. Give an .npz file or a folder of pictures.")
    try:
        arrays, digest = _folder(path) if path.is_dir() else _npz(path)
        return _split(arrays), {path.name: digest}
    except DataError as error:
        raise DataError(f"{path} {error}.") from error


def _split(arrays: dict[str, np.ndarray]) -> dict[str, Stack]:
    whole = [array for array in arrays.values() if np.issubdtype(array.dtype, np.integer)]
    if whole and max(array.max(initial=0) for array in whole) == 1:
        raise DataError(
            "has only the whole numbers 0 and 1, which are both nearly black on the scale from 0 "
            "to 255. Save the pixels as bool or as floating-point numbers"
        )
    splits = {name: _pixels(name, array) for name, array in arrays.items()}
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
            size = sum(member.file_size for member in archive.infolist())
        if size > MOST_BYTES:
            raise DataError(f"unpacks to {size} bytes, but at most {MOST_BYTES} are read")
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            names = set(archive.files)
            if not {"train"} <= names <= set(SPLITS) or len(names) == 2:
                raise DataError(
                    f"has the arrays {sorted(names)}. Give train alone, or train, valid and test"
                )
            return {name: archive[name] for name in archive.files}, _digest(content)
    except DataError:
        raise
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"cannot be read as an .npz file of arrays ({error})") from error


def _folder(path: Path) -> tuple[dict[str, np.ndarray], str]:
    parts = [name for name in SPLITS if (path / name).is_dir()]
    if parts and len(parts) < 3:
        raise DataError(f"has only the folders {parts}. Give train, valid and test, or none")
    folders = {name: path / name for name in parts} or {"train": path}
    arrays, hashes = {}, []
    for name, folder in folders.items():
        files = sorted(p for p in folder.iterdir() if p.suffix.lower() in PICTURES)
        if not files:
            raise DataError(f"has no pictures ({', '.join(PICTURES)}) in {folder.name}")
        images = [_picture(file) for file in files]
        sizes = {image.shape for image in images}
        if len(sizes) > 1:
            listed = ", ".join(map(str, sorted(sizes)[:4]))
            raise DataError(
                f"has pictures of different sizes in {folder.name}: {listed}. Give all one size"
            )
        if len(images) * images[0].size > MOST_BYTES:
            raise DataError(f"has more than {MOST_BYTES} pixels, which is the most that is read")
        arrays[name] = np.stack(images)
        hashes.append(_digest(arrays[name].tobytes()))
    return arrays, hashes[0] if len(hashes) == 1 else _digest("".join(hashes).encode())


def _picture(path: Path) -> UInt8[np.ndarray, "height width"]:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            if image.mode in ("I", "F") or image.mode.startswith("I;16"):
                raise DataError(
                    f"has the picture {path.name} with more than 8 bits a pixel ({image.mode}). "
                    "Save it with 8 bits, or put numbers from 0 to 1 into an .npz file"
                )
            return np.asarray(image.convert("L"))
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise DataError(f"has the picture {path.name}, which cannot be read ({error})") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _pixels(name: str, array: np.ndarray) -> Stack:
    """Returns grey values from 0 to 255. Floating-point numbers are scaled from [0, 1]."""
    if array.ndim == 2:
        side = math.isqrt(array.shape[1])
        shape = (side, side) if side**2 == array.shape[1] else (1, array.shape[1])
        array = array.reshape(len(array), *shape)
    if array.ndim != 3 or 0 in array.shape[1:]:
        raise DataError(
            f"has the array {name} of shape {array.shape}. Give grey images, of shape "
            "[images, height, width] or [images, pixels]"
        )
    if array.dtype == bool:
        return array.astype(np.uint8) * np.uint8(255)
    if np.issubdtype(array.dtype, np.integer):
        most, scale = 255, 1
    elif np.issubdtype(array.dtype, np.floating):
        most, scale = 1, 255
    else:
        raise DataError(f"has the array {name} of {array.dtype}, which cannot be grey values")
    if array.size and not (array.min() >= 0 and array.max() <= most):  # in this form NaN fails too
        raise DataError(
            f"has the array {name} with values from {array.min():g} to {array.max():g}. Give whole "
            "numbers from 0 to 255, or floating-point numbers from 0 to 1"
        )
    return np.rint(array * scale).astype(np.uint8)
