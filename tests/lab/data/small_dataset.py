"""A dataset like MNIST, with 7 images of 2×3 pixels, split 3 / 2 / 2; writers of other formats."""

import gzip
import hashlib
import io
import struct
from functools import partial

import numpy as np
import scipy.io

from steingrad_lab.data.formats import read_idx
from steingrad_lab.data.sources import File, Source


def idx(images, magic=0x803, shape=None):
    return struct.pack(">4I", magic, *(shape or images.shape)) + images.tobytes()


TRAIN, TEST = (np.arange(30).reshape(5, 2, 3) * 8).astype(np.uint8), np.full((2, 2, 3), 9, np.uint8)
CONTENT = {
    "train.gz": gzip.compress(idx(TRAIN), mtime=0),
    "test.gz": gzip.compress(idx(TEST), mtime=0),
}


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def small_source(*mirrors):
    def file(name, images):
        unpacked = hashlib.md5(gzip.decompress(CONTENT[name])).hexdigest()
        hashes = (f"sha256:{sha256(CONTENT[name])}", f"unpacked-md5:{unpacked}")
        urls = tuple(f"{mirror}/{name}" for mirror in mirrors)
        return (File(name, partial(read_idx, shape=(images, 2, 3)), hashes, urls),)

    return Source("small-folder", (2, 3), (3, 2, 2), (file("train.gz", 5), file("test.gz", 2)))


def put(root, content=CONTENT, folder="small-folder"):
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name, text in content.items():
        (root / folder / name).write_bytes(text)


def assert_small(dataset):
    np.testing.assert_array_equal(dataset.train, TRAIN[:3].reshape(3, 6))
    np.testing.assert_array_equal(dataset.valid, TRAIN[3:].reshape(2, 6))
    np.testing.assert_array_equal(dataset.test, TEST.reshape(2, 6))
    assert dataset.image_shape == (2, 3)


def mat(**arrays):
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, arrays)
    return buffer.getvalue()


def amat(bits):
    return "".join(" ".join(map(str, row)) + "\n" for row in bits).encode()
