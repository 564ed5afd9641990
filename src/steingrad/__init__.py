"""Unbiased, low-variance gradients of expectations under discrete distributions, in JAX."""

import importlib.metadata

from .advantages import advantages as advantages
from .cv_optimizer import cv_optimizer as cv_optimizer
from .distributions import Autoregressive as Autoregressive
from .distributions import Bernoulli as Bernoulli
from .distributions import Categorical as Categorical
from .distributions import Distribution as Distribution
from .distributions import FromLogProb as FromLogProb
from .distributions import GibbsSampler as GibbsSampler
from .distributions import Joint as Joint
from .distributions import Ordinal as Ordinal
from .distributions import Subset as Subset
from .estimators import ARMS as ARMS
from .estimators import CARMS as CARMS
from .estimators import RLOO as RLOO
from .estimators import Bronco as Bronco
from .estimators import DisARM as DisARM
from .estimators import DisARMIW as DisARMIW
from .estimators import DisARMSB as DisARMSB
from .estimators import DoubleCV as DoubleCV
from .estimators import Estimator as Estimator
from .estimators import Gradients as Gradients
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
from .estimators import UnorderedSet as UnorderedSet
from .exact import exact_expectation as exact_expectation
from .exact import exact_gradient as exact_gradient
from .expectation import expectation as expectation
from .expectation import value_and_grad as value_and_grad
from .objective import Evaluated as Evaluated
from .objective import callback as callback
from .objective import per_example as per_example
from .operators import MPF as MPF
from .operators import Barker as Barker
from .operators import BirthDeath as BirthDeath
from .operators import CoordinateOperator as CoordinateOperator
from .operators import Difference as Difference
from .operators import Gibbs as Gibbs
from .operators import Operator as Operator
from .operators import Row as Row
from .operators import TransitionMatrix as TransitionMatrix
from .operators import Zanella as Zanella
from .policy_gradient import policy_gradient as policy_gradient
from .surrogates import ExactSurrogate as ExactSurrogate
from .surrogates import LinearSurrogate as LinearSurrogate
from .surrogates import MLPSurrogate as MLPSurrogate
from .surrogates import PooledSurrogate as PooledSurrogate
from .surrogates import Surrogate as Surrogate

__version__ = importlib.metadata.version("steingrad")
