"""The distributions q."""

from .autoregressive import Autoregressive
from .base import Distribution
from .bernoulli import Bernoulli
from .categorical import Categorical
from .copies import copies
from .foreign import as_distribution
from .from_log_prob import FromLogProb
from .gibbs_sampler import Chains, GibbsSampler
from .independent import Independent
from .joint import Joint
from .neighbours import Neighbours
from .ordinal import Ordinal
from .relaxable import Relaxable
from .subset import Subset
from .values import RealValued

__all__ = [
    "Autoregressive",
    "Bernoulli",
    "Categorical",
    "Chains",
    "Distribution",
    "FromLogProb",
    "GibbsSampler",
    "Independent",
    "Joint",
    "Neighbours",
    "Ordinal",
    "RealValued",
    "Relaxable",
    "Subset",
    "as_distribution",
    "copies",
]
