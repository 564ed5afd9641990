"""The data room: formats, hashes, the search for files, downloads, splits, and what a step sees."""

import gzip
import hashlib
import io
import os
import re
import socket
import struct
import threading
from collections import Counter
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.io
from sklearn.datasets import load_digits

from steingrad import data
from steingrad.data import files
from steingrad.data.formats import read_amat, read_idx, read_mat
from steingrad.data.sources import SOURCES, File, Source

REAL_DATA = os.environ.get("STEINGRAD_DATA_DIR")
needs_real_data = pytest.mark.skipif(
    not REAL_DATA, reason="STEINGRAD_DATA_DIR does not say where the real datasets are"
)


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """Folders of this test's own, so that no test sees what the machine holds."""
    monkeypatch.delenv("STEINGRAD_DATA_DIR", raising=False)
    monkeypatch.setattr(files, "user_cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(files, "SYSTEM_DIR", tmp_path / "system")
    return tmp_path


# A dataset like MNIST, of 5 + 2 images of 2×3 pixels, split 3 / 2 / 2.


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


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(SOURCES, "small", small_source())
    return "small"


def put(root, content=CONTENT, folder="small-folder"):
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name, text in content.items():
        (root / folder / name).write_bytes(text)


def assert_small(dataset):
    np.testing.assert_array_equal(dataset.train, TRAIN[:3].reshape(3, 6))
    np.testing.assert_array_equal(dataset.valid, TRAIN[3:].reshape(2, 6))
    np.testing.assert_array_equal(dataset.test, TEST.reshape(2, 6))
    assert dataset.image_shape == (2, 3)


# Loading


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
    # A change of this hash is a change of everybody's splits.
    assert digits.files == {
        "digits": "3784c857898a50ab08a812b56955411220ede687f44136b0880d3d2fd1c667fd"
    }


def test_digits_splits_are_alike():
    """Writers come one after the other in scikit-learn: every split must have some of each."""
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
    assert found() is None
    for root in ("system", "cache", "argument"):  # each goes before the ones already there
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


# What is wrong with a file


def mat(**arrays):
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, arrays)
    return buffer.getvalue()


def amat(bits):
    return "".join(" ".join(map(str, row)) + "\n" for row in bits).encode()


ONE = np.zeros((1, 2, 3), np.uint8)
DAMAGED = {
    "not gzip": (b"<html>not here</html>", "gzip"),
    "truncated gzip": (CONTENT["test.gz"][:-9], "truncated gzip"),
    "bit flip": (CONTENT["train.gz"][:40] + b"\xff\xff\xff" + CONTENT["train.gz"][43:], "gzip"),
    "empty": (b"", "magic number"),
    "short header": (gzip.compress(idx(TEST)[:9]), "magic number"),
    "labels": (gzip.compress(idx(TEST, magic=0x801)), "magic number"),
    "another shape": (gzip.compress(idx(ONE)), r"\(1, 2, 3\) where \(2, 2, 3\)"),
    "truncated": (gzip.compress(idx(TEST)[:-1]), "11 pixels where 12"),
    "too long": (gzip.compress(idx(TEST) + b"\0"), "13 pixels where 12"),
}


@pytest.mark.parametrize(("content", "reason"), DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_refused_by_name(content, reason, small, places):
    put(places / "cache", CONTENT | {"test.gz": content})
    path = re.escape(str(places / "cache" / "small-folder" / "test.gz"))
    with pytest.raises(data.DataError, match=rf"{path} .*{reason}.*: delete it"):
        data.load(small)
    assert not data.status()[-1].published  # and the listing still works


def test_an_unreadable_file_is_refused_by_name(small, places, monkeypatch):
    put(places / "cache")

    def locked(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", locked)
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
    "words": (mat(X="words"), "plain numbers"),
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
        (b"0 1\n1 0", "7 bytes where 2 lines of 2 pixels take 8"),
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


# Downloads, from mirrors on this machine


class Mirrors(ThreadingHTTPServer):
    """Serves `content[path]`, and remembers what was asked for; a status code is an error."""

    def __init__(self):
        self.content, self.requests = {}, []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        answer = self.server.content.get(self.path, 404)
        if isinstance(answer, int):
            self.send_error(answer)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer) + 5 * self.path.startswith("/cut")))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def mirrors(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Mirrors() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def on_mirrors(monkeypatch, mirrors, *names):
    monkeypatch.setitem(SOURCES, "small", small_source(*(f"{mirrors.url}/{n}" for n in names)))


def test_missing_files_are_downloaded_once(places, mirrors, monkeypatch):
    on_mirrors(monkeypatch, mirrors, "good")
    mirrors.content = {f"/good/{name}": text for name, text in CONTENT.items()}
    assert_small(data.load("small"))
    assert_small(data.load("small"))
    assert mirrors.requests == ["/good/train.gz", "/good/test.gz"]
    # Nothing but the files is left, and they are those that were sent.
    stored = {
        path.name: path.read_bytes() for path in (places / "cache" / "small-folder").iterdir()
    }
    assert stored == CONTENT


@pytest.mark.parametrize("bad", [b"another file", b"", CONTENT["train.gz"][:-1], 404, 503], ids=str)
def test_the_next_mirror_is_tried(bad, mirrors, monkeypatch):
    on_mirrors(monkeypatch, mirrors, "bad", "good")
    mirrors.content = {f"/good/{name}": text for name, text in CONTENT.items()}
    mirrors.content |= {f"/bad/{name}": bad for name in CONTENT}
    assert_small(data.load("small"))
    assert mirrors.requests == ["/bad/train.gz", "/good/train.gz", "/bad/test.gz", "/good/test.gz"]


def test_a_connection_that_breaks_off_counts_as_a_failure(mirrors, monkeypatch):
    on_mirrors(monkeypatch, mirrors, "cut", "good")
    mirrors.content = {f"/good/{name}": text for name, text in CONTENT.items()}
    mirrors.content |= {f"/cut/{name}": text for name, text in CONTENT.items()}
    assert_small(data.load("small"))


def test_when_all_fails_the_error_says_what_to_put_where(places, mirrors, monkeypatch):
    on_mirrors(monkeypatch, mirrors, "gone", "wrong")
    mirrors.content = {f"/wrong/{name}": b"<html>sign in</html>" for name in CONTENT}
    with pytest.raises(data.DataError) as error:
        data.load("small", places / "mine")
    message = str(error.value)
    for part in (
        "'small'",
        "train.gz, test.gz",
        *(str(places / root / "small-folder") for root in ("mine", "cache", "system")),
        f"{mirrors.url}/gone/train.gz: 404 Client Error: Not Found;",
        f"{mirrors.url}/wrong/train.gz: what came is not the published file",
        f"put train.gz, test.gz into {places / 'mine' / 'small-folder'}",
        "STEINGRAD_DATA_DIR",
        "--data-dir",
    ):
        assert part in message
    assert "\n" not in message
    assert list((places / "mine" / "small-folder").iterdir()) == []
    assert mirrors.requests == ["/gone/train.gz", "/wrong/train.gz"]  # test.gz: not tried in vain


def test_without_a_connection_the_cause_is_named(mirrors, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    monkeypatch.setitem(SOURCES, "small", small_source(address))  # closed again: nobody listens
    with pytest.raises(data.DataError, match=r"/train\.gz: NewConnectionError\): put train"):
        data.load("small")


def test_offline_the_error_names_the_files_of_every_dataset(places):
    for name in data.NAMES[1:]:
        source = SOURCES[name]
        with pytest.raises(data.DataError, match="not downloaded") as error:
            data.load(name, download=False)
        for forms in source.files:
            assert " or ".join(file.name for file in forms) in str(error.value)
        assert str(places / "cache" / source.folder) in str(error.value)


def test_nothing_is_asked_for_when_downloads_are_off(mirrors, monkeypatch):
    on_mirrors(monkeypatch, mirrors, "good")
    with pytest.raises(data.DataError, match="not downloaded"):
        data.load("small", download=False)
    data.status()
    assert mirrors.requests == []


def test_downloads_go_to_the_data_dir_or_where_one_can_write(places, mirrors, monkeypatch):
    on_mirrors(monkeypatch, mirrors, "good")
    mirrors.content = {f"/good/{name}": text for name, text in CONTENT.items()}
    data.load("small", places / "mine")
    assert (places / "mine" / "small-folder" / "train.gz").exists()
    assert not (places / "cache").exists()
    (places / "blocked").write_text("a file, not a folder")
    data.load("small", places / "blocked")
    assert (places / "cache" / "small-folder" / "train.gz").exists()


def test_no_writable_folder_is_an_error_that_says_so(places, mirrors, monkeypatch):
    on_mirrors(monkeypatch, mirrors, "good")
    (places / "cache").write_text("a file, not a folder")
    with pytest.raises(data.DataError, match=r"nothing can be written to .*cache"):
        data.load("small")


def test_progress_is_shown_on_a_terminal_only(mirrors, monkeypatch, capsys, places):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    on_mirrors(monkeypatch, mirrors, "good")
    mirrors.content = {f"/good/{name}": text for name, text in CONTENT.items()}
    data.load("small", places / "quiet")
    assert capsys.readouterr() == ("", "")
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal)
    data.load("small", places / "loud")
    size = len(CONTENT["train.gz"])
    assert "train.gz" in terminal.getvalue()
    assert f"{size}/{size} bytes" in terminal.getvalue()


# What is published


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


# What a compiled step sees


def test_binarize_draws_every_grey_with_its_probability():
    n = 40_000
    greys = jnp.tile(jnp.arange(256, dtype=jnp.uint8), (n, 1))
    drawn = jax.jit(data.binarize)(jax.random.key(0), greys)
    assert drawn.dtype == jnp.float32
    assert set(np.unique(drawn)) == {0.0, 1.0}
    p = np.arange(256) / 255
    mean = np.asarray(drawn, np.float64).mean(0)
    assert mean[0] == 0
    assert mean[255] == 1
    z = (mean - p)[1:-1] / np.sqrt(p * (1 - p) / n)[1:-1]
    assert np.abs(z).max() < 4.5  # 254 z-scores: 4.5 is passed once in 600 seeds
    assert abs((z**2).mean() - 1) < 4 * np.sqrt(2 / 254)


def test_binarize_anew_with_every_key():
    grey = jnp.full((100, 64), 128, jnp.uint8)
    first, second = (data.binarize(jax.random.key(seed), grey) for seed in (0, 1))
    assert 0.4 < float((first != second).mean()) < 0.6
    np.testing.assert_array_equal(first, data.binarize(jax.random.key(0), grey))


def test_binary_data_stay_as_they_are():
    bits = np.array([[0, 255, 255], [255, 0, 0]], np.uint8)
    for seed in range(5):
        drawn = data.binarize(jax.random.key(seed), bits)
        np.testing.assert_array_equal(drawn, bits / 255)


def test_rescale_maps_bytes_to_minus_one_to_one():
    greys = jnp.arange(256, dtype=jnp.uint8)
    scaled = jax.jit(data.rescale)(greys)
    assert scaled.dtype == jnp.float32
    np.testing.assert_allclose(scaled, 2 * np.arange(256) / 255 - 1, atol=2e-7)


def test_other_dtypes_are_rounded_once():
    greys = jnp.arange(256, dtype=jnp.uint8)
    assert data.binarize(jax.random.key(0), greys, dtype=jnp.bfloat16).dtype == jnp.bfloat16
    np.testing.assert_array_equal(
        data.rescale(greys, dtype=jnp.bfloat16), data.rescale(greys).astype(jnp.bfloat16)
    )


@pytest.mark.parametrize("images", [jnp.ones(3), jnp.ones(3, jnp.int32)])
def test_only_bytes_are_pixels(images):
    from steingrad.data import transforms

    # Beneath the annotations, which say so too where they are checked.
    with pytest.raises(TypeError, match="uint8"):
        transforms.binarize.__wrapped__(jax.random.key(0), images)
    with pytest.raises(TypeError, match="uint8"):
        transforms.rescale.__wrapped__(images)


# The real data, where they are


def real(name):
    """The real dataset and its status, or a skip where it is not there."""
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
    """The text that the .mat file stands for has the hash that is published for the text."""
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
