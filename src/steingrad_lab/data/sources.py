"""Where each dataset comes from: its files, their published hashes and their URLs.

The images of all files, concatenated, are the training, validation and test images, in this order.
`splits` says how many images each split has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from .formats import Images, read_amat, read_idx, read_mat


@dataclass(frozen=True)
class File:
    """A file of a dataset and the function that reads it.

    `hashes` are published as `algorithm:hexadecimal`. A file is the published one if any matches.
    """

    name: str
    read: Callable[[bytes], Images]
    hashes: tuple[str, ...]
    urls: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """A dataset: the folder of its files, and for each file the forms in which it is published."""

    folder: str
    image_shape: tuple[int, int]
    splits: tuple[int, int, int]
    files: tuple[tuple[File, ...], ...]


def _idx_files(
    mirrors: tuple[str, ...], train: tuple[str, ...], t10k: tuple[str, ...]
) -> tuple[tuple[File, ...], ...]:
    """Returns the two image files of a dataset in the format of MNIST, given their hashes."""

    def file(name: str, images: int, hashes: tuple[str, ...]) -> tuple[File, ...]:
        urls = tuple(mirror + name for mirror in mirrors)
        return (File(name, partial(read_idx, shape=(images, 28, 28)), hashes, urls),)

    return (
        file("train-images-idx3-ubyte.gz", 60_000, train),
        file("t10k-images-idx3-ubyte.gz", 10_000, t10k),
    )


def _binarized(split: str, images: int, mat: str, amat: str) -> tuple[File, ...]:
    """Returns the two forms of a file of binarised MNIST, given their SHA-256."""
    name = f"binarized_mnist_{split}"
    address = f"www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist/{name}.amat"
    return (
        File(f"{name}.mat", partial(read_mat, shapes={"X": (images, 784)}), (f"sha256:{mat}",)),
        File(
            f"{name}.amat",
            partial(read_amat, shape=(images, 784)),
            (f"sha256:{amat}",),
            (f"http://{address}", f"https://{address}"),
        ),
    )


SOURCES = {
    # Bundled with scikit-learn, so there is no file to find.
    "digits": Source("", (8, 8), (1297, 200, 300), ()),
    "mnist": Source(
        "mnist",
        (28, 28),
        (50_000, 10_000, 10_000),
        _idx_files(
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            train=("sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",),
            t10k=("sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",),
        ),
    ),
    "fashion_mnist": Source(
        "fashion-mnist",
        (28, 28),
        (50_000, 10_000, 10_000),
        _idx_files(
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
            ),
            # Debian compresses the files again, so only their unpacked content is as published.
            train=(
                "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "unpacked-md5:f4a8712d7a061bf5bd6d2ca38dc4d50a",
            ),
            t10k=(
                "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "unpacked-md5:8181f5470baa50b63fa0f6fddb340f0a",
            ),
        ),
    ),
    # The 28×28 version of Burda et al. (2016). Their repository publishes no SHA-256, but git
    # identifies every file by a hash of its content.
    "omniglot": Source(
        "omniglot",
        (28, 28),
        (23_000, 1_345, 8_070),
        (
            (
                File(
                    "chardata.mat",
                    partial(
                        read_mat,
                        shapes={"data": (784, 24_345), "testdata": (784, 8_070)},
                        column_major=True,
                    ),
                    ("git-blob:016a3536ffe5e1d38e42563a18d7a78bfaf643ec",),
                    tuple(
                        f"https://{address}/datasets/OMNIGLOT/chardata.mat"
                        for address in (
                            "github.com/yburda/iwae/raw/master",
                            "raw.githubusercontent.com/yburda/iwae/master",
                        )
                    ),
                ),
            ),
        ),
    ),
    # The fixed binarisation of Salakhutdinov and Murray (2008), published by Larochelle as text
    # (.amat). The .mat files hold the same bits and are 20 times smaller. The hashes of the text
    # are recorded by TensorFlow Datasets; the .mat files, written out as text, match them too.
    "binarized_mnist": Source(
        "binarized-mnist",
        (28, 28),
        (50_000, 10_000, 10_000),
        (
            _binarized(
                "train",
                50_000,
                mat="79a0312c7389d855cfc97e3812de3998417c5829d8a51543b56a90a91252ae7e",
                amat="ad693b29f94c14277b095f5238ddefbbdaaae0939789dd2f4f0205278cee3e4d",
            ),
            _binarized(
                "valid",
                10_000,
                mat="7436afc856959075c7787025bb8a4ba2b520b9230ee39667c66aa7dd2819dd68",
                amat="1de3d397c40fe8eeb33dafd4099a1f665ec01e96d9be234aaeeac8a34930e2e2",
            ),
            _binarized(
                "test",
                10_000,
                mat="5bc30222e1e7896cbccd1e1db6b28540cc1230f4d2d5473841a5f6cc54be8d38",
                amat="e6687bfea3f820c174f33b7865140b2a2dd2930ef786f35d45795fc193b5ab2c",
            ),
        ),
    ),
}
