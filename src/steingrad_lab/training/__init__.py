"""Training: configuration, training loop, evaluation and run folders."""

from .config import Config as Config
from .config import ConfigError as ConfigError
from .evaluation import Bounds as Bounds
from .evaluation import evaluate as evaluate
from .loop import Diverged as Diverged
from .loop import follow as follow
from .loop import train as train
from .runs import Run as Run
from .runs import RunError as RunError
from .runs import summary as summary
from .schedule import Schedule as Schedule
from .task import Task as Task
from .task import load_trained as load_trained
