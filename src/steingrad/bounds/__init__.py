"""Bounds that look at several samples at once, and estimators of their gradients."""

from .base import BoundEstimator
from .local_disarm import LocalDisARM
from .multi_sample import multi_sample_bound
from .ovis import OVIS
from .vimco import VIMCO

__all__ = ["OVIS", "VIMCO", "BoundEstimator", "LocalDisARM", "multi_sample_bound"]
