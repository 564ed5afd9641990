"""The estimators that can be trained with: one description each.

The command line, the training step, the estimate of costs and the report read the descriptions, so
adding an estimator to all of these is adding a description. `settings` reads the settings of an
estimator from the fields of its class.
"""

import dataclasses

from steingrad import estimators
from steingrad.estimators import Estimator


@dataclasses.dataclass(frozen=True)
class Description:
    """All that experiments know about an estimator."""

    kind: type[Estimator]
    """The class in the library."""
    label: str
    """The name in tables and figures."""
    style: int
    """The look of the curve: a number in `report.styles.STYLES`, the same in every figure."""
    watch: tuple[str, ...] = ()
    """The learned numbers that have a column in `metrics.jsonl`, as the control variates name
    them."""
    evaluations: int = 1
    """How many times the objective is evaluated for each sample."""
    cost: float = 1.0
    """The time of a step, relative to a step of RLOO with as many evaluations."""
    pair_ms: float = 0.0
    """The time that each pair of samples adds in each layer, in milliseconds on two cores."""

    @property
    def biased(self) -> bool:
        """Whether reports keep the estimator apart, and never call it the best."""
        return self.kind.biased


SCALE = ("log_temperature", "scale")  # what the relatives of REBAR learn
DESCRIPTIONS = {
    "reinforce": Description(estimators.Reinforce, "REINFORCE", style=10, watch=("baseline",)),
    "rloo": Description(estimators.RLOO, "RLOO", style=4),
    "rodeo": Description(estimators.Rodeo, "RODEO", style=0, watch=("alpha", "beta"), pair_ms=0.8),
    "bronco": Description(estimators.Bronco, "Bronco", style=6, cost=1.1),
    "lariat": Description(estimators.Lariat, "Lariat", style=7, cost=1.15),
    "double_cv": Description(estimators.DoubleCV, "Double CV", style=1, watch=("alpha",), cost=1.1),
    "disarm": Description(estimators.DisARM, "DisARM", style=2),
    "arms": Description(estimators.ARMS, "ARMS", style=3),
    "disarm_iw": Description(estimators.DisARMIW, "DisARM-IW", style=16),
    "disarm_sb": Description(estimators.DisARMSB, "DisARM-SB", style=17),
    "carms": Description(estimators.CARMS, "CARMS", style=15),
    "rebar": Description(estimators.Rebar, "REBAR", style=11, watch=SCALE, evaluations=3, cost=1.2),
    "relax": Description(estimators.Relax, "RELAX", style=5, watch=SCALE, evaluations=3, cost=1.3),
    "modified_relax": Description(
        estimators.ModifiedRelax, "Modified RELAX", style=8, watch=SCALE, cost=1.3
    ),
    "straight_through": Description(estimators.StraightThrough, "Straight-through", style=12),
    "gumbel_softmax": Description(estimators.GumbelSoftmax, "Gumbel-softmax", style=13),
    "reinmax": Description(estimators.ReinMax, "ReinMax", style=14),
    "local_expectation": Description(
        estimators.LocalExpectation, "Local expectation", style=9, cost=40.0
    ),
}
