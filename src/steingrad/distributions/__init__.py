"""The distributions q."""

from .autoregressive import Autoregressive as Autoregressive
from .base import Distribution as Distribution
from .bernoulli import Bernoulli as Bernoulli
from .categorical import Categorical as Categorical
from .from_log_prob import FromLogProb as FromLogProb
from .gibbs_sampler import Chains as Chains
from .gibbs_sampler import GibbsSampler as GibbsSampler
from .joint import Joint as Joint
from .ordinal import Ordinal as Ordinal
from .subset import Subset as Subset
