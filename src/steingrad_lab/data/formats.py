"""File formats: readers that turn the bytes of a file into images, one row of uint8 pixels each.

Every reader checks the shape and the values. A file that it cannot read raises a `DataError` whose
text is the second half of a sentence: the caller puts the path before it, and what to do after it.
"""

import contextlib
import gzip
import io
import math
import stat
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

Images = UInt8[np.ndarray, "images pixels"]


class DataError(ValueError):
    """Raised when a dataset cannot be loaded. The message says what is wrong and what to do."""


MOST_BYTES = 2**28
"""Larger files are refused, packed or unpacked: every dataset is smaller."""


def check_regular(path: Path) -> None:
    """Raises unless a path leads to an ordinary file of at most `MOST_BYTES`.

    Reading a pipe would wait for somebody to write, and reading a device may never end.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(status.st_mode), "a device")
        raise DataError(f"is {kind}, but only ordinary files are read")
    if status.st_size > MOST_BYTES:
        raise DataError(f"has {status.st_size} bytes, but at most {MOST_BYTES} are read")


def read_bytes(path: Path) -> bytes:
    """Returns the content of an ordinary file. More than `MOST_BYTES` are refused."""
    check_regular(path)
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:  # the file is growing, or its file system does not know its size
        raise DataError(f"has more than {MOST_BYTES} bytes, which is the most that is read")
    return content


def unpack(content: bytes, most: int = MOST_BYTES) -> bytes:
    """Returns the content of a gzip file. More than `most` bytes are refused before memory fills.

    >>> unpack(gzip.compress(b"pixels"))
    b'pixels'
    >>> unpack(gzip.compress(b"pixels"), most=5)
    Traceback (most recent call last):
    steingrad_lab.data.formats.DataError: unpacks to more than the 5 bytes expected
    """
    with _unpacking(content) as file:
        raw = file.read(most + 1)  # one byte more than allowed; reaching the end checks the CRC
    if len(raw) > most:
        raise DataError(f"unpacks to more than the {most} bytes expected")
    return raw


@contextlib.contextmanager
def _unpacking(content: bytes) -> Iterator[gzip.GzipFile]:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"is a damaged or truncated gzip file ({error})") from error


def read_idx(content: bytes, shape: tuple[int, int, int]) -> Images:
    """Reads MNIST's gzipped idx format: magic number, shape (images, rows, columns), pixels.

    >>> one_image = struct.pack(">4I", 0x803, 1, 2, 2) + bytes([0, 85, 170, 255])
    >>> read_idx(gzip.compress(one_image), shape=(1, 2, 2))
    array([[  0,  85, 170, 255]], dtype=uint8)
    """
    with _unpacking(content) as file:
        header = file.read(16)
    if len(header) < 16 or header[:4] != b"\0\0\x08\x03":
        raise DataError("does not start with the magic number 2051 of an idx file of images")
    found = struct.unpack(">3I", header[4:])
    if found != shape:
        raise DataError(f"holds images of shape {found} where {shape} is expected")
    raw = unpack(content, 16 + math.prod(shape))
    if len(raw) - 16 != math.prod(shape):
        raise DataError(f"holds {len(raw) - 16} pixels where {math.prod(shape)} are expected")
    return np.frombuffer(raw, np.uint8, offset=16).reshape(shape[0], -1)


def read_mat(
    content: bytes, shapes: Mapping[str, tuple[int, int]], column_major: bool = False
) -> Images:
    """Reads the named arrays of a MATLAB file, one after the other; [0, 1] becomes 0 to 255.

    With `column_major` an array has MATLAB's layout: its shape is [pixels, images], and the pixels
    of a square image are stored column by column.
    """
    import scipy.io

    try:
        # Read the header first: a compressed array in a small file may be larger than memory.
        there = {name: found for name, found, _ in scipy.io.whosmat(io.BytesIO(content))}
        names = [name for name, shape in shapes.items() if there.get(name) == shape]
        arrays = scipy.io.loadmat(io.BytesIO(content), variable_names=names) if names else {}
    except Exception as error:  # scipy raises many kinds of errors for damaged files
        raise DataError(f"is not a readable MATLAB file ({error})") from error
    parts = []
    for key, shape in shapes.items():
        if key not in there:
            raise DataError(f"has no array '{key}' (its arrays: {', '.join(there) or 'none'})")
        if there[key] != shape:
            raise DataError(f"has an array '{key}' of shape {there[key]} where {shape} is expected")
        array = arrays[key]
        numbers = isinstance(array, np.ndarray) and array.dtype.kind in "buif"
        if not numbers or array.shape != shape:  # text has another shape than its header says
            raise DataError(f"has an array '{key}' that does not hold plain numbers")
        if not (array.min() >= 0 and array.max() <= 1):  # in this form NaN is refused too
            raise DataError(f"has values outside [0, 1] in its array '{key}'")
        if column_major:
            side = math.isqrt(shape[0])
            array = array.T.reshape(-1, side, side).swapaxes(1, 2).reshape(-1, side * side)
        parts.append(np.rint(np.float32(255) * array).astype(np.uint8))
    return np.concatenate(parts)


def read_amat(content: bytes, shape: tuple[int, int]) -> Images:
    r"""Reads binary images from text: one line per image, pixels (0 or 1) separated by one space.

    >>> read_amat(b"0 1 1\n1 0 0\n", shape=(2, 3))
    array([[  0, 255, 255], [255,   0,   0]], dtype=uint8)
    """
    if len(content) != 2 * math.prod(shape):
        raise DataError(
            f"has {len(content)} bytes where {2 * math.prod(shape)} are expected, for {shape[0]} "
            f"lines of {shape[1]} pixels"
        )
    # Each pixel is one digit and one separator, so the bytes can be read as an array.
    text = np.frombuffer(content, np.uint8).reshape(*shape, 2)
    bits = text[:, :, 0] - ord("0")
    separators = np.full(shape[1], ord(" "), np.uint8)
    separators[-1] = ord("\n")
    if bits.max() > 1 or (text[:, :, 1] != separators).any():
        raise DataError("is not made of lines of 0s and 1s separated by single spaces")
    return bits * np.uint8(255)
