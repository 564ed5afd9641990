"""When a run reports, evaluates and saves."""

import dataclasses

from .config import ConfigError


@dataclasses.dataclass(frozen=True)
class Schedule:
    """When a run reports, evaluates and saves. This does not change its results."""

    report_every: int = 500
    """Steps between two lines of metrics (0: only at the end)."""
    checkpoint_every: int = 2_000
    """Steps between two checkpoints (0: only at the end). A slow run also writes a checkpoint
    every five minutes."""
    eval_every: int = 0
    """Steps between two evaluations of the ELBO on the training, validation and test splits
    (0: only at the end)."""

    def __post_init__(self):
        for name, every in vars(self).items():
            if every < 0:
                raise ConfigError(f"{name} must be 0 (only at the end) or more, not {every}.")

    def next_stop(self, step: int, steps: int, most: int) -> int:
        """Returns the next step at which something is due, but at most `step + most`."""
        every = [n for n in dataclasses.astuple(self) if n > 0]
        return min([steps, step + most, *((step // n + 1) * n for n in every)])

    def due(self, name: str, step: int, steps: int) -> bool:
        every = getattr(self, f"{name}_every")
        return step == steps or (every > 0 and step % every == 0)
