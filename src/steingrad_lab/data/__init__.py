"""Datasets: find, check, load, split, binarise."""

from .datasets import NAMES, Dataset, FileStatus, Status, is_own, label, load, status
from .formats import DataError
from .transforms import binarize, rescale

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
