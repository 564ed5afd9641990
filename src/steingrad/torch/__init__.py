"""The estimators as PyTorch modules that return an expectation for `backward`."""

from .drop_in import gumbel_softmax as gumbel_softmax
from .drop_in import reinmax as reinmax
from .drop_in import straight_through as straight_through
from .estimators import ARMS as ARMS
from .estimators import CARMS as CARMS
from .estimators import RLOO as RLOO
from .estimators import Bronco as Bronco
from .estimators import DisARM as DisARM
from .estimators import DisARMIW as DisARMIW
from .estimators import DoubleCV as DoubleCV
from .estimators import GumbelSoftmax as GumbelSoftmax
from .estimators import Lariat as Lariat
from .estimators import LocalExpectation as LocalExpectation
from .estimators import ModifiedRelax as ModifiedRelax
from .estimators import Rebar as Rebar
from .estimators import Reinforce as Reinforce
from .estimators import ReinMax as ReinMax
from .estimators import Relax as Relax
from .estimators import Rodeo as Rodeo
from .estimators import StraightThrough as StraightThrough
from .module import Estimator as Estimator
from .subset import Subset as Subset
