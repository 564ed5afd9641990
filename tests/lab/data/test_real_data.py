"""The real datasets. Skipped unless STEINGRAD_DATA_DIR says where they are."""

import gzip
import os

import numpy as np
import pytest
from small_dataset import (
    put,
    sha256,
)

from steingrad_lab import data
from steingrad_lab.data import files
from steingrad_lab.data.sources import SOURCES

REAL_DATA = os.environ.get("STEINGRAD_DATA_DIR")
needs_real_data = pytest.mark.skipif(
    not REAL_DATA, reason="STEINGRAD_DATA_DIR does not say where the real datasets are"
)


def real(name):
    """Returns a real dataset and its status. Skips the test if the dataset is missing."""
    status = next(status for status in data.status(REAL_DATA) if status.name == name)
    if not status.found:
        pytest.skip(f"no {name} in STEINGRAD_DATA_DIR")
    if status.published:
        return data.load(name, REAL_DATA, download=False), status
    with pytest.warns(UserWarning, match="not the published file"):
        return data.load(name, REAL_DATA, download=False), status


@needs_real_data
@pytest.mark.parametrize("name", data.NAMES[1:])
def test_real_splits(name):
    dataset, status = real(name)
    splits = (dataset.train, dataset.valid, dataset.test)
    assert tuple(len(split) for split in splits) == status.splits
    for split in splits:
        assert split.shape[1] == 784
        assert (split.min(), split.max()) == (0, 255)
    for file in status.files:
        name = f"{SOURCES[status.name].folder}/{file.name}"
        assert dataset.files[name] == sha256(file.path.read_bytes())


@needs_real_data
@pytest.mark.parametrize(("name", "mean"), [("mnist", 0.1307), ("fashion_mnist", 0.2860)])
def test_real_idx_files_have_the_well_known_mean(name, mean):
    dataset, _ = real(name)
    together = np.concatenate([dataset.train, dataset.valid])
    assert abs(together.mean() / 255 - mean) < 5e-5


@needs_real_data
def test_real_binarized_mnist_is_the_same_as_text():
    """The .mat file, written out as text, has the published hash of the text file."""
    dataset, status = real("binarized_mnist")
    assert set(np.unique(dataset.train)) == {0, 255}
    if not status.published:
        pytest.skip("binarized_mnist is not the published one")
    text = np.full((10_000, 784, 2), ord(" "), np.uint8)
    text[:, :, 0] = ord("0") + (dataset.valid == 255)
    text[:, -1, 1] = ord("\n")
    file = next(file for file in SOURCES["binarized_mnist"].files[1] if file.urls)
    assert files.is_published(file, text.tobytes())
    np.testing.assert_array_equal(file.read(text.tobytes()), dataset.valid)


@needs_real_data
def test_real_fashion_mnist_as_debian_packs_it(places):
    dataset, status = real("fashion_mnist")
    if not status.published:
        pytest.skip("fashion_mnist is not the published one")
    again = {f.name: gzip.compress(gzip.decompress(f.path.read_bytes()), 1) for f in status.files}
    put(places / "system", again, "fashion-mnist")
    debian = data.load("fashion_mnist", download=False)  # a warning would be an error
    np.testing.assert_array_equal(debian.test, dataset.test)
    assert debian.files != dataset.files
