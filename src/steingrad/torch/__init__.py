"""The same estimators for PyTorch: modules whose expectation `backward` differentiates."""

from .estimators import ARMS as ARMS
from .estimators import RLOO as RLOO
from .estimators import Bronco as Bronco
from .estimators import DisARM as DisARM
from .estimators import DoubleCV as DoubleCV
from .estimators import Lariat as Lariat
from .estimators import LocalExpectation as LocalExpectation
from .estimators import ModifiedRelax as ModifiedRelax
from .estimators import Rebar as Rebar
from .estimators import Reinforce as Reinforce
from .estimators import Relax as Relax
from .estimators import Rodeo as Rodeo
from .module import Estimator as Estimator
