"""Sweeps: what is planned, what is skipped, resumed, retried and reported."""

import dataclasses
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from steingrad.cli import main
from steingrad.experiments import Config, ConfigError, Run, Schedule, train
from steingrad.experiments.paper import grid
from steingrad.experiments.sweeps.costs import Costs
from steingrad.experiments.sweeps.engines import Processes, RayCluster
from steingrad.experiments.sweeps.plan import Selection, plan, summary_line, table
from steingrad.experiments.sweeps.sweep import sweep
from steingrad.experiments.sweeps.worker import Job, attempt, exclusive

pytestmark = pytest.mark.usefixtures("standard_promotion")

# One sample everywhere: the fewest programs to compile.
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
    """An engine in this process that breaks as told, and remembers what it was given."""

    slots = 1

    def __init__(self, *problems, pretend=False):
        """`pretend` leaves finished runs without training them."""
        self.problems, self.pretend = list(problems), pretend
        self.given, self.ended, self.stopped = [], [], False

    def accelerated(self):
        return False

    def start(self, job: Job):
        self.given.append(job.folder.name)
        problem = self.problems.pop(0) if self.problems else None
        if isinstance(problem, BaseException):
            raise problem
        if problem is None and self.pretend:
            Run.create(job.folder, job.config, {}).update(status="finished")
        elif problem is None:
            problem = attempt(job)
        self.ended.append((job, problem))

    def finished(self):
        ended, self.ended = self.ended, []
        return ended

    def stop(self):
        self.stopped = True


def lines(path):
    """The metrics without what the clock says."""
    return [{k: v for k, v in line.items() if k != "ms_per_step"} for line in Run(path).metrics()]


def statuses(runs, out):
    return {run.name: (run.status, run.step) for run in plan(runs, out)}


@pytest.fixture
def tiny(monkeypatch):
    """A grid with one small experiment, for the command line."""
    entries = (grid.Entry("a", SMALL), grid.Entry("b", dataclasses.replace(SMALL, batch_size=30)))
    experiment = grid.Experiment("tiny", "", "table", ("train_elbo",), entries)
    monkeypatch.setattr(grid, "experiments", lambda: {"tiny": experiment})
    return [grid.run_name(entry.config) for entry in entries]


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


class TestPlan:
    def test_shared_runs_are_counted_once(self):
        one = Selection(("train-elbo",)).runs()
        assert Selection(("train-elbo", "test-bound", "variance-curves")).runs() == one
        assert len(one) == 48 * 5

    def test_filters(self):
        runs = Selection(
            ("train-elbo",),
            steps=9,
            seeds=(3,),
            datasets=("omniglot",),
            likelihoods=("gaussian",),
            estimators=("rodeo", "relax"),
        ).runs()
        kinds = [(c.dataset, c.likelihood, c.estimator, c.samples) for c in runs.values()]
        task = ("omniglot", "gaussian")
        assert kinds == [(*task, "rodeo", 2), (*task, "rodeo", 3), (*task, "relax", 3)]
        assert {(c.steps, c.seeds) for c in runs.values()} == {(9, (3,))}
        layers = Selection(("hierarchical",), layers=(2, 4)).configs()
        assert {len(config.layer_sizes) for config in layers} == {2, 4}

    def test_seeds_apart_and_together(self):
        selection = Selection(("resnet",), seeds=(1, 2))
        apart = [(c.estimator, c.seeds) for c in selection.runs().values()]
        assert apart == [("rloo", (1,)), ("rodeo", (1,)), ("rloo", (2,)), ("rodeo", (2,))]
        together = [(c.estimator, c.seeds) for c in selection.runs(together=True).values()]
        assert together == [("rloo", (1, 2)), ("rodeo", (1, 2))]

    @pytest.mark.parametrize(
        ("selection", "says"),
        [
            (Selection(()), "Name one or more experiments of: train-elbo, "),
            (Selection(("tables",)), "There is no experiment 'tables'. There are: train-elbo, "),
            (Selection(("timing",), samples=(7,)), "--samples 7 is in no run of timing. .*: 2, 3."),
            (Selection(("timing",), layers=(1, 5)), "--layers 5 .* There are: 1, 2, 3, 4."),
            (Selection(("timing",), estimators=("relax",), samples=(2,)), "No run of timing has"),
            (Selection(("timing",), seeds=(1, 1)), "different numbers"),
            (Selection(("timing",), steps=0), "--steps must be 1 or more"),
        ],
    )
    def test_errors(self, selection, says):
        with pytest.raises(ConfigError, match=says):
            selection.configs()

    def test_estimates(self, tmp_path):
        """A run's own kind where it was measured, else the rough figure, scaled."""
        rloo, rodeo = (Config("mnist", estimator=name, steps=1000) for name in ("rloo", "rodeo"))
        run = Run.create(tmp_path / "run", rloo, {})
        for step, ms in ((1, 99.0), (2, 2.0), (3, 2.0)):
            run.append({"step": step, "seed": 1, "ms_per_step": ms})
        costs = Costs.read(tmp_path)
        assert costs.ms_per_step(rloo) == 2.0
        ratio = Costs().ms_per_step(rodeo) / Costs().ms_per_step(rloo)
        assert costs.ms_per_step(rodeo) == pytest.approx(2.0 * ratio)
        assert costs.seconds(rloo, 500) == pytest.approx(costs.seconds(rloo) - 1.0)


class TestSweep:
    def test_finished_more_steps_and_interrupted(self, tmp_path):
        out, runs = tmp_path / "out", {"run": SMALL}
        assert statuses(runs, out) == {"run": ("new", 0)}
        assert sweep(plan(runs, out), out, Here(), schedule=SCHEDULE, quiet=True) == {}
        assert statuses(runs, out) == {"run": ("finished", 60)}
        engine = Here()
        sweep(plan(runs, out), out, engine, quiet=True)
        assert engine.given == []
        assert engine.stopped

        fewer = plan({"run": dataclasses.replace(SMALL, steps=40)}, out)
        assert fewer[0].more
        more = {"run": dataclasses.replace(SMALL, steps=100)}
        assert statuses(more, out) == {"run": ("resumable", 60)}
        sweep(plan(more, out), out, Here(), schedule=SCHEDULE, quiet=True)
        assert statuses(more, out) == {"run": ("finished", 100)}
        train(more["run"], tmp_path / "whole", schedule=SCHEDULE, quiet=True)
        evaluated = [line for line in lines(out / "run") if "test_bound" in line]
        assert [line["step"] for line in evaluated] == [60, 100]
        extended = [line for line in lines(out / "run") if line != evaluated[0]]
        assert extended == lines(tmp_path / "whole")

    def test_retried_once(self, tmp_path, capsys):
        runs = {"first": SMALL, "second": SMALL, "third": SMALL}
        engine = Here("It broke.", None, "A fuse blew.", None, "Another one, too.", pretend=True)
        broken = sweep(plan(runs, tmp_path), tmp_path, engine)
        assert engine.given == ["first", "second", "third", "first", "third"]
        assert broken == {"third": "Another one, too."}
        assert statuses(runs, tmp_path)["first"] == ("finished", 60)
        said = capsys.readouterr().err
        assert "first: broken, will be tried once more. It broke." in said
        assert "first: finished" in said
        assert "third: broken. Another one, too." in said

    def test_why_it_broke(self, tmp_path):
        broken = sweep(plan({"run": IMPOSSIBLE}, tmp_path), tmp_path, Here(), quiet=True)
        assert broken["run"].startswith("--batch-size 5000 is more than the 1297 training images")
        assert (tmp_path / "run" / "errors.log").read_text().count("Traceback") == 2

    def test_unreadable(self, tmp_path):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "config.json").write_text("{")
        runs = {"run": SMALL}
        assert statuses(runs, tmp_path) == {"run": ("unreadable", 0)}
        broken = sweep(plan(runs, tmp_path), tmp_path, Here(), quiet=True)
        assert "config.json is damaged" in broken["run"]

    def test_one_process_for_each_run(self, tmp_path, monkeypatch):
        monkeypatch.setattr("steingrad.experiments.sweeps.worker.LOCK_SECONDS", 0)
        with exclusive(tmp_path / "run"):
            problem = attempt(Job(SMALL, tmp_path / "run"))
        assert problem is not None
        assert f"Process {os.getpid()} on " in problem


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
class TestProcesses:
    @pytest.mark.slow
    def test_killed_and_interrupted(self, tmp_path, capsys):
        """A worker gets SIGKILL, its successor is stopped by Ctrl-C, a third one ends the run."""
        out, runs, engine = tmp_path / "out", {"run": LONG}, Processes(2)
        pids = []

        def disturb():
            wait_for(lambda: list((out / "run").glob("checkpoint-*.eqx")))
            reached = statuses(runs, out)["run"][1]
            pids.extend(engine.pids)
            os.kill(pids[0], signal.SIGKILL)
            wait_for(lambda: engine.pids not in ([], pids))
            pids.extend(engine.pids)
            wait_for(lambda: statuses(runs, out)["run"][1] > reached)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=disturb)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            sweep(plan(runs, out), out, engine, schedule=OFTEN)
        thread.join()
        assert "The worker was killed (SIGKILL)" in capsys.readouterr().err
        assert len(pids) == 2
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        (planned,) = plan(runs, out)
        assert planned.status == "resumable"
        assert 0 < planned.step < LONG.steps

        # Beside a run that breaks, which takes nothing down with it.
        both = [planned, *plan({"bad": IMPOSSIBLE}, out)]
        broken = sweep(both, out, Processes(2), schedule=OFTEN, quiet=True)
        assert list(broken) == ["bad"]
        assert broken["bad"].startswith("--batch-size 5000 is more than")
        train(LONG, tmp_path / "whole", schedule=OFTEN, quiet=True)
        assert lines(out / "run") == lines(tmp_path / "whole")

    def test_worker_without_a_word(self, tmp_path, monkeypatch):
        """A worker that cannot even start."""
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        (tmp_path / "steingrad.py").write_text("raise SystemError('no memory for an import')")
        monkeypatch.chdir(tmp_path)
        out = tmp_path / "out"
        broken = sweep(plan({"run": SMALL}, out), out, Processes(1), quiet=True)
        assert broken["run"] == (
            "The worker ended with code 1: SystemError: no memory for an import"
        )


class TestCommandLine:
    def run(self, *arguments):
        with pytest.raises(SystemExit) as stop:
            main(["reproduce", *map(str, arguments)])
        return stop.value.code

    def engine(self, monkeypatch, *problems):
        engine = Here(*problems, pretend=True)
        monkeypatch.setattr("steingrad.cli.Processes", lambda workers: engine)
        return engine

    def test_dry_run_then_sweep(self, tiny, tmp_path, monkeypatch, capsys):
        engine = self.engine(monkeypatch)
        arguments = ["tiny", "--out", str(tmp_path), "--seeds", "2"]
        names = [name.replace("seed1", "seed2") for name in tiny]
        main(["reproduce", *arguments, "--dry-run"])
        said = capsys.readouterr().out
        assert all(name in said for name in names)
        assert said.count("0 of 60") == 2
        assert "2 runs, 0 finished before. Estimated time left: " in said
        assert engine.given == []

        main(["reproduce", *arguments])
        assert engine.given == names
        main(["reproduce", *arguments, "--steps", "40", "--dry-run"])
        said = capsys.readouterr().out
        assert "2 runs, 2 finished before, 2 of them with more steps than asked for." in said
        assert said.count("60, 40 asked") == 2

    def test_broken(self, tiny, tmp_path, monkeypatch, capsys):
        self.engine(monkeypatch, "A fuse blew.", None, "[Another] fuse blew.")
        assert self.run("tiny", "--out", tmp_path) == 1
        said = capsys.readouterr().out
        assert "broken run" in said
        assert "[Another] fuse blew." in said
        assert Run(tmp_path / tiny[1]).status == "finished"

    def test_interrupted(self, tiny, tmp_path, monkeypatch, capsys):
        engine = self.engine(monkeypatch, KeyboardInterrupt())
        assert self.run("tiny", "--out", tmp_path) == 130
        assert "the same command goes on" in capsys.readouterr().err
        assert engine.stopped

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["tables"], "There is no experiment 'tables'. There are: tiny."),
            (["tiny", "--workers", 0], "--workers must be 1 or more, not 0."),
            (["tiny", "--address", "auto"], "--address goes with --engine ray."),
            (["tiny", "--engine", "ray"], "pip install 'steingrad[ray]'"),
        ],
    )
    def test_errors(self, tiny, arguments, says, monkeypatch, capsys):
        monkeypatch.setitem(sys.modules, "ray", None)
        assert self.run(*arguments, "--dry-run") == 1
        assert says in capsys.readouterr().err


def test_table_names_every_status(tmp_path):
    for status in ("diverged", "running", "finished"):
        Run.create(tmp_path / status, SMALL, {}).update(status=status)
    Run.create(tmp_path / "further", dataclasses.replace(SMALL, steps=10**6), {})
    (tmp_path / "further" / f"checkpoint-{SMALL.steps + 1:010d}.eqx").touch()
    for number, content in enumerate(("{}", "[]", "no json")):
        (tmp_path / f"alien{number}").mkdir()
        (tmp_path / f"alien{number}" / "config.json").write_text(content)
    names = [path.name for path in sorted(tmp_path.iterdir())]
    planned = plan(dict.fromkeys([*names, "nothing"], SMALL), tmp_path)
    statuses = {run.name: run.status for run in planned}
    assert statuses == {
        **dict.fromkeys(["alien0", "alien1", "alien2"], "unreadable"),
        "diverged": "diverged",
        "finished": "finished",
        "further": "beyond",
        "nothing": "new",
        "running": "resumable",
    }
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table(planned, Costs.read(tmp_path)))
    text = capture.get()
    for name, status in statuses.items():
        assert any(name in line and status in line for line in text.splitlines())
    assert "1 on the way to more steps than asked for" in summary_line(planned)


def owner(folder: Path) -> tuple[int, int] | None:
    """The process at work in a run folder, and its parent."""
    try:
        pid = int((folder / ".lock").read_text().split()[1])
        return pid, int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError):  # not started, or ended
        return None


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # Ray's, where JAX has been used
def test_ray_node_lost(tmp_path):
    """A cluster of two nodes; one is killed midway, and its run goes on where the other one is."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    longer = dataclasses.replace(SMALL, steps=100_000)
    schedule = Schedule(report_every=5000, checkpoint_every=1000)
    runs = {f"seed{seed}": dataclasses.replace(longer, seeds=(seed,)) for seed in (1, 2)}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    lost = cluster.add_node(num_cpus=1)
    raylets = [n.all_processes["raylet"][0].process.pid for n in (cluster.head_node, lost)]
    moves = []

    def there():
        """The run on the node that will be lost, once it has a checkpoint."""
        found = [(name, owner(tmp_path / name)) for name, (_, step) in steps() if step > 0]
        return [(name, who) for name, who in found if who and who[1] == raylets[1]]

    def steps():
        return statuses(runs, tmp_path).items()

    def kill_node():
        wait_for(there, 120)
        ((name, before),) = there()
        cluster.remove_node(lost, allow_graceful=False)
        reached = dict(steps())[name]
        # By its number: a process whose raylet died has another parent for a moment, then ends.
        later = lambda: (who := owner(tmp_path / name)) and who[0] != before[0] and who
        wait_for(later, 240)
        moves.append((reached, later()))

    thread = threading.Thread(target=kill_node)
    try:
        engine = RayCluster(cluster.address)
        assert engine.slots == 2
        thread.start()
        planned = plan({**runs, "bad": IMPOSSIBLE}, tmp_path)
        broken = sweep(planned, tmp_path, engine, schedule=schedule, quiet=True)
        thread.join()
    finally:
        cluster.shutdown()
    ((status, step), (_, raylet)) = moves[0]
    assert status == "resumable"
    assert 0 < step < longer.steps
    assert raylet == raylets[0]
    assert list(broken) == ["bad"]
    assert broken["bad"].startswith("--batch-size 5000 is more than")
    whole, one_core = tmp_path / "whole", Processes(os.cpu_count())
    assert sweep(plan(runs, whole), whole, one_core, schedule=schedule, quiet=True) == {}
    for name in runs:
        assert lines(tmp_path / name) == lines(whole / name)
