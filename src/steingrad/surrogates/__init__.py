"""Surrogates: cheap approximations of f at the neighbours of x."""

from .base import Surrogate as Surrogate
from .base import Values as Values
from .exact import ExactSurrogate as ExactSurrogate
from .linear import LinearSurrogate as LinearSurrogate
from .mlp import MLPSurrogate as MLPSurrogate
from .pooled import PooledSurrogate as PooledSurrogate
