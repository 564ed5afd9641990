"""The estimators of `steingrad` by name, with the same settings."""

from typing import Any, ClassVar

from .. import estimators as sg
from .module import Estimator


class Named(Estimator):
    """An estimator built from the settings of its class in `steingrad`."""

    kind: ClassVar[type[sg.Estimator]]

    def __init__(self, *settings: Any, cv_learning_rate: Any = 1e-3, **more: Any):
        super().__init__(self.kind(*settings, **more), cv_learning_rate=cv_learning_rate)


class Reinforce(Named):
    """`steingrad.Reinforce(num_samples=1, baseline=None)`."""

    kind = sg.Reinforce


class RLOO(Named):
    """`steingrad.RLOO(num_samples=2)`."""

    kind = sg.RLOO


class Rodeo(Named):
    """`steingrad.Rodeo(num_samples=2, operator=Gibbs(), surrogate=MLPSurrogate(), ...)`."""

    kind = sg.Rodeo


class Bronco(Named):
    """`steingrad.Bronco(num_samples=1, flips=1, ...)`."""

    kind = sg.Bronco


class Lariat(Named):
    """`steingrad.Lariat(num_samples=2, ...)`."""

    kind = sg.Lariat


class DoubleCV(Named):
    """`steingrad.DoubleCV(num_samples=2)`."""

    kind = sg.DoubleCV


class DisARM(Named):
    """`steingrad.DisARM(num_samples=2)`."""

    kind = sg.DisARM


class ARMS(Named):
    """`steingrad.ARMS(num_samples=3)`."""

    kind = sg.ARMS


class ModifiedRelax(Named):
    """`steingrad.ModifiedRelax(num_samples=2, surrogate=MLPSurrogate())`."""

    kind = sg.ModifiedRelax


class LocalExpectation(Named):
    """`steingrad.LocalExpectation(num_samples=1)`: one call of f for each coordinate and value."""

    kind = sg.LocalExpectation


class CARMS(Named):
    """`steingrad.CARMS`, with the same settings, for categories."""

    kind = sg.CARMS


class DisARMIW(Named):
    """`steingrad.DisARMIW`, with the same settings, for categories."""

    kind = sg.DisARMIW


class DisARMSB(Named):
    """`steingrad.DisARMSB`, with the same settings, for categories."""

    kind = sg.DisARMSB


class StraightThrough(Named):
    """`steingrad.StraightThrough`, with the same settings. It is biased."""

    kind = sg.StraightThrough


class ReinMax(Named):
    """`steingrad.ReinMax`, with the same settings. It is biased."""

    kind = sg.ReinMax


class GumbelSoftmax(Named):
    """`steingrad.GumbelSoftmax`, with the same settings. It is biased."""

    kind = sg.GumbelSoftmax


class Rebar(Named):
    """Not available in PyTorch, because it differentiates f inside JAX. It raises an error."""

    kind = sg.Rebar


class Relax(Named):
    """Not available in PyTorch, because it differentiates f inside JAX. It raises an error."""

    kind = sg.Relax
