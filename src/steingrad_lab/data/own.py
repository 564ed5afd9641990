"""Images of one's own: an .npz file, or a folder of pictures."""

import hashlib
import io
import math
import zipfile
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from .formats import MOST_BYTES, DataError

SPLITS = ("train", "valid", "test")
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff")
Stack = UInt8[np.ndarray, "images height width"]


def read_own(path: Path) -> tuple[dict[str, Stack], dict[str, str]]:
    """The three splits, and a hash of what was read.

    An .npz file has an array `train` of shape `[images, height, width]` (or `[images, pixels]`),
    and `valid` and `test` if it pleases; a folder has pictures of one size, which become grey, or
    folders `train`, `valid` and `test` of them. Where there is only one set, every tenth image goes
    to the validation split and every tenth to the test split.
    """
    if not path.exists():
        raise DataError(f"{path} is not there: --data names an .npz file or a folder of pictures.")
    try:
        arrays, digest = _folder(path) if path.is_dir() else _npz(path)
    except DataError as error:
        raise DataError(f"{path} {error}") from error
    whole = [array for array in arrays.values() if np.issubdtype(array.dtype, np.integer)]
    if whole and max(array.max(initial=0) for array in whole) == 1:
        raise DataError(
            f"{path} has whole numbers 0 and 1 alone, both nearly black among grey values from 0 "
            "to 255. Save them as bool, or as floating-point numbers."
        )
    splits = {name: _pixels(name, array) for name, array in arrays.items()}
    if set(splits) == {"train"}:
        everything, number = splits["train"], np.arange(len(splits["train"]))
        where = {"train": number % 10 < 8, "valid": number % 10 == 8, "test": number % 10 == 9}
        splits = {name: everything[chosen] for name, chosen in where.items()}
    shapes = {name: splits[name].shape[1:] for name in SPLITS}
    if len(set(shapes.values())) > 1:
        raise DataError(f"{path} has images of unlike sizes: {shapes}. Give all the same.")
    empty = [name for name in SPLITS if not len(splits[name])]
    if empty:
        raise DataError(f"{path} has no image for {' and '.join(empty)}: it takes ten or more.")
    return splits, {path.name: digest}


def _npz(path: Path) -> tuple[dict[str, np.ndarray], str]:
    if path.suffix != ".npz":
        raise DataError(
            "is neither an .npz file nor a folder: write one with np.savez_compressed(path, "
            "train=images), images of shape [images, height, width]."
        )
    content = _read(path)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MOST_BYTES:
            raise DataError(f"unpacks to {size} bytes; at most {MOST_BYTES} are read.")
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            names = set(archive.files)
            if not {"train"} <= names <= set(SPLITS) or len(names) == 2:
                raise DataError(
                    f"has the arrays {sorted(names)}: it needs train, or train, valid and test."
                )
            return {name: archive[name] for name in archive.files}, _digest(content)
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"cannot be read as an .npz file of arrays ({error}).") from error


def _folder(path: Path) -> tuple[dict[str, np.ndarray], str]:
    parts = [name for name in SPLITS if (path / name).is_dir()]
    if parts and len(parts) < 3:
        raise DataError(f"has a folder for {' and '.join(parts)} alone: it needs all three.")
    folders = {name: path / name for name in parts} or {"train": path}
    arrays, hashes = {}, []
    for name, folder in folders.items():
        files = sorted(p for p in folder.iterdir() if p.suffix.lower() in PICTURES)
        if not files:
            raise DataError(f"has no pictures in {folder.name} ({', '.join(PICTURES)}).")
        images = [_picture(file) for file in files]
        sizes = {image.shape for image in images}
        if len(sizes) > 1:
            raise DataError(f"has pictures of unlike sizes in {folder.name}: {sorted(sizes)[:4]}.")
        if len(images) * images[0].size > MOST_BYTES:
            raise DataError(f"has more than {MOST_BYTES} pixels.")
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
                    "Save it with 8, or put numbers from 0 to 1 into an .npz file."
                )
            return np.asarray(image.convert("L"))
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise DataError(f"has the picture {path.name}, which cannot be read ({error}).") from error


def _read(path: Path) -> bytes:
    if path.stat().st_size > MOST_BYTES:
        raise DataError(f"has {path.stat().st_size} bytes; at most {MOST_BYTES} are read.")
    return path.read_bytes()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _pixels(name: str, array: np.ndarray) -> Stack:
    """Grey values from 0 to 255: whole numbers as they are, others from 0 to 1."""
    if array.ndim == 2:
        side = math.isqrt(array.shape[1])
        shape = (side, side) if side**2 == array.shape[1] else (1, array.shape[1])
        array = array.reshape(len(array), *shape)
    if array.ndim != 3 or 0 in array.shape[1:]:
        raise DataError(
            f"The array {name} has shape {array.shape}: it needs [images, height, width] or "
            "[images, pixels], in grey."
        )
    if array.dtype == bool:
        return array.astype(np.uint8) * np.uint8(255)
    if np.issubdtype(array.dtype, np.integer):
        most, scale = 255, 1
    elif np.issubdtype(array.dtype, np.floating):
        most, scale = 1, 255
    else:
        raise DataError(f"The array {name} holds {array.dtype}, which are no grey values.")
    if array.size and not (array.min() >= 0 and array.max() <= most):  # a NaN fails, too
        raise DataError(
            f"The array {name} has values from {array.min():g} to {array.max():g}. Grey values are "
            "whole numbers from 0 to 255, or others from 0 to 1."
        )
    return np.rint(array * scale).astype(np.uint8)
