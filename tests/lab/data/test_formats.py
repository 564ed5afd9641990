"""Readers of the file formats, and what they say about damaged files."""

import gzip
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from small_dataset import (
    CONTENT,
    TEST,
    idx,
    mat,
    put,
)

from steingrad_lab import data
from steingrad_lab.data import formats
from steingrad_lab.data.formats import read_amat, read_idx, read_mat, unpack

ONE = np.zeros((1, 2, 3), np.uint8)
DAMAGED = {
    "not gzip": (b"<html>not here</html>", "gzip"),
    "truncated gzip": (CONTENT["test.gz"][:-9], "truncated gzip"),
    "bit flip": (CONTENT["test.gz"][:-8] + b"\xff\xff" + CONTENT["test.gz"][-6:], "gzip"),
    "empty": (b"", "magic number"),
    "short header": (gzip.compress(idx(TEST)[:9]), "magic number"),
    "labels": (gzip.compress(idx(TEST, magic=0x801)), "magic number"),
    "another shape": (gzip.compress(idx(ONE)), r"\(1, 2, 3\) where \(2, 2, 3\)"),
    "truncated": (gzip.compress(idx(TEST)[:-1]), "11 pixels where 12"),
    "too long": (gzip.compress(idx(TEST) + b"\0"), "more than the 28 bytes"),
}


@pytest.mark.parametrize(("content", "reason"), DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_refused_by_name(content, reason, small, places):
    put(places / "cache", CONTENT | {"test.gz": content})
    path = re.escape(str(places / "cache" / "small-folder" / "test.gz"))
    with pytest.raises(data.DataError, match=rf"{path} .*{reason}.*\. Delete the file"):
        data.load(small)
    assert not data.status()[-1].published  # and the listing still works


def measured(read, *arguments):
    """Returns the peak memory of a read that fails, in bytes, and the error message."""
    tracemalloc.start()
    with pytest.raises(data.DataError) as error:
        read(*arguments)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most, str(error.value)


def test_what_unpacks_to_too_much_is_refused_before_memory_goes():
    """Checks three cases: the header says so, the header lies, and only a hash is needed."""
    zeros = bytes(10**8)
    by_header = gzip.compress(idx(TEST, shape=(10**6, 100, 100)) + zeros)
    most, said = measured(read_idx, by_header, (2, 2, 3))
    assert "holds images of shape (1000000, 100, 100)" in said
    assert most < 10**7
    most, said = measured(read_idx, gzip.compress(idx(TEST) + zeros), (2, 2, 3))
    assert said == "unpacks to more than the 28 bytes expected"
    assert most < 10**7
    assert measured(unpack, by_header, 10**6)[0] < 10**7


def test_a_mat_file_of_another_shape_is_refused_by_its_header(monkeypatch):
    monkeypatch.setattr(scipy.io, "loadmat", lambda *_, **__: pytest.fail("unpacked"))
    with pytest.raises(data.DataError, match=r"'X' of shape \(300, 300\) where \(4, 4\)"):
        read_mat(mat(X=np.zeros((300, 300))), {"X": (4, 4)})


def test_a_file_larger_than_any_dataset_is_not_read(small, places, monkeypatch):
    put(places / "cache")
    monkeypatch.setattr(formats, "MOST_BYTES", 20)
    with pytest.raises(data.DataError, match=r"at most 20 are read\. Delete the file"):
        data.load(small)
    assert not data.status()[-1].published


def test_an_unreadable_file_is_refused_by_name(small, places, monkeypatch):
    put(places / "cache")

    def locked(path, mode):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", locked)
    with pytest.raises(data.DataError, match=r"train\.gz cannot be read .*Permission denied"):
        data.load(small)
    assert data.status()[-1].found
    assert not data.status()[-1].published


SPARSE = scipy.sparse.csc_array(np.eye(4))
BAD_MAT = {
    "text": (b"not a MATLAB file" * 20, "not a readable MATLAB file"),
    "empty": (b"", "not a readable MATLAB file"),
    "truncated": (mat(X=np.zeros((4, 4)))[:-30], "not a readable MATLAB file"),
    "no key": (mat(Y=np.zeros((4, 4)), Z=np.ones(3)), r"no array 'X' \(its arrays: Y, Z\)"),
    "shape": (mat(X=np.zeros((5, 4))), r"'X' of shape \(5, 4\) where \(4, 4\)"),
    "words": (mat(X="words"), r"'X' of shape \(1,\)"),
    "sparse": (mat(X=SPARSE), "plain numbers"),
    "complex": (mat(X=np.full((4, 4), 1j)), "plain numbers"),
    "too large": (mat(X=np.full((4, 4), 2)), r"outside \[0, 1\]"),
    "negative": (mat(X=np.full((4, 4), -0.1)), r"outside \[0, 1\]"),
    "not a number": (mat(X=np.full((4, 4), np.nan)), r"outside \[0, 1\]"),
}


@pytest.mark.parametrize(("content", "reason"), BAD_MAT.values(), ids=BAD_MAT.keys())
def test_a_bad_mat_file_is_refused(content, reason):
    with pytest.raises(data.DataError, match=reason):
        read_mat(content, {"X": (4, 4)})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"0 1\n1 0", "7 bytes where 8 are expected, for 2 lines of 2 pixels"),
        (b"0 2\n1 0\n", "0s and 1s"),
        (b"0 1\n1 -\n", "0s and 1s"),
        (b"0 1 1\n0\n", "0s and 1s"),
        (b"0,1\n1,0\n", "0s and 1s"),
    ],
)
def test_a_bad_amat_file_is_refused(content, reason):
    with pytest.raises(data.DataError, match=reason):
        read_amat(content, (2, 2))


def test_mat_values_are_rounded_to_bytes():
    values = np.array([[0, 0.25, 0.5, 1.0]])
    for dtype in (np.float32, np.float64):
        images = read_mat(mat(X=values.astype(dtype)), {"X": (1, 4)})
        assert images.tolist() == [[0, 64, 128, 255]]
    levels = np.arange(256).reshape(1, 256)
    assert read_mat(mat(X=levels / 255), {"X": (1, 256)}).tolist() == levels.tolist()


def test_column_major_images_are_turned_upright():
    upright = np.arange(2 * 16).reshape(2, 4, 4) / 255  # [image, row, column]
    columns = upright.transpose(2, 1, 0).reshape(16, 2)  # [column, row, image]: MATLAB's layout
    one, two = {"data": columns[:, :1]}, {"testdata": columns[:, 1:]}
    images = read_mat(mat(**one, **two), {"data": (16, 1), "testdata": (16, 1)}, column_major=True)
    np.testing.assert_array_equal(images, np.arange(32).reshape(2, 16))
