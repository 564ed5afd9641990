"""Estimators of the gradient of an expectation: one estimator, one file."""

from .arms import ARMS as ARMS
from .base import Estimator as Estimator
from .base import Gradients as Gradients
from .bronco import Bronco as Bronco
from .carms import CARMS as CARMS
from .disarm import DisARM as DisARM
from .disarm_iw import DisARMIW as DisARMIW
from .disarm_sb import DisARMSB as DisARMSB
from .double_cv import DoubleCV as DoubleCV
from .gumbel_softmax import GumbelSoftmax as GumbelSoftmax
from .lariat import Lariat as Lariat
from .local_expectation import LocalExpectation as LocalExpectation
from .modified_relax import ModifiedRelax as ModifiedRelax
from .rebar import Rebar as Rebar
from .reinforce import Reinforce as Reinforce
from .reinmax import ReinMax as ReinMax
from .relax import Relax as Relax
from .rloo import RLOO as RLOO
from .rodeo import Rodeo as Rodeo
from .straight_through import StraightThrough as StraightThrough
from .unordered_set import UnorderedSet as UnorderedSet
