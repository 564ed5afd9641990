"""Compare estimators on your own problem: bias, variance and cost."""

from .budget import NumSamples as NumSamples
from .budget import best_num_samples as best_num_samples
from .compare import compare as compare
from .objective import check_objective as check_objective
from .table import Comparison as Comparison
from .table import Row as Row
