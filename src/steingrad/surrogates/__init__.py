"""Surrogates: cheap approximations of f at the neighbours of x."""

from .base import Surrogate, Values
from .exact import ExactSurrogate
from .linear import LinearSurrogate
from .mlp import MLPSurrogate
from .pooled import PooledSurrogate

__all__ = [
    "ExactSurrogate",
    "LinearSurrogate",
    "MLPSurrogate",
    "PooledSurrogate",
    "Surrogate",
    "Values",
]
