"""The project's files agree with each other: workflows, templates, hooks and CONTRIBUTING."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

yaml = pytest.importorskip("yaml", reason="PyYAML comes with mkdocs, in the extra dev")

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONSTRAINTS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def read(path):
    return yaml.safe_load(path.read_text())


def jobs(name):
    return read(ROOT / ".github/workflows" / f"{name}.yml")["jobs"]


def steps(name):
    return [step for job in jobs(name).values() for step in job.get("steps", [])]


def made(text):
    """The targets in commands, such as `make PYTHON=python3.12 install`, or after a prompt."""
    return set(re.findall(r"(?:`|\$ )make (?:[A-Z]+=\S* )*([a-z-]+)", text))


def test_workflows():
    assert [path.stem for path in WORKFLOWS] == ["dependencies", "docs", "release", "tests"]
    for path in WORKFLOWS:
        workflow = read(path)
        assert {True, "name", "jobs", "permissions"} <= set(workflow)  # YAML reads `on` as True
        assert workflow["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_have_a_major_version(path):
    used = [step["uses"] for step in steps(path.stem) if "uses" in step]
    assert used
    for action in used:
        assert re.fullmatch(r"actions/[a-z-]+@v\d+|pypa/[a-z-]+@release/v\d+", action)


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("tests", {"lint", "test", "test-torch", "test-numpyro"}),
        ("dependencies", {"test-lowest", "test-newest"}),
        ("docs", {"docs"}),
    ],
)
def test_workflows_make(name, targets):
    assert set().union(*(made(f"$ {step.get('run')}") for step in steps(name))) == targets
    assert targets <= TARGETS


def test_python_versions():
    prefix = "Programming Language :: Python :: "
    named = [line.removeprefix(prefix) for line in PROJECT["classifiers"] if prefix in line]
    assert jobs("tests")["test"]["strategy"]["matrix"]["python-version"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"
    lowest, newest = (jobs("dependencies")[job]["steps"][1]["with"] for job in ("lowest", "newest"))
    assert lowest == {"python-version": named[0]}
    assert newest == {"python-version": named[-1]}


EXTRAS = PROJECT["optional-dependencies"]
NEEDED = [
    needed
    for lines in (PROJECT["dependencies"], *EXTRAS.values())
    for needed in map(Requirement, lines)
    if needed.name != PROJECT["name"]
]


def test_lowest_versions_are_the_bounds(tmp_path):
    """`make test-lowest` installs exactly the lower bounds of `pyproject.toml`."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    subprocess.run(["make", "--silent", "lowest.txt"], cwd=tmp_path, check=True)
    lowest = [Requirement(line) for line in (tmp_path / "lowest.txt").read_text().splitlines()]
    lowest = {pinned.name: str(pinned.specifier) for pinned in lowest}
    for needed in NEEDED:
        (bound,) = (part for part in needed.specifier if part.operator == ">=")
        assert needed.specifier.contains(bound.version), needed
        if not needed.extras:  # pip allows no extras in constraints
            assert lowest.pop(needed.name) == f"=={bound.version}"
    assert lowest == {}


@pytest.mark.parametrize("needed", NEEDED, ids=lambda needed: needed.name)
def test_tested_versions_are_allowed(needed):
    assert needed.specifier.contains(CONSTRAINTS[needed.name])


def test_jax_has_one_version():
    """jax and jaxlib have the same bounds, because a release of one needs that of the other."""
    jax, jaxlib = (next(n for n in NEEDED if n.name == name) for name in ("jax", "jaxlib"))
    assert jax.specifier == jaxlib.specifier


@pytest.mark.parametrize(
    ("tag", "accepted"),
    [
        (f"v{PROJECT['version']}", True),
        (PROJECT["version"], False),
        (f"v{PROJECT['version']}.1", False),
    ],
)
def test_the_tag_is_the_version(tag, accepted):
    (script,) = (step["run"] for step in steps("release") if "tag" in step.get("name", ""))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=ROOT,
        env={**os.environ, "PATH": path, "GITHUB_REF_NAME": tag},
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) == accepted, done.stderr
    assert ("::error::" in done.stdout) != accepted


def test_publishing_needs_no_password():
    publish = jobs("release")["publish"]
    assert publish["needs"] == ["tests", "build"]
    assert publish["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text()


def test_issue_forms():
    assert {path.stem for path in FORMS} == {"bug", "config", "feature", "wrong-number"}
    for path in FORMS:
        if path.stem != "config":
            form = read(path)
            assert {"name", "description", "body"} <= set(form)
            ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
            assert len(ids) == len(set(ids)) > 0
    assert "compare(f, dist" in (ROOT / ".github/ISSUE_TEMPLATE/wrong-number.yml").read_text()
    assert made((ROOT / ".github/PULL_REQUEST_TEMPLATE.md").read_text()) <= TARGETS


def test_pre_commit_has_the_same_ruff():
    revisions = {
        repo["repo"]: repo["rev"] for repo in read(ROOT / ".pre-commit-config.yaml")["repos"]
    }
    assert revisions["https://github.com/astral-sh/ruff-pre-commit"] == f"v{CONSTRAINTS['ruff']}"


def test_contributing_names_commands_that_exist():
    assert made(CONTRIBUTING) >= {"install", "test", "test-all", "test-torch", "lint", "format"}
    assert made(CONTRIBUTING) >= {"bench", "docs"}
    assert made(CONTRIBUTING) <= TARGETS


MADE_UP = {"bars.mat", ".mat", "how-to-measure.md", "llms.txt", "llms-full.txt", "release.yml"}


def paths(text):
    """Files and folders: names in code with a slash or an ending, and the targets of links."""
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    code = re.findall(r"`([\w./-]*(?:/[\w.-]+|\.(?:py|md|toml|txt|yml|yaml|cff|mat)))`", text)
    return {*code, *re.findall(r"\]\(([^)#]+)\)", text)} - MADE_UP


def test_contributing_names_files_that_exist():
    assert len(paths(CONTRIBUTING)) > 30
    assert {path for path in paths(CONTRIBUTING) if not (ROOT / path).exists()} == set()
    assert paths("`src/nowhere.py`, [a page](docs/nothing.md)") == {
        "src/nowhere.py",
        "docs/nothing.md",
    }


def test_every_page_is_in_llms_txt(tmp_path):
    """The documentation is built without a warning, and `llms.txt` links to each page."""
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "llms.txt").read_text()
    full = (tmp_path / "llms-full.txt").read_text()
    assert re.match(r"# steingrad\n\n> .+\n\n## ", text)
    entries = dict(re.findall(r"^- \[.+?\]\((\S+?)\): (\S.*)$", text, re.M))
    pages = re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert list(entries) == [page.replace("index.md", "./").replace(".md", "/") for page in pages]
    for link, sentence in entries.items():
        assert (tmp_path / link / "index.html").is_file()
        assert sentence.endswith((".", "?", "!"))
        assert not sentence[0].islower()
    place = 0
    for page in pages:  # in this order
        source = ROOT / ("CONTRIBUTING.md" if page == "contributing.md" else f"docs/{page}")
        title = source.read_text().splitlines()[0]
        place = f"\n{full}".index(f"\n{title}\n", place) + 1
    assert "\n::: " not in full
    assert "Independent bits" in full  # the docstring of Bernoulli
    assert 'href="../architecture/"' in (tmp_path / "contributing/index.html").read_text()
