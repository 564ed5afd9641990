"""Sweeps: which runs are skipped, resumed, retried and reported; the command `reproduce`."""

import dataclasses
import json
import os
import sys
import warnings
from pathlib import Path

import pytest
from here import IMPOSSIBLE, SCHEDULE, SMALL, Here, lines, statuses

from steingrad_lab.cli import main
from steingrad_lab.paper import grid
from steingrad_lab.paper.settings import run_name
from steingrad_lab.sweeps.plan import plan
from steingrad_lab.sweeps.sweep import sweep
from steingrad_lab.sweeps.worker import Job, attempt
from steingrad_lab.training import Config, Run, Schedule, train
from steingrad_lab.training.lock import sole_owner


@pytest.fixture
def tiny(monkeypatch):
    """Replaces the grid by one small experiment, for the command line."""
    entries = (grid.Entry("a", SMALL), grid.Entry("b", dataclasses.replace(SMALL, batch_size=30)))
    experiment = grid.Experiment("tiny", "", "table", ("train_elbo",), entries)
    monkeypatch.setattr(grid, "experiments", lambda: {"tiny": experiment})
    return [run_name(entry.config) for entry in entries]


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
        assert broken["run"].startswith(
            "batch_size is 5000, but digits has only 1297 training images"
        )
        assert (tmp_path / "run" / "errors.log").read_text().count("Traceback") == 2

    def test_unreadable(self, tmp_path):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "config.json").write_text("{")
        runs = {"run": SMALL}
        assert statuses(runs, tmp_path) == {"run": ("unreadable", 0)}
        broken = sweep(plan(runs, tmp_path), tmp_path, Here(), quiet=True)
        assert "config.json is damaged" in broken["run"]

    def test_a_damaged_folder_stops_nothing_else(self, tmp_path):
        """Each damaged folder is reported at the end, with what is wrong."""
        damage = {
            "alien": ("config.json", b'{"a": 1}'),
            "text": ("config.json", b"\xff\xfe"),
            "left": ("checkpoint-0000000020.eqx", b""),
            "deep": ("config.json", b"[" * 100_000),
        }
        for name, (file, content) in damage.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / file).write_bytes(content)
        (tmp_path / "file").write_text("not a folder")
        stray = Run.create(tmp_path / "stray", SMALL, {}, {})
        (stray.path / "checkpoint-best.eqx").write_bytes(b"")
        (stray.path / "metrics.jsonl").write_bytes(b'{"step": "x"}\n[3]\n\xff')
        runs = dict.fromkeys([*damage, "file", "stray", "good"], SMALL)
        broken = sweep(plan(runs, tmp_path), tmp_path, Here(), quiet=True)
        assert sorted(broken) == sorted([*damage, "file", "stray"])
        assert "was not written by `steingrad train`" in broken["alien"]
        assert "has files of another run" in broken["left"]
        assert "was trained on other data" in broken["stray"]
        assert Run(tmp_path / "good").status == "finished"

    def test_warnings_of_workers_are_kept(self, tmp_path):
        job = Job(SMALL, tmp_path / "run", SCHEDULE)
        assert attempt(job) is None
        with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
            file.write(b"[]\n")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            assert attempt(job) is None
        said = (tmp_path / "run" / "errors.log").read_text()
        assert "warning: " in said
        assert "(not an object)." in said

    @pytest.mark.parametrize("data_dir", [None, Path("/data/caf\udce9\n")])
    def test_jobs_are_sent_as_json(self, data_dir):
        """The configurations of the grid arrive as they were, as do unusual numbers and paths."""
        entries = [entry for every in grid.experiments().values() for entry in every.entries]
        configs = list(dict.fromkeys(entry.config for entry in entries))
        configs.append(dataclasses.replace(SMALL, learning_rate=0.1 + 0.2, seeds=(0, 2**31 - 1)))
        configs.append(Config(estimator="reinforce", baseline=1 / 3, dataset="/own/\udcff\n.npz"))
        configs.append(Config(operator="mpf", damping=5e-324, coordinates=3, loo=False))
        for config in configs:
            job = Job(config, Path('/runs/"<b>"'), Schedule(7, 0, 3), data_dir)
            sent = json.dumps(job.to_json())
            assert "\n" not in sent  # a worker reads one line
            assert Job.from_json(json.loads(sent)) == job

    def test_one_process_for_each_run(self, tmp_path, monkeypatch):
        monkeypatch.setattr("steingrad_lab.sweeps.worker.LOCK_SECONDS", 0.0)
        with sole_owner(tmp_path / "run"):
            problem = attempt(Job(SMALL, tmp_path / "run"))
        assert problem is not None
        assert f"process {os.getpid()} on " in problem


class TestCommandLine:
    def run(self, *arguments):
        with pytest.raises(SystemExit) as stop:
            main(["reproduce", *map(str, arguments)])
        return stop.value.code

    def engine(self, monkeypatch, *problems):
        engine = Here(*problems, pretend=True)
        monkeypatch.setattr("steingrad_lab.cli.Processes", lambda workers: engine)
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

    def test_in_processes(self, tiny, tmp_path, monkeypatch, capsys):
        """The options of the command reach the workers: the schedule, and a data folder below the
        home folder. Workers do not import modules from the current folder."""
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("USERPROFILE", str(tmp_path))
        (tmp_path / "images").mkdir()
        (tmp_path / "random.py").write_text("raise SystemError('not the module you think')")
        monkeypatch.chdir(tmp_path)
        options = ["--workers", "2", "--report-every", "30", "--data-dir", "~/images"]
        main(["reproduce", "tiny", *options, "--out", "out"])
        assert "Tables and figures: steingrad report out" in capsys.readouterr().out
        for name in tiny:
            assert [line["step"] for line in lines(tmp_path / "out" / name)][:2] == [30, 60]

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
        said = capsys.readouterr().err
        assert "stopped. There is no checkpoint yet: the same command begins again." in said
        assert engine.stopped

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["tables"], "There is no experiment 'tables'. Choose from: tiny."),
            (["tiny", "--workers", 0], "workers must be 1 or more, not 0."),
            (["tiny", "--address", "auto"], "--address goes with --engine ray."),
            (["tiny", "--engine", "ray"], "pip install 'steingrad[ray]'"),
        ],
    )
    def test_errors(self, tiny, arguments, says, monkeypatch, capsys):
        monkeypatch.setitem(sys.modules, "ray", None)
        assert self.run(*arguments, "--dry-run") == 1
        assert says in capsys.readouterr().err
