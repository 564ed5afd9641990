"""Experiments: training, sweeps, the paper's grid, reports."""

from .paper.settings import configure as configure
from .training import Bounds as Bounds
from .training import Config as Config
from .training import ConfigError as ConfigError
from .training import Diverged as Diverged
from .training import Run as Run
from .training import RunError as RunError
from .training import Schedule as Schedule
from .training import evaluate as evaluate
from .training import follow as follow
from .training import load_trained as load_trained
from .training import summary as summary
from .training import train as train
