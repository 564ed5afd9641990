"""Very short runs, and an engine in this process, for tests of sweeps."""

import dataclasses
import json
import time

from small_runs import lines as lines_of
from steingrad_lab.sweeps.plan import plan
from steingrad_lab.sweeps.worker import Job, attempt
from steingrad_lab.training import Config, Run, Schedule

# With one sample everywhere there are fewer programs to compile.
SMALL = Config(
    estimator="reinforce",
    samples=1,
    bound_samples=1,
    steps=60,
    layer_sizes=(6,),
    hidden=(),
    batch_size=20,
)
LONG = dataclasses.replace(SMALL, steps=100_000)
IMPOSSIBLE = dataclasses.replace(SMALL, batch_size=5000)
SCHEDULE = Schedule(report_every=20, checkpoint_every=20)
OFTEN = Schedule(report_every=1000, checkpoint_every=250)


class Here:
    """An engine in this process that records its jobs and fails with the given problems."""

    slots = 1

    def __init__(self, *problems, pretend=False):
        """With `pretend`, runs are marked as finished without training."""
        self.problems, self.pretend = list(problems), pretend
        self.given, self.ended, self.stopped = [], [], False

    def accelerated(self):
        return False

    def start(self, job: Job):
        assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job  # as workers read it
        self.given.append(job.folder.name)
        problem = self.problems.pop(0) if self.problems else None
        if isinstance(problem, BaseException):
            raise problem
        if problem is None and self.pretend:
            Run.create(job.folder, job.config, {}, {}).update(status="finished")
        elif problem is None:
            problem = attempt(job)
        self.ended.append((job, problem))

    def finished(self):
        ended, self.ended = self.ended, []
        return ended

    def stop(self):
        self.stopped = True


def lines(path):
    return lines_of(Run(path))


def statuses(runs, out):
    return {run.name: (run.status, run.step) for run in plan(runs, out)}


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()
