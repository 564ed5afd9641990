"""Estimators of the gradient of an expectation: one estimator, one file."""

from .arms import ARMS
from .base import Estimator, Gradients
from .bronco import Bronco
from .carms import CARMS
from .disarm import DisARM
from .disarm_iw import DisARMIW
from .disarm_sb import DisARMSB
from .double_cv import DoubleCV
from .gumbel_softmax import GumbelSoftmax
from .lariat import Lariat
from .local_expectation import LocalExpectation
from .modified_relax import ModifiedRelax
from .rebar import Rebar
from .reinforce import Reinforce
from .reinmax import ReinMax
from .relax import Relax
from .rloo import RLOO
from .rodeo import Rodeo
from .straight_through import StraightThrough
from .unordered_set import UnorderedSet

__all__ = [
    "ARMS",
    "CARMS",
    "RLOO",
    "Bronco",
    "DisARM",
    "DisARMIW",
    "DisARMSB",
    "DoubleCV",
    "Estimator",
    "Gradients",
    "GumbelSoftmax",
    "Lariat",
    "LocalExpectation",
    "ModifiedRelax",
    "Rebar",
    "ReinMax",
    "Reinforce",
    "Relax",
    "Rodeo",
    "StraightThrough",
    "UnorderedSet",
]
