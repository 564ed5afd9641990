"""Unbiased, low-variance gradients of expectations under discrete distributions, in JAX."""

import importlib
import importlib.metadata
from typing import Any

from .advantages import advantages as advantages
from .bounds import *
from .cv_optimizer import cv_optimizer as cv_optimizer
from .distributions import *
from .estimators import *
from .exact import exact_expectation as exact_expectation
from .exact import exact_gradient as exact_gradient
from .expectation import expectation as expectation
from .expectation import value_and_grad as value_and_grad
from .objective import Evaluated as Evaluated
from .objective import callback as callback
from .objective import per_example as per_example
from .operators import *
from .policy_gradient import policy_gradient as policy_gradient
from .sample import sample as sample
from .surrogates import *

__version__ = importlib.metadata.version("steingrad")


def __getattr__(name: str) -> Any:
    """`steingrad.numpyro` is imported when it is first used, because it imports numpyro."""
    if name == "numpyro":
        return importlib.import_module(".numpyro", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
