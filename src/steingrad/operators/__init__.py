"""Discrete Stein operators."""

from .base import CoordinateOperator, Operator, Row
from .birth_death import BirthDeath, Difference
from .gibbs import Gibbs
from .transition_matrix import TransitionMatrix
from .zanella import MPF, Barker, Zanella

__all__ = [
    "MPF",
    "Barker",
    "BirthDeath",
    "CoordinateOperator",
    "Difference",
    "Gibbs",
    "Operator",
    "Row",
    "TransitionMatrix",
    "Zanella",
]
