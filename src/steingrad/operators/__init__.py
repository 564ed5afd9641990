"""Discrete Stein operators."""

from .base import CoordinateOperator as CoordinateOperator
from .base import Operator as Operator
from .base import Row as Row
from .birth_death import BirthDeath as BirthDeath
from .birth_death import Difference as Difference
from .gibbs import Gibbs as Gibbs
from .transition_matrix import TransitionMatrix as TransitionMatrix
from .zanella import MPF as MPF
from .zanella import Barker as Barker
from .zanella import Zanella as Zanella
