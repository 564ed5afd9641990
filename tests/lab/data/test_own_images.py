"""The user's own images: what is read, and what is refused."""

import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from steingrad_lab.data import DataError, load, own

GREY = np.arange(20 * 6, dtype=np.uint8).reshape(20, 2, 3)


def stored(path, **arrays):
    np.savez_compressed(path, **arrays)
    return str(path)


def test_one_set_is_split(tmp_path):
    dataset = load(stored(tmp_path / "flowers.npz", train=GREY))
    assert dataset.name == "flowers"
    assert dataset.image_shape == (2, 3)
    assert (len(dataset.train), len(dataset.valid), len(dataset.test)) == (16, 2, 2)
    np.testing.assert_array_equal(dataset.valid, GREY.reshape(20, 6)[[8, 18]])
    np.testing.assert_array_equal(dataset.test, GREY.reshape(20, 6)[[9, 19]])
    assert dataset.files != load(stored(tmp_path / "flowers.npz", train=GREY + 1)).files


def test_three_sets_stay(tmp_path):
    path = stored(tmp_path / "own.npz", train=GREY, valid=GREY[:3], test=GREY[3:5])
    dataset = load(path)
    assert (len(dataset.train), len(dataset.valid), len(dataset.test)) == (20, 3, 2)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (GREY / 255, GREY),
        ((GREY / 255).astype(np.float32), GREY),
        (GREY > 50, np.where(GREY > 50, 255, 0)),
        (GREY.astype(np.int64), GREY),
    ],
    ids=["doubles", "floats", "booleans", "integers"],
)
def test_kinds_of_numbers(given, expected, tmp_path):
    dataset = load(stored(tmp_path / "own.npz", train=given, valid=given, test=given))
    np.testing.assert_array_equal(dataset.train, expected.reshape(20, 6))


def test_fractions_beside_whole_numbers(tmp_path):
    """The type of each array says its scale, so they may differ."""
    dataset = load(stored(tmp_path / "own.npz", train=GREY / 255, valid=GREY > 50, test=GREY))
    np.testing.assert_array_equal(dataset.train, GREY.reshape(20, 6))
    np.testing.assert_array_equal(dataset.valid, np.where(GREY > 50, 255, 0).reshape(20, 6))
    np.testing.assert_array_equal(dataset.test, dataset.train)


def test_rows_of_pixels(tmp_path):
    square = load(stored(tmp_path / "square.npz", train=np.zeros((10, 9))))
    assert square.image_shape == (3, 3)
    assert load(stored(tmp_path / "row.npz", train=np.zeros((10, 8)))).image_shape == (1, 8)


@pytest.mark.parametrize("parts", [("",), ("train", "valid", "test")])
def test_folder_of_pictures(parts, tmp_path):
    for part in parts:
        (tmp_path / "own" / part).mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(GREY):
            Image.fromarray(image).save(tmp_path / "own" / part / f"{number:02d}.png")
    (tmp_path / "own" / "notes.txt").write_text("no picture")
    dataset = load(str(tmp_path / "own"))
    assert dataset.image_shape == (2, 3)
    number = 20 if len(parts) == 3 else 16
    assert len(dataset.train) == number
    np.testing.assert_array_equal(dataset.train[:8], GREY.reshape(20, 6)[:8])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": GREY}, r"has the arrays .*images.*\. Give train"),
        ({"train": GREY, "test": GREY}, "Give train alone, or train, valid and test"),
        ({"train": np.zeros((10, 2, 2, 3))}, r"shape \(10, 2, 2, 3\)\. Give grey"),
        ({"train": np.full((10, 4), 2.0)}, "values from 2 to 2"),
        ({"train": np.full((10, 4), np.nan)}, "values from nan to nan"),
        ({"train": np.full((10, 4), 256)}, "whole numbers from 0 to 255"),
        ({"train": np.full((10, 4), -1)}, "values from -1"),
        (
            {"train": np.tile([0, 1], (10, 2))},
            "only the whole numbers 0 and 1, which are both nearly black",
        ),
        (
            {"train": GREY % 2, "valid": GREY, "test": GREY},
            "in train: train has values from 0 to 1 .* test has values from 0 to 119",
        ),
        (
            {"train": GREY / 255, "valid": GREY / 255, "test": GREY / 1.0},
            "train has values from 0 to 0.46.* test has values from 0 to 119",
        ),
        (
            {"train": GREY / 255, "valid": GREY / 255, "test": GREY / 255 / 255},
            "nearly black on the scale from 0 to 1, in test: train has values from 0 to 0.46",
        ),
        ({"train": np.full((10, 4), 1j)}, "complex128"),
        ({"train": np.ones((10, 4), "m8[s]")}, "timedelta64"),
        ({"train": np.full((10, 4), "a")}, "cannot be grey values"),
        ({"train": np.array([{}] * 10)}, "has the array train of Python objects"),
        ({"train": np.zeros((9, 4))}, "no image for test"),
        ({"train": GREY, "valid": GREY[:, :1], "test": GREY}, "images of different sizes"),
    ],
)
def test_refused(arrays, message, tmp_path):
    with pytest.raises(DataError, match=message):
        load(stored(tmp_path / "own.npz", **arrays))


def test_pictures_of_16_bits_are_refused(tmp_path):
    for number in range(10):
        image = Image.fromarray(np.full((2, 3), 20_000, np.uint16))
        image.save(tmp_path / f"{number}.png")
    with pytest.raises(DataError, match="more than 8 bits a pixel"):
        load(str(tmp_path))


def test_animations_are_refused(tmp_path):
    frames = [Image.fromarray(image) for image in GREY[:2]]
    for number in range(10):
        frames[0].save(tmp_path / f"{number}.gif", save_all=True, append_images=frames[1:])
    with pytest.raises(DataError, match=r"0\.gif with several pictures in one file"):
        load(str(tmp_path))


def test_sizes_are_checked_before_pixels_are_read(tmp_path, monkeypatch):
    for number, image in enumerate(GREY):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    monkeypatch.setattr(own, "MOST_BYTES", 119)
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("pixels were read"))
    with pytest.raises(DataError, match="pictures of 120 pixels together, but at most 119"):
        load(str(tmp_path))


def test_refused_files(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        load(str(tmp_path / "none.npz"))
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 no zip")
    with pytest.raises(DataError, match="cannot be read"):
        load(str(tmp_path / "bad.npz"))
    (tmp_path / "text.txt").write_text("text")
    with pytest.raises(DataError, match=r"neither an \.npz file nor a folder"):
        load(str(tmp_path / "text.txt"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no pictures"):
        load(str(tmp_path / "empty"))
    for number, width in enumerate((2, 3)):
        Image.new("L", (width, 2)).save(tmp_path / "empty" / f"{number}.png")
    with pytest.raises(DataError, match="pictures of different sizes"):
        load(str(tmp_path / "empty"))


def test_an_archive_that_unpacks_to_more_than_fits(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (2**29,)}
    )
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train.npy", header.getvalue() + bytes(2**29))
    assert (tmp_path / "bomb.npz").stat().st_size < 2**20
    with pytest.raises(DataError, match="at most 268435456 are read"):
        load(str(tmp_path / "bomb.npz"))
