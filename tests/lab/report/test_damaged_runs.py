"""Reports of damaged runs and of nasty names: one of them never ends or breaks the report."""

import dataclasses
import html.parser
import itertools
import json
import math
import re
import warnings
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt
from synthetic import write_run

from steingrad_lab.report import BEGIN, END, write_report
from steingrad_lab.report.build import build
from steingrad_lab.report.collect import collect
from steingrad_lab.report.markdown import to_markdown
from steingrad_lab.report.numbers import visible
from steingrad_lab.training import Config

GOOD = Config(estimator="rloo", steps=500)
BAD = Config(estimator="rodeo", steps=500)
NUMBERS = {
    "beyond float32": 1e308,
    "below": -1e308,
    "300 digits": 10**300,
    "whole": 2**62,
    "nan": math.nan,
    "infinite": math.inf,
    "true": True,
    "text": "7",
    "list": [1.0],
    "deep": json.loads("[" * 500 + "]" * 500),
    "largest": 3.4e38,
    "lowest": -3.4e38,
    "smallest": 1e-45,
    "zero": 0,
    "null": None,
}
FIELDS = ("objective", "grad_variance", "seconds", "ms_per_step", "train_elbo", "step", "seed", "x")
NAMES = (
    "nu\0l",
    "two\nlines\r\n\r\n# Heading",
    "\x1b[31mred\x07",
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a|b\\|c\\",
    "![x](javascript:alert(1))",
    "](x) ) (\"'",
    "`code` ``",
    "*_~~$x$~~_*",
    "<!-- results:end -->",
    "&lt;b&gt; &#60;",
    "- item\n1. item\n```\n",
    "x" * 1500,
    "y" * 10_000,
    "caf\udce9 \ud800",
    "\u202egnp.live",
    "{title} %s {0}",
    "..",
    " ",
    "名前 été",
)


@pytest.fixture
def no_pictures(monkeypatch):
    """Writes empty files instead of pictures, which take a second each."""
    monkeypatch.setattr("steingrad_lab.report.plot", lambda curves, metrics, path: path.touch())


def report(path):
    """Writes a report beside a folder of runs. Returns its folder and the warnings."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        write_report(path, path.parent / "out")
    return path.parent / "out", [str(one.message) for one in said]


@pytest.fixture
def stored(tmp_path, no_pictures):
    """The lines of `results.jsonl` of a good run and of one to be damaged, and another file."""
    for name, config in (("good", GOOD), ("bad", BAD)):
        write_run(tmp_path / "runs" / name, config, lines=4)
    out, _ = report(tmp_path / "runs")
    good, bad = (json.loads(line) for line in (out / "results.jsonl").read_text().splitlines())
    (tmp_path / "changed").mkdir()
    return good, bad, tmp_path / "changed" / "results.jsonl"


def changed(record, value):
    """Yields copies of a record in which one value, at any depth, is replaced."""
    for name, inner in record.items():
        yield {**record, name: value}
        if name == "config":  # every setting has its own tests
            inner = {key: inner[key] for key in ("samples", "learning_rate", "dataset", "hidden")}
        if isinstance(inner, dict):
            yield from ({**record, name: {**record[name], key: value}} for key in (*inner, "new"))
    for at, field in itertools.product((0, -1), FIELDS if record["metrics"] else ()):
        lines = [dict(line) for line in record["metrics"]]
        lines[at][field] = value
        yield {**record, "metrics": lines}


def with_seed(record, seed):
    """Gives a record another seed if it can have one, so that it is no copy of another record."""
    text = json.dumps(record)
    return json.loads(
        text.replace('"seeds": [1]', f'"seeds": [{seed}]').replace('"seed": 1,', f'"seed": {seed},')
    )


class TestValues:
    def test_anywhere_in_results(self, stored):
        """Each value in each place: some are accepted, the others left out with a note."""
        good, bad, path = stored
        lines, seeds = [good], itertools.count(10)
        for value in NUMBERS.values():
            lines += [with_seed(one, next(seeds)) for one in changed(bad, value)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        out, said = report(path.parent)
        assert all(re.search(r"results.jsonl, line \d+, is left out: .", one) for one in said)
        assert len(said) > len(lines) / 2
        assert "RLOO" in (out / "report.md").read_text()
        assert "NaN" not in (out / "index.html").read_text()

    @pytest.mark.parametrize("name", ["300 digits", "largest", "null"])
    def test_drawn(self, stored, name, monkeypatch):
        """Figures can be drawn with every value that is accepted."""
        monkeypatch.undo()
        good, bad, path = stored
        for line in bad["metrics"][:2]:
            line.update(dict.fromkeys(("objective", "grad_variance", "seconds"), NUMBERS[name]))
        path.write_text(json.dumps(good) + "\n" + json.dumps(bad) + "\n")
        out, said = report(path.parent)
        assert (out / "figures" / "own-digits-bernoulli.png").stat().st_size > 0
        assert len(said) == (name == "300 digits")

    def test_in_run_folders(self, tmp_path, no_pictures):
        """Bad lines of metrics are left out, and a run with a bad record as a whole."""
        write_run(tmp_path / "runs" / "good", GOOD, lines=4)
        bad = write_run(tmp_path / "runs" / "bad", BAD, lines=4)
        line = json.loads((bad.path / "metrics.jsonl").read_bytes().splitlines()[1])
        fields = ("objective", "ms_per_step", "step", "seed", "final", "run", "train_elbo")
        with (bad.path / "metrics.jsonl").open("a") as file:
            for field, value in itertools.product(fields, NUMBERS.values()):
                file.write(json.dumps({**line, field: value}) + "\n")
        numbers = itertools.count()
        for name in ("300 digits", "nan", "true", "text", "deep", "null"):
            for record in changed({**bad.record, "metrics": []}, NUMBERS[name]):
                folder = tmp_path / "runs" / f"damaged-{next(numbers)}"
                folder.mkdir()
                (folder / "config.json").write_text(json.dumps(record))
        out, said = report(tmp_path / "runs")
        assert any("metrics.jsonl is damaged. Ignored: line" in one for one in said)
        text = (out / "report.md").read_text()
        assert "RLOO" in text
        assert "RODEO" in text

    def test_the_note_names_the_run_and_the_value(self, stored):
        good, bad, path = stored
        bad["metrics"][0]["objective"] = 10**299
        path.write_text(json.dumps(good) + "\n" + json.dumps(bad) + "\n")
        (said,) = report(path.parent)[1]
        assert re.search(r"results.jsonl, line 2, is left out: 'objective' is 10+\.\.\.0+$", said)


class Tags(html.parser.HTMLParser):
    """Collects the tags with their attributes, and the text outside of scripts."""

    def __init__(self):
        super().__init__()
        self.tags, self.text = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, *sorted(name for name, _ in attrs)))

    def handle_data(self, data):
        self.text.append(data)


def page(text):
    tags = Tags()
    tags.feed(text)
    tags.close()
    return tags


def tokens(text):
    """The tokens of a Markdown text, at all depths."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    found = parser.parse(text)
    inner = [token.children for token in found if token.children]
    return [*found, *itertools.chain.from_iterable(inner)]


def with_names(path, names):
    """Writes two runs for each name, which everything that can have a name has.

    Returns the number of runs whose names cannot be those of files.
    """
    numbers = itertools.count()
    for name, estimator in itertools.product(names, ("rloo", "rodeo")):
        run = write_run(path / str(next(numbers)), Config(estimator=estimator, steps=500), lines=4)
        environment = {**run.record["environment"], "device": name, "commit": name}
        record = {
            **run.record,
            "config": {**run.record["config"], "dataset": f"/{name}/{name}.npz"},
            "data_files": {name: name},
            "published": {name: False},
            "environment": {**environment, "versions": {name: name}},
            "status": "finished" if estimator == "rloo" else "running",
        }
        (run.path / "config.json").write_text(json.dumps(record))
    return 2 * sum("\0" in name or len(name) > 4096 for name in names)


class TestNames:
    @pytest.fixture(autouse=True)
    def _quick(self, no_pictures):
        pass

    def test_in_both_files(self, tmp_path):
        """The files have the same tags as those of harmless names, and show the names as text."""
        with_names(tmp_path / "plain" / "runs", ["flowers"])
        bad = with_names(tmp_path / "nasty" / "runs", NAMES)
        plain, _ = report(tmp_path / "plain" / "runs")
        out, said = report(tmp_path / "nasty" / "runs")
        assert sum(" is left out: " in one for one in said) == bad == 4
        assert all(visible(one) == one for one in said)
        shown = [visible(name) for name in NAMES if "\0" not in name and len(name) < 4096]

        text, usual = ((at / "index.html").read_text("utf-8") for at in (out, plain))
        found = page(text)
        assert set(found.tags) == set(page(usual).tags)
        for name in shown:
            assert sum(name in one for one in found.text) >= 4
        names = [re.findall(pattern, text) for pattern in ('id="([^"]*)"', 'data-figure="([^"]*)"')]
        assert len(names[1]) == len(shown)
        assert all(len(each) == len(set(each)) for each in names)
        assert all(re.fullmatch(r"[\w.-]+", name) for name in [*names[0], *names[1]])

        parsed = tokens((out / "report.md").read_text("utf-8"))
        usual = tokens((plain / "report.md").read_text("utf-8"))
        assert {token.type for token in parsed} == {token.type for token in usual}
        tags = {token.content for token in parsed if token.type == "html_inline"}
        assert tags <= {"<br>", "<sub>", "</sub>"}
        pictures = [unquote(str(t.attrs["src"])) for t in parsed if t.type == "image"]
        assert len(set(pictures)) == len(shown)
        assert all((out / picture).exists() for picture in pictures)
        cells = ["".join(part.content for part in t.children or ()) for t in parsed]
        for name in shown:
            assert sum(name in cell for cell in cells) >= 4

    def test_of_folders(self, tmp_path):
        """Each run has a row of its own, and the links of a README lead to the files."""
        readme = tmp_path / "README.md"
        readme.write_text(f"{BEGIN}\n{END}\nAfter.\n")
        names = [re.sub("[/\0\ud800]", "", name)[:60] for name in NAMES]
        names = list(dict.fromkeys(name for name in names if name not in ("..", " ")))
        write_run(tmp_path / "runs" / "run", GOOD, lines=4)
        for seed, name in enumerate(names):
            config = dataclasses.replace(BAD, seeds=(seed,))
            write_run(tmp_path / "runs" / "of" / name, config, lines=4, status="running")
        out = tmp_path / "".join(names)[-60:] / "<!-- results:end --> `)("
        for _ in range(2):
            write_report(tmp_path / "runs", out, readme)
        text = readme.read_text("utf-8")
        assert text.count(END) == 1
        assert text.endswith(f"{END}\nAfter.\n")
        inside = tokens(text.partition(BEGIN)[2].partition(END)[0])
        links = [t.attrs.get("href") or t.attrs["src"] for t in inside
                 if t.type in ("link_open", "image")]  # fmt: skip
        assert len(links) == 2
        assert all(
            (tmp_path / unquote(str(link), errors="surrogateescape")).exists() for link in links
        )
        parsed = tokens((out / "report.md").read_text("utf-8"))
        cells = ["".join(part.content for part in t.children or ()) for t in parsed]
        for name in names:
            assert visible(f"of/{name}") in cells

    def test_results_keep_names(self, tmp_path):
        """Names are in `results.jsonl` as they were, and the next report reads them."""
        with_names(tmp_path / "runs", NAMES[2:4])
        out, _ = report(tmp_path / "runs")
        again = collect(out).runs
        assert len(again) == 4
        assert {name for run in again for name in run.data_files} == set(NAMES[2:4])
        assert to_markdown(build(collect(out))) == (out / "report.md").read_text("utf-8")
