"""Training: configuration, task, step, loop, evaluation, run folder."""

from .config import Config as Config
from .config import ConfigError as ConfigError
from .config import paper_settings as paper_settings
from .evaluation import Bounds as Bounds
from .evaluation import evaluate as evaluate
from .loop import Diverged as Diverged
from .loop import Schedule as Schedule
from .loop import load_trained as load_trained
from .loop import summary as summary
from .loop import train as train
from .runs import Run as Run
from .runs import RunError as RunError
