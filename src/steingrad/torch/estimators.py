"""The estimators of `steingrad` by name, with the same settings."""

from typing import Any, ClassVar

from .. import estimators as sg
from .module import Estimator


class Named(Estimator):
    """An estimator built from the settings of its class in `steingrad`."""

    kind: ClassVar[type[sg.Estimator]]

    def __init_subclass__(cls):
        # A subclass of a user may have any name, and keeps the class of its parent.
        cls.kind = getattr(sg, cls.__name__, None) or cls.kind

    def __init__(self, *settings: Any, cv_learning_rate: Any = 1e-3, **more: Any):
        super().__init__(self.kind(*settings, **more), cv_learning_rate=cv_learning_rate)


class Reinforce(Named):
    """`steingrad.Reinforce(num_samples=1, baseline=None)`."""


class RLOO(Named):
    """`steingrad.RLOO(num_samples=2)`."""


class Rodeo(Named):
    """`steingrad.Rodeo(num_samples=2, operator=Gibbs(), surrogate=MLPSurrogate(), ...)`."""


class Bronco(Named):
    """`steingrad.Bronco(num_samples=1, ...)`."""


class Lariat(Named):
    """`steingrad.Lariat(num_samples=2, ...)`."""


class DoubleCV(Named):
    """`steingrad.DoubleCV(num_samples=2)`."""


class DisARM(Named):
    """`steingrad.DisARM(num_samples=2)`."""


class ARMS(Named):
    """`steingrad.ARMS(num_samples=3)`."""


class ModifiedRelax(Named):
    """`steingrad.ModifiedRelax(num_samples=2, surrogate=MLPSurrogate())`."""


class LocalExpectation(Named):
    """`steingrad.LocalExpectation(num_samples=1)`: one call of f for each coordinate and value."""


class CARMS(Named):
    """`steingrad.CARMS`, with the same settings, for categories."""


class DisARMIW(Named):
    """`steingrad.DisARMIW`, with the same settings, for categories."""


class DisARMSB(Named):
    """`steingrad.DisARMSB`, with the same settings, for categories."""


class StraightThrough(Named):
    """`steingrad.StraightThrough`, with the same settings. It is biased."""


class ReinMax(Named):
    """`steingrad.ReinMax`, with the same settings. It is biased."""


class GumbelSoftmax(Named):
    """`steingrad.GumbelSoftmax`, with the same settings. It is biased."""


class Rebar(Named):
    """Not available in PyTorch, because it differentiates f inside JAX. It raises an error."""


class Relax(Named):
    """Not available in PyTorch, because it differentiates f inside JAX. It raises an error."""
