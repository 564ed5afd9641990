"""Reports of runs that do not belong to an experiment of the paper."""

from dataclasses import replace

from synthetic import write_run

from steingrad_lab.report.build import build
from steingrad_lab.report.collect import collect
from steingrad_lab.report.markdown import to_markdown
from steingrad_lab.report.own import differing
from steingrad_lab.report.page import to_html
from steingrad_lab.training import Config


def rows(table):
    return {label: [cell.text for cell in cells] for label, cells in table.blocks[0].rows}


def test_two_runs_on_digits(tmp_path):
    """The page is about these two runs. It mentions neither the paper nor missing runs."""
    for name, final in (("rodeo", -20.0), ("rloo", -21.0)):
        write_run(tmp_path / name, Config(estimator=name, steps=500), final=final)
    report = build(collect(tmp_path))
    own, provenance = report.sections
    figure, settings = own.parts
    assert report.title == "Runs with steingrad"
    assert own.title == "Digits, Bernoulli likelihood"
    assert [curve.label for curve in figure.curves] == ["RLOO", "RODEO"]
    assert [curve.style for curve in figure.curves] == [4, 0]
    assert rows(figure.table)["RODEO"][:4] == ["500", "1", "−20.00", "−15.00"]
    best = {label: cells[2].best for label, cells in figure.table.blocks[0].rows}
    assert best == {"RLOO": False, "RODEO": True}
    assert settings.columns == ("", "estimator")
    assert rows(settings) == {"RLOO": ["RLOO"], "RODEO": ["RODEO"]}
    assert "batch size 100" in settings.after[0]
    assert provenance.title == "Environment, data, commit"
    for text in (to_html(report), to_markdown(report)):
        assert "paper" not in text.partition("<body>")[2].partition("<script")[0].lower()
        assert "Not run" not in text


def test_settings_that_differ(tmp_path):
    configs = [
        Config(steps=500),
        Config(steps=500, operator="mpf", damping=0.1),
        Config(steps=500, estimator="rloo", samples=4, hidden=()),
    ]
    assert differing(configs) == ["estimator", "samples", "operator", "hidden"]
    for number, config in enumerate(configs):
        write_run(tmp_path / str(number), config)
    (own, _) = build(collect(tmp_path)).sections
    assert rows(own.parts[1]) == {
        "RODEO, operator gibbs": ["RODEO", "2", "gibbs", "200 200"],
        "RODEO, operator mpf": ["RODEO", "2", "mpf", "200 200"],
        "RLOO, K = 4, hidden none": ["RLOO", "4", "–", "none"],
    }
    assert len({curve.style for curve in own.parts[0].curves}) == 3


def test_one_run(tmp_path):
    write_run(tmp_path / "run", Config(steps=500), lines=1)
    (own, _) = build(collect(tmp_path)).sections
    table, settings = own.parts
    assert rows(table)["RODEO"][0] == "500"
    assert settings.blocks == ()
    assert "estimator RODEO" in settings.after[0]


def test_datasets_of_the_same_name(tmp_path):
    for number, folder in enumerate(("a", "b")):
        config = Config(dataset=str(tmp_path / folder / "flowers.npz"), steps=500)
        write_run(tmp_path / "runs" / folder, config, final=-10.0 * (number + 1))
    first, second, _ = build(collect(tmp_path / "runs")).sections
    assert first.name != second.name
    assert "flowers" in second.title
    assert str(tmp_path / "b") in second.title


def test_the_best_of_runs_of_the_same_length(tmp_path):
    for steps, estimator in ((500, "rodeo"), (500, "rloo"), (900, "disarm")):
        config = replace(Config(estimator=estimator), steps=steps)
        write_run(tmp_path / estimator, config, final=-20 + steps / 100)
    (own, _) = build(collect(tmp_path)).sections
    best = {label: cells[2].best for label, cells in own.parts[0].table.blocks[0].rows}
    assert best == {"RODEO": True, "RLOO": True, "DisARM": False}
