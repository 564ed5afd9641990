"""Damaged files of a user's own images: each is read or refused, and nothing else happens."""

import io
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from steingrad_lab.data import DataError
from steingrad_lab.data.own import SPLITS, read_own

GREY = np.arange(10 * 30, dtype=np.uint16).reshape(10, 5, 6).astype(np.uint8)


def archive(compression):
    content, array = io.BytesIO(), io.BytesIO()
    np.save(array, GREY)
    with zipfile.ZipFile(content, "w", compression) as file:
        file.writestr("train.npy", array.getvalue())
    return content.getvalue()


def picture(kind, mode="L", **options):
    content = io.BytesIO()
    Image.fromarray(GREY[0]).convert(mode).save(content, kind, **options)
    return content.getvalue()


WHOLE = {
    "stored.npz": archive(zipfile.ZIP_STORED),
    "deflated.npz": archive(zipfile.ZIP_DEFLATED),
    "bzip2.npz": archive(zipfile.ZIP_BZIP2),
    "lzma.npz": archive(zipfile.ZIP_LZMA),
    "grey.png": picture("PNG"),
    "palette.png": picture("PNG", "P"),
    "bits.png": picture("PNG", "1"),
    "still.gif": picture("GIF"),
    "photo.jpg": picture("JPEG"),
    "windows.bmp": picture("BMP"),
    "scan.tif": picture("TIFF"),
    "packed.tif": picture("TIFF", compression="tiff_lzw"),
}


def read(folder, name, content):
    """Reads an .npz file, or a folder with the same picture in each split."""
    alone = name.endswith(".npz")
    for place in [folder] if alone else [folder / split for split in SPLITS]:
        place.mkdir(exist_ok=True)
        (place / name).write_bytes(content)
    return read_own(folder / name if alone else folder)[0]


@pytest.mark.parametrize("name", WHOLE)
def test_without_damage(name, tmp_path):
    splits = read(tmp_path, name, WHOLE[name])
    assert splits["train"].shape[1:] == (5, 6)
    if name in ("stored.npz", "deflated.npz", "bzip2.npz", "lzma.npz", "grey.png", "still.gif"):
        np.testing.assert_array_equal(splits["train"][0], GREY[0])


@pytest.mark.filterwarnings("ignore")  # Pillow warns about some of the damage
@pytest.mark.parametrize("name", WHOLE)
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    edits=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4),
    length=st.integers(0, 2000),
)
def test_with_damage(name, edits, length, tmp_path_factory):
    """Some bytes are changed, and the end may be missing."""
    content = bytearray(WHOLE[name])
    for place, value in edits:
        content[place % len(content)] = value
    folder = tmp_path_factory.mktemp("damage")
    try:
        splits, said = read(folder, name, content[:length]), ""
    except DataError as error:
        splits, said = {}, str(error)
    assert bool(splits) != (str(folder) in said)
    assert all(split.dtype == np.uint8 and split.size for split in splits.values())
