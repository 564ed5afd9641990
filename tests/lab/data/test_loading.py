"""Finding files, verifying their hashes, splitting them, and listing what is available."""

import gzip
from collections import Counter
from functools import partial

import numpy as np
import pytest
from sklearn.datasets import load_digits
from small_dataset import (
    CONTENT,
    TEST,
    amat,
    assert_small,
    idx,
    mat,
    put,
    sha256,
)

from steingrad_lab import data
from steingrad_lab.data.formats import read_amat, read_mat
from steingrad_lab.data.sources import SOURCES, File, Source


def test_the_names_are_those_of_the_design():
    assert data.NAMES == ("digits", "mnist", "fashion_mnist", "omniglot", "binarized_mnist")


def test_an_unknown_dataset_is_refused_with_the_names():
    with pytest.raises(data.DataError, match=r"'cifar'.*digits, mnist, fashion_mnist, omniglot"):
        data.load("cifar")


def test_digits_are_scikit_learns_and_never_change():
    digits = data.load("digits", download=False)
    together = np.concatenate([digits.train, digits.valid, digits.test])
    original = np.rint(load_digits().data * 255 / 16).astype(np.uint8)
    assert Counter(map(bytes, together)) == Counter(map(bytes, original))
    assert together.max() == 255
    # If this hash changes, the splits of every user change.
    assert digits.files == {
        "digits": "3784c857898a50ab08a812b56955411220ede687f44136b0880d3d2fd1c667fd"
    }


def test_digits_splits_are_alike():
    """scikit-learn orders the images by writer, but every split must have images of each writer."""
    digits = data.load("digits")
    original = np.rint(load_digits().data * 255 / 16).astype(np.uint8)
    position = {image.tobytes(): i for i, image in enumerate(original)}
    for split in (digits.train, digits.valid, digits.test):
        positions = [position[image.tobytes()] for image in split]
        counts, _ = np.histogram(positions, bins=10, range=(0, 1797))
        np.testing.assert_allclose(counts, len(split) / 10, atol=2)
        labels = np.bincount(load_digits().target[positions], minlength=10) / len(split)
        np.testing.assert_allclose(labels, 0.1, atol=0.03)


def test_files_become_splits_in_order(small, places):
    put(places / "mine")
    dataset = data.load(small, places / "mine")
    assert_small(dataset)
    assert dataset.files == {f"small-folder/{name}": sha256(text) for name, text in CONTENT.items()}


def test_folders_are_searched_in_order(small, places, monkeypatch):
    monkeypatch.setenv("STEINGRAD_DATA_DIR", str(places / "environment"))

    def found():
        status = next(status for status in data.status(argument) if status.name == small)
        return status.where if status.found else None

    argument = places / "argument"
    for root in ("argument", "environment"):
        (places / root).mkdir()
    assert found() is None
    for root in ("system", "cache", "argument"):  # each has precedence over those before
        put(places / root)
        assert found() == str(places / root / "small-folder")
    argument = None
    assert found() == str(places / "cache" / "small-folder")
    put(places / "environment")
    assert found() == str(places / "environment" / "small-folder")
    assert_small(data.load(small))


def test_files_may_lie_in_different_folders(small, places):
    put(places / "cache", {"train.gz": CONTENT["train.gz"]})
    put(places / "system", {"test.gz": CONTENT["test.gz"]})
    assert_small(data.load(small))


def test_another_file_is_used_with_a_warning_and_its_hash_recorded(small, places):
    other = gzip.compress(idx(TEST + 1))
    put(places / "cache", CONTENT | {"test.gz": other})
    with pytest.warns(UserWarning, match=rf"test\.gz.*not the published.*{sha256(other)}"):
        dataset = data.load(small)
    assert (dataset.test == 10).all()
    assert dataset.files["small-folder/test.gz"] == sha256(other)


def test_the_published_content_compressed_anew_is_the_published_one(small, places):
    again = {name: gzip.compress(gzip.decompress(text), 1) for name, text in CONTENT.items()}
    assert again != CONTENT
    put(places / "system", again)
    assert_small(data.load(small))  # a warning would be an error
    assert data.status()[-1].published


@pytest.mark.parametrize("form", ["mat", "amat"])
def test_binarized_mnist_is_read_in_both_forms(form, places, monkeypatch):
    bits = np.random.default_rng(0).integers(0, 2, (7, 784), dtype=np.uint8)
    parts = {"train": bits[:4], "valid": bits[4:5], "test": bits[5:]}
    contents = {}
    forms = []
    for split, part in parts.items():
        text = mat(X=part) if form == "mat" else amat(part)
        contents[f"{split}.{form}"] = text
        forms.append(
            (
                File(
                    f"{split}.mat",
                    partial(read_mat, shapes={"X": part.shape}),
                    (f"sha256:{sha256(text)}",),
                ),
                File(
                    f"{split}.amat",
                    partial(read_amat, shape=part.shape),
                    (f"sha256:{sha256(text)}",),
                ),
            )
        )
    monkeypatch.setitem(SOURCES, "bits", Source("bits", (28, 28), (4, 1, 2), tuple(forms)))
    put(places / "cache", contents, "bits")
    dataset = data.load("bits")
    for split, part in parts.items():
        np.testing.assert_array_equal(getattr(dataset, split), part * 255)


def test_every_dataset_can_be_downloaded_and_checked():
    lengths = {"sha256": 64, "git-blob": 40, "unpacked-md5": 32}
    for name in data.NAMES[1:]:
        source = SOURCES[name]
        assert sum(source.splits) in (70_000, 32_415)
        for forms in source.files:
            hosted = [file for file in forms if file.urls]
            assert len(hosted) == 1
            assert len(hosted[0].urls) == 2  # an address and a mirror
            assert all(url.endswith("/" + hosted[0].name) for url in hosted[0].urls)
            for file in forms:
                for algorithm, _, value in (published.partition(":") for published in file.hashes):
                    assert len(bytes.fromhex(value)) * 2 == lengths[algorithm]


def test_status_before_anything_is_there(places):
    digits, *others = data.status()
    assert digits.found
    assert digits.published
    assert tuple(status.name for status in (digits, *others)) == data.NAMES
    for status in others:
        assert not status.found
        assert not status.published
        assert status.where == str(places / "cache" / SOURCES[status.name].folder)
        assert all(file.path is None and file.size == 0 for file in status.files)


def test_status_of_what_is_there(small, places):
    put(places / "cache", CONTENT | {"test.gz": b"something else"})
    status = data.status()[-1]
    assert status.name == small
    assert status.found
    assert not status.published
    folder = places / "cache" / "small-folder"
    assert status.where == str(folder)
    assert (status.image_shape, status.splits) == ((2, 3), (3, 2, 2))
    train, test = status.files
    assert train == data.FileStatus(
        "train.gz", folder / "train.gz", len(CONTENT["train.gz"]), published=True
    )
    assert test == data.FileStatus("test.gz", folder / "test.gz", 14, published=False)
