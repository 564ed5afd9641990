"""Bad files of images, which `attacks.py` gives to `steingrad train --data`."""

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from PIL import Image

GREY = np.arange(10 * 30).reshape(10, 5, 6).astype(np.uint8)
METHOD, FLAGS = {b"PK\3\4": 8, b"PK\1\2": 10}, {b"PK\3\4": 6, b"PK\1\2": 8}
"""Where the two headers of a member of a zip file have its compression and its flags."""


def _npy(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=True)
    return content.getvalue()


def _header(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    content = io.BytesIO()
    npy.write_array_header_1_0(content, {"descr": dtype, "fortran_order": False, "shape": shape})
    return content.getvalue()


def _zip(compression: int = zipfile.ZIP_DEFLATED, **members: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        for name, member in members.items():
            archive.writestr(f"{name}.npy", member)
    return content.getvalue()


def _changed(content: bytes, places: dict[bytes, int], value: int) -> bytes:
    """Returns a zip file with another number at these places of its headers."""
    changed = bytearray(content)
    for header, place in places.items():
        struct.pack_into("<H", changed, content.index(header) + place, value)
    return bytes(changed)


def _overwritten(content: bytes) -> bytes:
    return content[:40] + b"\xff" * 40 + content[80:]


def _npz(content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "images.npz").write_bytes(content)
        return folder / "images.npz"

    return write


def _arrays(**arrays: Any) -> Callable[[Path], Path]:
    members: dict[str, Any] = {name: _npy(np.asarray(array)) for name, array in arrays.items()}
    return _npz(_zip(**members))


def _pipe(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        os.mkfifo(folder / name)
        return folder / name if name.endswith(".npz") else folder

    return make


def _link(name: str, target: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).symlink_to(target)
        return folder / name if name.endswith(".npz") else folder

    return make


def _picture(kind: str, image: Image.Image, **options: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def _pictures(suffix: str, content: bytes, number: int = 10) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        for each in range(number):
            (folder / f"{each:02d}.{suffix}").write_bytes(content)
        return folder

    return write


def _png(width: int, height: int, pixels: bytes) -> bytes:
    """Returns a PNG file of grey pixels, whatever its header says about the number of pixels."""
    chunk = lambda kind, data: (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(pixels, 9)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _large_png() -> bytes:
    return _png(4000, 4000, bytes(4001 * 4000))


def _several(write: Callable[[], bytes], suffix: str, number: int) -> Callable[[Path], Path]:
    """Like `_pictures`, for content that is only made when it is needed."""
    return lambda folder: _pictures(suffix, write(), number)(folder)


IMAGE = Image.fromarray(GREY[0])
WHOLE = _zip(train=_npy(GREY))
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 5\n%%EndComments\n{} loop\n"
BAD_DATA: dict[str, Callable[[Path], Path]] = {
    "an .npz file that is empty": _npz(b""),
    "an .npz file that is text": _npz(b"no zip file"),
    "an .npz file cut in the middle": _npz(WHOLE[: len(WHOLE) // 2]),
    "an .npz file with other bytes in its deflated data": _npz(_overwritten(WHOLE)),
    "an .npz file with other bytes in its LZMA data": _npz(
        _overwritten(_zip(zipfile.ZIP_LZMA, train=_npy(GREY)))
    ),
    "an .npz file with other bytes in its bzip2 data": _npz(
        _overwritten(_zip(zipfile.ZIP_BZIP2, train=_npy(GREY)))
    ),
    "an .npz file of an unknown compression": _npz(_changed(WHOLE, METHOD, 99)),
    "an .npz file with a password": _npz(_changed(WHOLE, FLAGS, 1)),
    "an .npz file that unpacks to 300 MB": lambda folder: _npz(
        _zip(train=_header((3 * 10**8,)) + bytes(3 * 10**8))
    )(folder),
    "an array whose header says 10^15 bytes": _npz(_zip(train=_header((10**9, 1000, 1000)))),
    "an array whose header says 2^64 × 5 × 6 bytes": _npz(_zip(train=_header((2**64, 5, 6)))),
    "an array of negative shape": _npz(_zip(train=_header((-10, -5, 6)) + bytes(300))),
    "an array whose header is no Python": _npz(_zip(train=_npy(GREY).replace(b"{", b"("))),
    "an array whose header is nested without end": _npz(
        _zip(train=b"\x93NUMPY\1\0" + struct.pack("<H", 9000) + b"(" * 9000)
    ),
    "a member that is no array": _npz(_zip(train=b"text")),
    "a member that is empty": _npz(_zip(train=b"")),
    "an array of Python objects": _arrays(train=np.array([{}] * 10)),
    "an array of text": _arrays(train=np.full((10, 4), "a")),
    "an array of records": _arrays(train=np.zeros((10, 4), "u1,u1")),
    "an array of times": _arrays(train=np.ones((10, 4), "m8[s]")),
    "an array of one number": _arrays(train=1.0),
    "an array without images": _npz(_zip(train=_header((0, 2**40)))),
    "an array of NaN": _arrays(train=np.full((10, 4), np.nan)),
    "train from 0 to 1, test from 0 to 255, whole numbers": _arrays(
        train=GREY % 2, valid=GREY, test=GREY
    ),
    "train from 0 to 1, test from 0 to 255, fractions": _arrays(
        train=GREY / 255, valid=GREY / 255, test=GREY * 1.0
    ),
    "train from 0 to 1, test from 0 to 0.004, fractions": _arrays(
        train=GREY / 255, valid=GREY / 255, test=GREY / 255 / 255
    ),
    "a pipe as .npz file": _pipe("images.npz"),
    "a link to /dev/zero as .npz file": _link("images.npz", "/dev/zero"),
    "a link to itself as .npz file": _link("images.npz", "images.npz"),
    "a pipe among pictures": _pipe("00.png"),
    "a link to /dev/zero among pictures": _link("00.png", "/dev/zero"),
    "pictures that are empty": _pictures("png", b""),
    "pictures that are text": _pictures("jpg", b"no picture"),
    "pictures that are PostScript programs": _pictures("png", EPS),
    "PNG pictures cut in the middle": _pictures("png", _picture("PNG", IMAGE)[:60]),
    "PNG pictures without pixels": _pictures("png", _png(0, 5, b"")),
    "PNG pictures of 16 bits": _pictures("png", _picture("PNG", IMAGE.convert("I;16"))),
    "30 PNG pictures of 16 million pixels each": _several(_large_png, "png", 30),
    "PNG pictures that say 2^62 pixels": _pictures("png", _png(2**31 - 1, 2**31 - 1, b"")),
    "GIF pictures cut in the middle": _pictures("gif", _picture("GIF", IMAGE)[:-20]),
    "GIF pictures without a frame": _pictures(
        "gif", b"GIF89a" + struct.pack("<HHBBB", 6, 5, 0, 0, 0) + b";"
    ),
    "GIF pictures with two frames": _pictures(
        "gif", _picture("GIF", IMAGE, save_all=True, append_images=[Image.fromarray(GREY[1])])
    ),
    "TIFF pictures with two pages": _pictures(
        "tif", _picture("TIFF", IMAGE, save_all=True, append_images=[IMAGE])
    ),
    "TIFF pictures in Lab colours": _pictures(
        "tif", _picture("TIFF", Image.frombytes("LAB", (6, 5), bytes(90)))
    ),
}
"""What is wrong, and a function that writes it into an empty folder and returns the path."""
