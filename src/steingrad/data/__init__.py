"""Datasets: find, check, load, split, binarise."""

from steingrad.data.datasets import NAMES, Dataset, FileStatus, Status, is_own, label, load, status
from steingrad.data.formats import DataError
from steingrad.data.transforms import binarize, rescale

__all__ = [
    "NAMES",
    "DataError",
    "Dataset",
    "FileStatus",
    "Status",
    "binarize",
    "is_own",
    "label",
    "load",
    "rescale",
    "status",
]
