"""Datasets: find, verify, load, split and binarise them."""

from .datasets import NAMES as NAMES
from .datasets import Dataset as Dataset
from .datasets import FileStatus as FileStatus
from .datasets import Status as Status
from .datasets import is_own as is_own
from .datasets import label as label
from .datasets import load as load
from .datasets import status as status
from .formats import DataError as DataError
from .transforms import binarize as binarize
from .transforms import rescale as rescale
from .transforms import to_unit as to_unit
