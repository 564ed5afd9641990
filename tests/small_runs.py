"""A model that trains within seconds, for tests of experiments."""

from steingrad_lab.training import Config, Run, Schedule

SMALL = Config(
    steps=60, layer_sizes=(6,), hidden=(8,), surrogate_hidden=5, batch_size=20, bound_samples=5
)
# Without RODEO's settings, for other estimators.
PLAIN = Config(
    estimator="rloo", steps=60, layer_sizes=(6,), hidden=(8,), batch_size=20, bound_samples=5
)
SCHEDULE = Schedule(report_every=20, checkpoint_every=20)


def lines(run: Run) -> list[dict]:
    """The metrics without times."""
    return [{k: v for k, v in line.items() if k != "ms_per_step"} for line in run.metrics()]
