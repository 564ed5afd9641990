"""Reports of invented runs: their tables and figures, what is left out, and their files."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic import entries, write_run

from steingrad_lab.cli import main
from steingrad_lab.report import BEGIN, END, section, write_report
from steingrad_lab.report.build import build
from steingrad_lab.report.collect import POINTS, collect
from steingrad_lab.report.markdown import summary, to_markdown
from steingrad_lab.report.page import to_html
from steingrad_lab.report.parts import Block, Cell, Figure, Report, Section, Table
from steingrad_lab.training import Config, RunError

ROOT = Path(__file__).parents[3]
MNIST = {
    entry.config.estimator: entry.config
    for entry in entries("train-elbo", dataset="mnist", likelihood="bernoulli", samples=2)
}


def short(config, steps=20_000, seeds=(1, 2)):
    return replace(config, steps=steps, seeds=seeds)


@pytest.fixture
def runs(tmp_path):
    """Runs on MNIST, K = 2. The paper's: RODEO −101.89, Double CV −102.14, DisARM −102.75."""
    path = tmp_path / "runs"
    write_run(path / "rodeo", short(MNIST["rodeo"]), final=-102.0, spread=0.2, ms=3.0)
    write_run(path / "deep" / "double", short(MNIST["double_cv"]), final=-103.0, spread=0.1, ms=2.2)
    write_run(path / "disarm", short(MNIST["disarm"]), final=-102.8, spread=0.2, ms=2.0)
    return path


def report_of(path) -> Report:
    return build(collect(path))


def parts(report: Report, name: str) -> Section:
    return next(section for section in report.sections if section.name == name)


def rows(table: Table) -> dict[str, tuple[Cell, ...]]:
    return {label: cells for block in table.blocks for label, cells in block.rows}


class TestTables:
    def test_cells(self, runs):
        section = parts(report_of(runs), "train-elbo")
        table, order = section.parts
        assert table.columns == ("", "MNIST")
        assert [block.heading for block in table.blocks] == ["K = 2"]
        cells = {label: cells[0] for label, cells in rows(table).items()}
        assert cells["RLOO"] == Cell("–", title="not run", comparable=False)
        assert cells["RODEO"].text == "−101.90 ± 0.10"
        assert cells["RODEO"].paper == "−101.89 ± 0.17"
        assert [label for label, cell in cells.items() if cell.best] == ["RODEO"]
        # Runs with a fiftieth of the paper's steps are not compared with the paper.
        assert not any(cell.mark or cell.comparable for cell in cells.values())
        assert "seeds 1, 2" in cells["Double CV"].title
        assert "20,000 steps and 2 seeds" in table.before[0]
        assert "1,000,000 steps and 5 seeds" in table.before[0]
        ours, paper, difference = rows(order)["MNIST, K = 2"]
        assert order.title == "The order, best first"
        assert ours.text == "RODEO > DisARM > Double CV"
        assert paper.text == "RODEO > Double CV > DisARM"
        assert difference.text == "ours has DisARM before Double CV (outside our error)"
        assert "Omniglot, Gaussian (K = 3)" in section.before[0]

    def test_at_the_paper_s_budget(self, tmp_path):
        for name, final, spread in (("rodeo", -102.0, 0.2), ("double_cv", -103.0, 0.1)):
            config = short(MNIST[name], 1_000_000)
            write_run(tmp_path / "runs" / name, config, final=final, spread=spread)
        report = report_of(tmp_path / "runs")
        cells = rows(parts(report, "train-elbo").parts[0])
        # Only Double CV differs significantly: −102.95 ± 0.05 and −102.14 ± 0.06.
        assert {label: cell[0].mark for label, cell in cells.items() if cell[0].mark} == {
            "Double CV": "▼"
        }
        assert "lower than the paper's by 0.81" in cells["Double CV"][0].title
        assert "paper −102.14 ± 0.06" in summary(report, "results")
        assert to_html(report).count('class="mark"') >= 1

    def test_unequal_budgets_are_not_ranked(self, tmp_path):
        for name, steps, final in (("rodeo", 1_000, -130.0), ("disarm", 500_000, -100.0)):
            write_run(tmp_path / "runs" / name, short(MNIST[name], steps), final=final)
        section = parts(report_of(tmp_path / "runs"), "train-elbo")
        assert [part.title for part in section.parts] == [""]  # no order
        assert not any(cells[0].best for cells in rows(section.parts[0]).values())

    def test_bound_of_k_samples_stands_beside_the_published_one(self, runs):
        tables = [p for p in parts(report_of(runs), "test-bound").parts if not p.words]
        assert [table.title for table in tables] == [
            "Test bound, K samples",
            "Test bound, 100 samples",
        ]
        assert rows(tables[0])["RODEO"][0].paper == "−100.78 ± 0.16"
        assert rows(tables[1])["RODEO"][0] == replace(
            rows(tables[1])["RODEO"][0], text="−96.90 ± 0.10", paper="", mark=""
        )

    def test_timing_shows_ratios(self, runs):
        table = parts(report_of(runs), "timing").parts[0]
        cells = {label: cells[0] for label, cells in rows(table).items()}
        assert (cells["DisARM"].text, cells["DisARM"].best) == ("1.00×", True)
        assert (cells["RODEO"].text, cells["RODEO"].detail) == ("1.50×", "3.00 ms")
        assert cells["RODEO"].paper == "1.63×"
        assert "A step is that of 2 seeds side by side." in table.before[-1]

    def test_three_samples_are_timed_against_arms(self, tmp_path):
        for entry in entries("timing", samples=3):
            ms = 4.0 if entry.config.estimator == "rodeo" else 2.0
            write_run(tmp_path / entry.label, short(entry.config, seeds=(1,)), ms=ms)
        table = parts(report_of(tmp_path), "timing").parts[0]
        rodeo = rows(table)["RODEO"][0]
        assert (rodeo.text, rodeo.paper) == ("2.00×", "2.47×")

    def test_paper_budget_goes_without_saying(self, tmp_path):
        write_run(tmp_path / "run", MNIST["rodeo"])
        assert parts(report_of(tmp_path), "train-elbo").parts[0].before == ()

    def test_one_seed(self, tmp_path):
        write_run(tmp_path / "run", short(MNIST["rodeo"], seeds=(3,)), final=-150.0)
        table = parts(report_of(tmp_path), "train-elbo").parts[0]
        cell = rows(table)["RODEO"][0]
        assert (cell.text, cell.mark, cell.best) == ("−150.00", "", False)
        assert "1 seed;" in table.before[0]
        assert "without ± is of one seed: it has no error of its own" in table.before[1]

    @pytest.mark.parametrize(("final", "mark"), [(-101.89 - 0.9, "▼"), (-101.89 + 0.7, "")])
    def test_one_seed_of_the_papers_length(self, tmp_path, final, mark):
        """The paper's error of 0.17 is for five runs. The error of one run is √5 times larger."""
        write_run(tmp_path / "run", short(MNIST["rodeo"], 1_000_000, (1,)), final=final)
        table = parts(report_of(tmp_path), "train-elbo").parts[0]
        assert rows(table)["RODEO"][0].mark == mark
        assert "its error is taken to be that of one of the paper's runs" in table.before[1]

    def test_runs_of_different_length(self, runs):
        write_run(runs / "rloo", short(MNIST["rloo"], steps=5_000, seeds=(1,)))
        before = parts(report_of(runs), "train-elbo").parts[0].before
        assert "5,000 to 20,000 steps and 1 to 2 seeds" in before[0]
        assert "5,000 steps for RLOO on MNIST (K = 2); 20,000 steps for all others" in before[1]
        assert "1 seed for RLOO on MNIST (K = 2)" in before[2]

    def test_seeds_in_several_folders(self, tmp_path):
        for seed, final in ((1, -100.0), (2, -101.0), (3, -102.0)):
            write_run(tmp_path / str(seed), short(MNIST["rodeo"], seeds=(seed,)), final=final)
        table = parts(report_of(tmp_path), "train-elbo").parts[0]
        assert rows(table)["RODEO"][0].text == "−101.00 ± 0.58"

    def test_a_longer_run_wins(self, tmp_path):
        write_run(tmp_path / "long", short(MNIST["rodeo"], steps=30_000, seeds=(1,)), final=-99.0)
        write_run(tmp_path / "short", short(MNIST["rodeo"], seeds=(2,)), final=-110.0)
        report = report_of(tmp_path)
        assert rows(parts(report, "train-elbo").parts[0])["RODEO"][0].text == "−99.00"
        assert "30,000 steps" in rows(parts(report, "not-used").parts[0])["short"][0].text

    def test_other_data_files(self, tmp_path):
        entry = entries("train-elbo", dataset="omniglot", likelihood="bernoulli", samples=2)[-1]
        run = write_run(tmp_path / "run", short(entry.config))
        table = parts(report_of(tmp_path), "train-elbo").parts[0]
        assert table.columns[1] == "Omniglot †"
        assert "000000000000…) is not the published file" in table.after[0]
        run.update(status="running")
        mnist = write_run(tmp_path / "other", short(MNIST["rodeo"]))
        name = "mnist/train-images-idx3-ubyte.gz"
        mnist.update(data_files={name: "f" * 64}, published={name: None})
        table = parts(report_of(tmp_path), "train-elbo").parts[0]
        assert "ffffffffffff…) could not be compared with the published file" in table.after[0]


class TestBiased:
    """Estimators that are biased by design have their own heading and are never the best."""

    @pytest.fixture
    def report(self, runs):
        """ReinMax has the highest ELBO, the lowest variance and the shortest time."""
        best = {"final": -90.0, "spread": 0.1, "variance": 1e-3, "ms": 1.0}
        write_run(runs / "reinmax", short(MNIST["reinmax"]), **best)
        return report_of(runs)

    @pytest.mark.parametrize("name", ["train-elbo", "test-bound", "timing"])
    def test_tables(self, report, name):
        table = parts(report, name).parts[0]
        assert [block.heading for block in table.blocks] == ["K = 2", "Biased, K = 2"]
        unbiased, biased = ({label: row for label, row in b.rows} for b in table.blocks)
        assert list(biased) == ["Straight-through", "ReinMax"]
        assert not {"Straight-through", "ReinMax"} & set(unbiased)
        assert biased["Straight-through"][0].text == "–"
        assert biased["ReinMax"][0].text == {
            "train-elbo": "−89.95 ± 0.05", "test-bound": "−87.95 ± 0.05", "timing": "0.50×"
        }[name]  # fmt: skip
        best = "DisARM" if name == "timing" else "RODEO"
        assert [label for label, row in rows(table).items() if row[0].best] == [best]

    def test_the_order_is_of_the_unbiased(self, report):
        _, order = parts(report, "train-elbo").parts
        assert rows(order)["MNIST, K = 2"][0].text == "RODEO > DisARM > Double CV"

    def test_figures(self, report):
        figure = parts(report, "variance-curves").parts[0]
        labels = [curve.label for curve in figure.curves]
        assert labels == ["DisARM", "Double CV", "RODEO", "ReinMax (biased)"]
        assert [block.heading for block in figure.table.blocks] == ["", "Biased"]
        cells = rows(figure.table)
        assert not any(cell.best for cell in cells["ReinMax"])
        assert any(cell.best for cell in cells["DisARM"])

    def test_own_runs(self, tmp_path):
        """A single unbiased run has no rivals and is not marked as the best."""
        write_run(tmp_path / "rloo", Config(steps=500, estimator="rloo"), final=-20.0)
        write_run(tmp_path / "through", Config(steps=500, estimator="straight_through"))
        figure, _ = parts(report_of(tmp_path), "own-digits-bernoulli").parts
        labels = [curve.label for curve in figure.curves]
        assert labels == ["RLOO", "Straight-through (biased)"]
        assert [block.heading for block in figure.table.blocks] == ["", "Biased"]
        assert not any(cell.best for row in rows(figure.table).values() for cell in row)

    def test_both_ways_of_writing(self, report):
        assert "| *Biased, K = 2* |" in to_markdown(report)
        assert ">Biased, K = 2</th>" in to_html(report)

    def test_no_heading_without_a_run(self, runs):
        assert "*Biased" not in to_markdown(report_of(runs))


class TestCurves:
    def test_time_is_that_of_the_fastest_run(self, tmp_path):
        """The run of another seed was slower, because it shared its machine."""
        for seed, ms in ((1, 3.0), (2, 30.0)):
            config = entries("variance-curves", dataset="mnist", estimator="rodeo")[0].config
            config = replace(config, steps=20_000, seeds=(seed,))
            write_run(tmp_path / str(seed), config, ms=ms)
        figure = parts(report_of(tmp_path), "variance-curves").parts[0]
        assert figure.curves[0].seconds[:2] == [3, 6]
        assert figure.table.blocks[0].rows[0][1][-1].text == "3.00"

    def test_figure_and_its_table(self, runs):
        figure = parts(report_of(runs), "variance-curves").parts[0]
        assert isinstance(figure, Figure)
        assert figure.name == "variance-curves-mnist-bernoulli-k2"
        assert [curve.label for curve in figure.curves] == ["DisARM", "Double CV", "RODEO"]
        assert len({curve.style for curve in figure.curves}) == 3
        rodeo = figure.curves[-1]
        # The first of 20 reports took 5 times as long as the others, and does not count.
        assert rodeo.steps[:2] == [1_000, 2_000]
        assert rodeo.seconds[:2] == [3, 6]
        assert "Not run: RLOO, Lariat, Bronco, Straight-through, ReinMax." in figure.before
        assert figure.table.columns[1:3] == (
            "Gradient variance at 20,000 steps",
            "Paper's at 200,000 steps",
        )
        assert rows(figure.table)["RODEO"][1].text == "0.0100"

    @pytest.mark.parametrize(
        ("steps", "published"),
        [
            (199_000, {}),
            (200_000, {"grad_variance": (200_000, 0.01)}),
            (1_000_000, {"grad_variance": (200_000, 0.01), "objective": (1_000_000, -101.89)}),
        ],
    )
    def test_published_points_where_a_curve_gets_there(self, tmp_path, steps, published):
        write_run(tmp_path / "rodeo", short(MNIST["rodeo"], steps, (1,)))
        write_run(tmp_path / "lariat", short(MNIST["lariat"], steps, (1,)))
        (figure,) = parts(report_of(tmp_path), "variance-curves").parts
        rodeo, lariat = figure.curves
        assert (rodeo.published, lariat.published) == (published, {})
        said = " ".join(figure.before)
        assert ("variances read by eye" in said) == ("grad_variance" in published)
        assert ("mean training ELBO over" in said) == ("objective" in published)
        drawn = to_html(report_of(tmp_path)).partition('id="figures">')[2].partition("</script>")[0]
        curves = json.loads(drawn)["figures"]["variance-curves-mnist-bernoulli-k2"]["curves"]
        assert curves[0]["paper"] == {name: list(point) for name, point in published.items()}

    def test_ablations_have_no_published_elbo_of_their_own(self, tmp_path):
        for number, entry in enumerate(entries("ablation-parts")):
            write_run(tmp_path / str(number), short(entry.config, 1_000_000, (1,)))
        (figure,) = parts(report_of(tmp_path), "ablation-parts").parts
        with_elbo = [curve.label for curve in figure.curves if "objective" in curve.published]
        assert with_elbo == ["RODEO: all three"]

    def test_ablation_is_one_figure(self, tmp_path):
        for number, entry in enumerate(entries("ablation-surrogate")):
            write_run(tmp_path / str(number), short(entry.config, seeds=(1,)))
        (figure,) = parts(report_of(tmp_path), "ablation-surrogate").parts
        assert [curve.label for curve in figure.curves] == [
            "RODEO, K = 2",
            "RODEO, K = 3",
            "modified RELAX, K = 2",
            "modified RELAX, K = 3",
        ]

    def test_one_run_is_no_ablation(self, tmp_path):
        write_run(tmp_path / "one", short(entries("ablation-parts")[0].config, seeds=(1,)))
        assert "ablation-parts" not in [section.name for section in report_of(tmp_path).sections]

    def test_seeds_that_report_at_other_steps(self, tmp_path):
        for seed, lines in ((1, 10), (2, 25)):
            write_run(tmp_path / str(seed), short(MNIST["rodeo"], seeds=(seed,)), lines=lines)
        figure = parts(report_of(tmp_path), "variance-curves").parts[0]
        assert list(figure.curves[0].steps) == list(range(2_000, 20_001, 2_000))


class TestWhatIsFound:
    def test_unfinished_and_other_runs(self, runs):
        write_run(runs / "stopped", short(MNIST["rloo"], steps=40_000), status="running", lines=4)
        write_run(runs / "burst", short(MNIST["rloo"], seeds=(7,)), status="diverged", lines=4)
        write_run(runs / "digits", Config(steps=500), final=-20.0)
        report = report_of(runs)
        unused = {
            label: cells[0].text
            for label, cells in rows(parts(report, "not-used").parts[0]).items()
        }
        assert unused == {
            "burst": "diverged, at step 20,000 of 20,000",
            "stopped": "not finished, at step 40,000 of 40,000",
        }
        own = parts(report, "own-digits-bernoulli")
        assert own.title == "Other runs: Digits, Bernoulli likelihood"
        cells = rows(own.parts[0].table)["RODEO"]
        assert [cell.text for cell in cells][:3] == ["500", "1", "−20.00"]
        assert rows(parts(report, "train-elbo").parts[0])["RLOO"][0].text == "–"

    def test_damaged_folders(self, runs):
        (runs / "cut").mkdir()
        (runs / "cut" / "config.json").write_text('{"config": ')
        (runs / "alien").mkdir()
        (runs / "alien" / "config.json").write_text("{}")
        with pytest.warns(UserWarning, match="left out") as said:
            found = collect(runs)
        assert len(found.runs) == 3
        assert sorted(Path(str(w.message).split()[0]).name for w in said) == ["alien", "cut"]

    def test_the_same_run_twice(self, runs):
        write_run(runs / "again", short(MNIST["rodeo"]), final=-90.0)
        with pytest.warns(UserWarning, match="rodeo is left out: again is the same run"):
            assert len(collect(runs).runs) == 3

    def test_no_runs(self, tmp_path, capsys):
        with pytest.raises(SystemExit) as stop:
            main(["report", str(tmp_path), "--out", str(tmp_path / "out")])
        assert stop.value.code == 1
        assert "There are no runs under" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()

    def test_numbers_that_are_not_finite(self, tmp_path):
        run = write_run(tmp_path / "run", short(MNIST["rodeo"]))
        run.append({"step": 20_000, "seed": 1, "objective": float("nan"), "ms_per_step": 1.0})
        assert "NaN" not in to_html(report_of(tmp_path))


class TestFiles:
    def test_command(self, runs, tmp_path, capsys):
        out = tmp_path / "out"
        main(["report", str(runs), "--out", str(out)])
        assert capsys.readouterr().out.strip() == str(out / "index.html")
        png = (out / "figures" / "variance-curves-mnist-bernoulli-k2.png").read_bytes()
        assert png.startswith(b"\x89PNG")
        text = (out / "report.md").read_text()
        assert "**−101.90 ± 0.10**<br><sub>paper −101.89 ± 0.17</sub>" in text
        assert "(figures/variance-curves-mnist-bernoulli-k2.png)" in text
        for link in re.findall(r"\]\((figures/[^)]+)\)", text):
            assert (out / link).exists()
        page = (out / "index.html").read_text()
        assert re.findall(r"(?:src|href)=\"(?!#|data:)", page) == []

    def test_results_are_enough(self, runs, tmp_path):
        """A report made from the `results.jsonl` of a report has the same files."""
        write_run(runs / "stopped", short(MNIST["rloo"]), status="running")
        out, again = tmp_path / "out", tmp_path / "again"
        write_report(runs, out)
        first = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
        write_report(out, again)
        assert {p.name: p.read_bytes() for p in again.iterdir() if p.is_file()} == first
        write_report(out, out)
        assert {p.name: p.read_bytes() for p in out.iterdir() if p.is_file()} == first

    def test_results_beside_their_runs_count_once(self, runs):
        write_report(runs, runs / "report")
        assert len(collect(runs).runs) == 3

    def test_results_are_small(self, tmp_path):
        write_run(tmp_path / "runs" / "run", short(MNIST["rodeo"], steps=100_000), lines=900)
        write_report(tmp_path / "runs", tmp_path / "out")
        (line,) = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
        stored = json.loads(line)
        for seed in (1, 2):
            own = [x for x in stored["metrics"] if x["seed"] == seed and not x.get("final")]
            assert len(own) == POINTS
            assert own[-1]["step"] == 100_000
        assert stored["ms_per_step"] == 2.0
        assert set(stored) >= {"config", "environment", "data_files", "status", "metrics"}
        assert max(len(x) for x in re.findall(r"\d\.\d+", line)) <= 12

    def test_damaged_line(self, runs, tmp_path):
        write_report(runs, tmp_path / "out")
        with (tmp_path / "out" / "results.jsonl").open("a") as file:
            file.write('{"format": 99}\n{"cut\n')
        with pytest.warns(UserWarning, match="line [45], is left out") as said:
            assert len(collect(tmp_path / "out").runs) == 3
        assert len(said) == 2

    def test_an_earlier_report_stays_until_the_new_one_is_there(self, runs, tmp_path, monkeypatch):
        out = tmp_path / "out"
        write_report(runs, out)
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        write_run(runs / "more", short(MNIST["rloo"]))

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("steingrad_lab.report.plot", full)
        with pytest.raises(OSError, match="No space"):
            write_report(runs, out)
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before

    @pytest.mark.parametrize("name", [b"caf\xe9", b"two\nlines", b"a|b <i>"])
    def test_odd_names_of_folders(self, runs, tmp_path, name):
        """Such names are escaped or put on one line, and the run is not left out."""
        write_run(runs / os.fsdecode(name), short(MNIST["rloo"]), status="running", lines=4)
        write_report(runs, tmp_path / "out")
        text = (tmp_path / "out" / "report.md").read_text("utf-8")
        shown = {
            b"caf\xe9": r"caf\udce9",
            b"two\nlines": "two lines",
            b"a|b <i>": r"a\|b &lt;i&gt;",
        }
        assert f"| {shown[name]} | not finished" in text
        assert (tmp_path / "out" / "index.html").read_text("utf-8")
        assert len(collect(tmp_path / "out").runs) == 4

    def test_damaged_results(self, runs, tmp_path):
        write_report(runs, tmp_path / "out")
        path = tmp_path / "out" / "results.jsonl"
        first, *others = path.read_bytes().splitlines()
        record = json.loads(first)
        line = record["metrics"][0]
        bad = [
            b"\xff\xfe",
            b"[" * 100_000,
            b"[1]",
            *(
                json.dumps({**record, **fields}).encode()
                for fields in (
                    {"metrics": [{**line, "objective": "high"}]},
                    {"metrics": [{**line, "step": None}]},
                    {"metrics": 3},
                    {"name": 5},
                    {"ms_per_step": "fast"},
                    {"environment": []},
                    {"data_files": {"a": 1}},
                    {"ms_per_step": float("inf")},
                    {"metrics": [{**line, "objective": 10**400}]},
                    {"published": {"digits": "yes"}},
                    {"environment": {"versions": 3}},
                    {"config": {**record["config"], "steps": 60.5}},
                )
            ),
        ]
        path.write_bytes(b"\n".join([*bad, *others]))
        (tmp_path / "out" / "deep" / "results.jsonl").mkdir(parents=True)
        with pytest.warns(UserWarning, match="is left out") as said:
            assert len(collect(tmp_path / "out").runs) == 2
        assert len(said) == len(bad) + 1

    def test_zeros(self, tmp_path):
        """A variance of zero has no logarithm, and a time of zero cannot be a divisor."""
        for name in ("rodeo", "disarm"):
            write_run(tmp_path / "runs" / name, short(MNIST[name]), variance=0.0, ms=0.0)
        write_report(tmp_path / "runs", tmp_path / "out")
        assert "0.00" in (tmp_path / "out" / "report.md").read_text()

    def test_everything_is_escaped(self):
        table = Table("<a>", ("<b>",), (Block("", ()),), ("<c> & | _",))
        section = Section("x", "<d>", (table,))
        report = Report("<e>", ("<f>",), (), (section,))
        page, text = to_html(report), to_markdown(report)
        for letter in "abcdef":
            assert f"<{letter}>" not in page.partition("<header>")[2].partition("<script")[0]
            assert f"<{letter}>" not in text
        assert r"&lt;c&gt; &amp; \| \_" in text


class TestReadme:
    def test_section(self, runs, tmp_path):
        readme = tmp_path / "README.md"
        readme.write_text(f"# Title\n\n{BEGIN}\nof yesteryear\n{END}\n\nAfter.\n")
        main(["report", str(runs), "--out", str(tmp_path / "results"), "--readme", str(readme)])
        text = readme.read_text()
        assert text.startswith(f"# Title\n\n{BEGIN}\n")
        assert text.endswith(f"\n{END}\n\nAfter.\n")
        assert "of yesteryear" not in text
        assert "### Training ELBO, one stochastic layer" in text
        assert "(results/figures/variance-curves-mnist-bernoulli-k2.png)" in text
        assert "20,000 steps and 2 seeds" in text
        assert "−101.90 ± 0.10" in text
        assert "paper −101.89" not in text  # a fiftieth of the paper's budget
        main(["report", str(runs), "--out", str(tmp_path / "results"), "--readme", str(readme)])
        assert readme.read_text() == text

    @pytest.mark.parametrize("content", ["nothing", f"{BEGIN} only", f"{END}{BEGIN}"])
    def test_no_markers(self, runs, tmp_path, content):
        readme = tmp_path / "README.md"
        readme.write_text(content)
        with pytest.raises(RunError, match="does not have the markers"):
            write_report(runs, tmp_path / "out", readme)
        assert readme.read_text() == content
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        ("steps", "seeds", "says"),
        [
            (1_000_000, (1, 2, 3, 4, 5), "the paper's budget, 1,000,000 steps and 5 seeds."),
            (1_000_000, (1,), "have 1,000,000 steps and 1 seed; the paper's have 1,000,000 steps"),
        ],
    )
    def test_budget(self, tmp_path, steps, seeds, says):
        write_run(tmp_path / "run", short(MNIST["rodeo"], steps, seeds))
        text = summary(report_of(tmp_path), "results")
        assert text.count(says) == 1 + text.count("### Gradient variance") * (len(seeds) == 1)
        assert text.count("Numbers are means ± standard errors") == 1
        assert "Curves are means" not in text

    def test_is_made_from_the_results_in_the_repository(self):
        report = report_of(ROOT / "results" / "10000-steps")
        stored = section(ROOT / "results" / "README.md").strip()
        assert stored == summary(report, "10000-steps")

    @pytest.mark.parametrize("block", sorted(path.name for path in (ROOT / "results").glob("*/")))
    def test_blocks_are_made_from_their_results(self, block):
        folder = ROOT / "results" / block
        assert (folder / "report.md").read_text() == to_markdown(report_of(folder))
