"""Experiments: configuration, training loop, evaluation, checkpoints."""

from .config import Config as Config
from .config import ConfigError as ConfigError
from .config import paper_settings as paper_settings
from .evaluation import Bounds as Bounds
from .evaluation import evaluate as evaluate
from .runs import Run as Run
from .runs import RunError as RunError
from .train import Diverged as Diverged
from .train import Schedule as Schedule
from .train import load_trained as load_trained
from .train import summary as summary
from .train import train as train
