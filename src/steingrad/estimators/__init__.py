"""Estimators of the gradient of an expectation: one estimator, one file."""

from .base import Estimator as Estimator
from .base import Gradients as Gradients
from .reinforce import Reinforce as Reinforce
from .rloo import RLOO as RLOO
from .rodeo import Rodeo as Rodeo
from .rodeo import RodeoParams as RodeoParams
