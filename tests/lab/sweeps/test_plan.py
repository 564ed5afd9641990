"""Selecting the runs of a sweep, their current state, and estimates of their time."""

import dataclasses

import pytest
from here import SMALL
from rich.console import Console

from steingrad_lab.sweeps.costs import Costs
from steingrad_lab.sweeps.plan import Selection, plan, summary_line, table
from steingrad_lab.training import Config, ConfigError, Run


class TestPlan:
    def test_shared_runs_are_counted_once(self):
        one = Selection(("train-elbo",)).runs()
        assert Selection(("train-elbo", "test-bound", "variance-curves")).runs() == one
        assert len(one) == 6 * (8 + 8) * 5  # tasks, estimators with K = 2 and 3, seeds

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
            (Selection(()), "Name one or more of: train-elbo, "),
            (Selection(("tables",)), "There is no experiment 'tables'. Choose from: train-elbo, "),
            (Selection(("timing",), samples=(7,)), "No run of timing has samples 7. .*: 2, 3."),
            (Selection(("timing",), layers=(1, 5)), "layers 5. Choose from: 1, 2, 3, 4."),
            (
                Selection(("timing",), estimators=("relax",), samples=(2,)),
                "No run of timing matches",
            ),
            (Selection(("timing",), seeds=(1, 1)), "different numbers"),
            (Selection(("timing",), steps=0), "steps must be 1 or more"),
        ],
    )
    def test_errors(self, selection, says):
        with pytest.raises(ConfigError, match=says):
            selection.configs()

    def test_estimates(self, tmp_path):
        """Measured times are used for the same kind of run, and scale the rough figures."""
        rloo, rodeo = (Config("mnist", estimator=name, steps=1000) for name in ("rloo", "rodeo"))
        run = Run.create(tmp_path / "run", rloo, {}, {})
        for step, ms in ((1, 99.0), (2, 2.0), (3, 2.0)):
            run.append({"step": step, "seed": 1, "ms_per_step": ms})
        costs = Costs.read(tmp_path)
        assert costs.ms_per_step(rloo) == 2.0
        ratio = Costs().ms_per_step(rodeo) / Costs().ms_per_step(rloo)
        assert costs.ms_per_step(rodeo) == pytest.approx(2.0 * ratio)
        assert costs.seconds(rloo, 500) == pytest.approx(costs.seconds(rloo) - 1.0)


def test_table_names_every_status(tmp_path):
    for status in ("diverged", "running", "finished"):
        Run.create(tmp_path / status, SMALL, {}, {}).update(status=status)
    Run.create(tmp_path / "further", dataclasses.replace(SMALL, steps=10**6), {}, {})
    (tmp_path / "further" / f"checkpoint-{SMALL.steps + 1:010d}.eqx").touch()
    other = dataclasses.replace(SMALL, seeds=(7,))
    Run.create(tmp_path / "other", other, {}, {}).update(status="finished")
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
        "other": "other",
        "running": "resumable",
    }
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table(planned, Costs.read(tmp_path)))
    text = capture.get()
    for name, status in statuses.items():
        assert any(name in line and status in line for line in text.splitlines())
    assert "1 on the way to more steps than asked for" in summary_line(planned)
