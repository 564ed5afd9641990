"""Datasets: find, check, load, split, binarise."""

from steingrad.data.datasets import NAMES, Dataset, FileStatus, Status, load, status
from steingrad.data.formats import DataError
from steingrad.data.transforms import binarize, rescale

__all__ = [
    "NAMES",
    "DataError",
    "Dataset",
    "FileStatus",
    "Status",
    "binarize",
    "load",
    "rescale",
    "status",
]
