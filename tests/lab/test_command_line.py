"""The commands, with arguments as a user types them."""

import io
import json
import math
import re
import shlex
import signal
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

import steingrad
import steingrad_lab.cli
from marks import slow
from steingrad_lab import data
from steingrad_lab.cli import main
from steingrad_lab.paper.settings import configure
from steingrad_lab.training import Bounds, Config, Run

pytestmark = pytest.mark.usefixtures("standard_promotion")


@pytest.fixture
def asked(monkeypatch):
    """Returns a function that gives the configuration and folder of a `train` command."""

    def ask(*arguments):
        made = []
        monkeypatch.setattr(
            steingrad_lab.cli, "train", lambda config, out, **_: made.append((config, out)) or Run
        )
        monkeypatch.setattr(Run, "path", "", raising=False)
        main(["train", *map(str, arguments)])
        return made[0]

    return ask


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "ascii"])
def test_letters_that_a_terminal_has_not(encoding, monkeypatch):
    """They become question marks, but bytes of a path that are not text are kept."""
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    monkeypatch.setattr("sys.stdout", out)
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help"])
    assert stop.value.code == 0
    print("folder-\udcff, α", file=out)
    assert out.buffer.getvalue().endswith(b"folder-\xff, ?\n")


class TestTrain:
    @pytest.mark.parametrize("flag", ["--layer-sizes", "--layer_sizes"])
    def test_hyphen_or_underscore(self, asked, flag):
        assert asked(flag, 200, 200)[0] == configure(layers=2) == asked("--layers", 2)[0]
        assert asked(flag, 200, 200, "--hidden", 7)[0].hidden == (7,)

    def test_categories(self, asked):
        flags = ("--model", "categorical", "--codes", 12, "--categories", 16)
        config, folder = asked(*flags, "--preset", "reinmax", "--estimator", "reinmax")
        assert (config.layer_sizes, config.categories, config.samples) == ((12,), 16, 1)
        assert folder.name.startswith("digits-grey-16x12-reinmax-k1-seed")
        config, _ = asked(*flags, "--preset", "reinmax", "--estimator", "bronco", "--flips", 2)
        assert (config.samples, config.kl) == (3, "analytic")

    def test_estimators_of_bits_with_categories(self, capsys):
        with pytest.raises(SystemExit):
            main(["train", "--model", "categorical", "--estimator", "disarm"])
        assert "DisARM needs independent bits" in capsys.readouterr().err

    def test_defaults(self, asked):
        assert asked()[0] == Config()
        assert asked("--operator", "gibbs", "--loo", "--steps", 10_000)[0] == Config()
        assert asked("--no-global")[0] == Config(global_=False)
        assert asked("--hidden")[0] == Config(hidden=())

    def test_samples_where_a_sample_has_several_evaluations(self, asked):
        """One sample, unless the evaluations are given."""
        assert asked("--estimator", "bronco", "--flips", 2)[0] == Config(
            estimator="bronco", flips=2, samples=3
        )
        assert asked("--estimator", "relax")[0] == Config(estimator="relax", samples=3)
        assert asked("--estimator", "bronco", "--flips", 1, "--samples", 4)[0].samples == 4

    def test_preset(self, asked):
        """A given setting overrides the preset, even if its value is the default."""
        config, _ = asked("--preset=paper", "--dataset=fashion_mnist", "--steps=10000")
        expected = configure(preset="paper", dataset="fashion_mnist", steps=10_000)
        assert config == expected
        assert (config.steps, config.learning_rate) == (10_000, 3e-4)

    def test_data_of_one_s_own(self, asked, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        config, folder = asked("--data", "flowers.npz", "--estimator", "rloo")
        assert config.dataset == str(tmp_path / "flowers.npz")
        assert str(folder) == "runs/flowers-bernoulli-rloo-k2-seed1"

    def test_folder(self, asked):
        names = {
            str(asked(*arguments)[1])
            for arguments in ([], ["--no-local"], ["--learning-rate", 0.1], ["--operator", "mpf"])
        }
        assert len(names) == 4
        assert "runs/digits-bernoulli-rodeo-k2-seed1" in names

    def test_help_shows_the_library_s_defaults(self, capsys):
        with pytest.raises(SystemExit):
            main(["train", "--help"])
        said = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert (
            "Stein operator (paper: Gibbs; ablation: Barker, MPF, Difference). (default: gibbs)"
            in said
        )
        assert "None" not in said


def test_version(capsys):
    main(["--version"])
    assert capsys.readouterr().out == f"steingrad {steingrad.__version__}\n"


@pytest.mark.parametrize("missing", ["tyro", "rich"])
def test_without_the_extra(missing):
    code = (
        f"import sys; sys.modules['{missing}'] = None;"
        "from steingrad_lab.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        f"The command steingrad needs the package {missing}, which is not installed: "
        "run pip install 'steingrad[experiments]'."
    )


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
class TestInterrupted:
    """After Ctrl-C a process ends with exit code 130 and without a traceback."""

    def end(self, code, when):
        # A process that a shell starts in the background would ignore Ctrl-C.
        usual = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        process = subprocess.Popen(
            [sys.executable, "-c", usual + code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == f"{when}\n"
        process.send_signal(signal.SIGINT)
        return process.wait(60), process.communicate()[1]

    def test_during_imports(self, tmp_path, monkeypatch):
        """This also works if the module being imported swallows all exceptions."""
        (tmp_path / "steingrad.py").write_text(
            "import time\n"
            "print('importing', flush=True)\n"
            "try:\n    time.sleep(60)\nexcept BaseException:\n    raise ImportError('cut off')\n"
        )
        code = (
            "import sys, steingrad_lab.__main__ as c;"
            f"sys.path.insert(0, {str(tmp_path)!r}); c.main()"
        )
        assert self.end(code, "importing") == (130, "stopped.\n")

    @pytest.mark.parametrize("collecting", [False, True])
    def test_the_interpreter_is_not_taken_apart(self, collecting):
        """Exit handlers do not run, because an XLA thread may still be active.

        Ctrl-C is not lost while the garbage collector calls back into JAX.
        """
        begin = "print('working', flush=True)"
        if collecting:
            begin = "gc.callbacks.append(_xla_gc_callback); gc.collect()"
        code = (
            "import atexit, gc, os, sys, time, types, steingrad_lab.__main__ as c\n"
            "def _xla_gc_callback(*_):\n"
            "    print('working', flush=True)\n"
            "    time.sleep(0.5)\n"
            "def command():\n"
            "    try:\n"
            f"        {begin}\n"
            "        time.sleep(60)\n"
            "    except KeyboardInterrupt:\n        sys.exit(130)\n"
            "package, cli = types.ModuleType('steingrad'), types.ModuleType('steingrad_lab.cli')\n"
            "cli.main = command\n"
            "sys.modules.update({'steingrad': package, 'steingrad_lab.cli': cli})\n"
            "atexit.register(os.abort)\n"
            "c.main()\n"
        )
        assert self.end(code, "working") == (130, "")


@pytest.mark.skipif(sys.platform == "win32", reason="shells")
@pytest.mark.parametrize(
    ("arguments", "closed", "code", "says"),
    [
        (["train", "--out", "run"], "<&- >&- 2>&-", 0, ""),
        *slow(
            (["train", "--out", "run"], ">&-", 0, "evaluating seed 1"),
            (["train", "--out", "run"], "2>&-", 0, "run"),
            (["train", "--out", "run"], "| true", 1, "error: The output cannot be written"),
        ),
        (["train", "--help"], ">&-", 0, ""),
        (["train", "--steps", "0"], "2>&-", 1, ""),
        (["data", "list"], ">&-", 1, "error: Standard output is closed, so the result cannot be"),
        (["data", "list"], "2>&-", 0, "digits"),
        (["evaluate", "nowhere"], ">&-", 1, "error: Standard output is closed"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_closed_streams(arguments, closed, code, says, tmp_path, monkeypatch):
    """A run goes on without its output. A command that only prints is refused."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    if "run" in arguments:
        arguments = [*arguments, "--estimator", "rloo", "--layer-sizes", "5", "--hidden", "5",
                     "--bound-samples", "2", "--steps", "4"]  # fmt: skip
    command = shlex.join([sys.executable, "-m", "steingrad_lab", *arguments])
    done = subprocess.run(
        ["bash", "-c", f"{command} {closed}; exit ${{PIPESTATUS[0]}}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = done.stdout + done.stderr
    assert (done.returncode, "Traceback" in said) == (code, False), said
    assert says in said
    if "run" in arguments:
        run = Run(tmp_path / "run")
        assert run.status == "finished"
        assert [line["step"] for line in run.metrics()] == [4, 4]


class TestCommandLine:
    def run(self, *arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in arguments])
        return stop.value.code

    def test_evaluate_and_sample(self, trained, tmp_path, capsys):
        main(["evaluate", str(trained.path), "--samples", "7", "--batch-size", "64"])
        out = json.loads(capsys.readouterr().out)
        assert out["samples"] == 7
        assert out["bound"] > out["elbo"]
        picture = tmp_path / "new" / "folder" / "grid.png"
        main(["sample", str(trained.path), "--out", str(picture)])
        assert picture.read_bytes().startswith(b"\x89PNG")

    def test_train_with_preset(self, tmp_path, capsys):
        main(["train", "--preset", "paper", "--steps", "10", "--seed", "4", "--layer-sizes", "5",
              "--hidden", "6", "--out", str(tmp_path / "run"), "--likelihood", "gaussian",
              "--bound-samples", "2", "--surrogate-hidden", "4", "--tensorboard"])  # fmt: skip
        run = Run(tmp_path / "run")
        assert run.config.learning_rate == 1e-4
        assert run.config.seeds == (4,)
        assert run.config.layer_sizes == (5,)
        assert list((tmp_path / "run" / "tensorboard" / "seed-4").iterdir())

    @pytest.mark.slow
    def test_layers(self, tmp_path):
        main(["train", "--layers", "2", "--steps", "2", "--out", str(tmp_path / "run"),
              "--bound-samples", "2", "--surrogate-hidden", "4"])  # fmt: skip
        assert Run(tmp_path / "run").config.layer_sizes == (200, 200)
        assert Run(tmp_path / "run").config.hidden == ()

    @pytest.mark.parametrize(
        ("size", "says"),
        [
            (["--columns", 10**8], "4 rows and 100000000 columns has 400000600 images"),
            (["--rows", 10**8], "100000000 rows and 10 columns has 1000000040 images"),
            (["--rows", 500, "--columns", 1], "403200 pixels from top to bottom"),
        ],
    )
    def test_pictures_that_are_too_large(self, trained, size, says, tmp_path, capsys):
        assert self.run("sample", trained.path, "--out", tmp_path / "grid.png", *size) == 1
        assert says in capsys.readouterr().err
        assert not (tmp_path / "grid.png").exists()

    def test_batches_are_no_larger_than_the_split(self, trained, monkeypatch, capsys):
        sizes = []
        evaluated = lambda *given: sizes.append(given[-1]) or Bounds(0.0, 0.0)
        monkeypatch.setattr(steingrad_lab.cli, "evaluate", evaluated)
        for size in (7, 10**9):
            main(["evaluate", str(trained.path), "--batch-size", str(size)])
        assert sizes == [7, 300]

    @pytest.mark.parametrize(
        ("error", "says"),
        [
            (MemoryError(), "There is not enough memory (Python found no more). Choose smaller"),
            (
                jax.errors.JaxRuntimeError("INTERNAL: Out of memory allocating 8 bytes.\nmore"),
                "There is not enough memory (INTERNAL: Out of memory allocating 8 bytes.). Choose",
            ),
            (
                OverflowError("An overflow in an argument to a jitted computation"),
                "There is not enough memory (an array would have more numbers than JAX can count)",
            ),
        ],
    )
    def test_memory_that_runs_out(self, error, says, monkeypatch, capsys):
        def fails(*_, **__):
            raise error

        monkeypatch.setattr(steingrad_lab.cli, "train", fails)
        assert self.run("train") == 1
        assert says in " ".join(capsys.readouterr().err.split())

    def test_other_errors_are_not_about_memory(self, monkeypatch):
        def fails(*_, **__):
            raise OverflowError("something else")

        monkeypatch.setattr(steingrad_lab.cli, "train", fails)
        with pytest.raises(OverflowError, match="something else"):
            main(["train"])

    @pytest.mark.parametrize("flag", ["--devices", "--layers"])
    def test_none_is_no_choice(self, flag, capsys):
        """An option that is left out is `None`, but nobody can write this."""
        for value in ("None", "foo"):
            assert self.run("train", flag, value) == 2
            said = capsys.readouterr()
            assert "None" not in (said.out + said.err).replace("'None'", "")

    def test_paths_have_no_markup(self, tmp_path, capsys):
        folder = tmp_path / "[red]x[/] :smile:"
        folder.mkdir(parents=True)
        main(["data", "list", "--data-dir", str(folder)])
        # A long path is folded inside the table.
        shown = re.sub(r"[│\s]", "", capsys.readouterr().out)
        assert "[red]x[/]:smile:" in shown

    def test_data_list(self, capsys):
        main(["data", "list"])
        out = capsys.readouterr().out
        assert all(name in out for name in data.NAMES)

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["train", "--estimator", "rloo", "--samples", 1], "num_samples of 2 or more"),
            (["train", "--estimator", "disarm", "--samples", 3], "even"),
            (["train", "--estimator", "relax", "--samples", 2], "multiple of 3"),
            (["train", "--steps", 0], "steps must be 1 or more"),
            (["train", "--learning-rate", 0], "learning_rate must be above 0"),
            (["train", "--seeds", 1, 1], "different numbers"),
            (["train", "--batch-size", 5000], "digits has only 1297 training images"),
            (["evaluate", "nowhere"], "no config.json"),
            (["sample", "nowhere"], "no config.json"),
            (["train", "--layers", 0], "layers must be 1 or more"),
            (["train", "--layers", 10**12], "layers must be at most 100, not 1000000000000."),
            (["train", "--adapt-every", 10**12], "adapt_every must be below 2^31, not 10000000000"),
            (["train", "--estimator", "bronco", "--flips", 10**12], "flips must be below 2^16"),
            (
                ["train", "--layer-sizes", 60000, 60000, "--hidden", 60000],
                "This run needs at least",
            ),
            (
                ["evaluate", "nowhere", "--samples", 10**12],
                "--samples must be below 2^31, not 1000",
            ),
            (["sample", "nowhere", "--out", "grid.jpg"], "--out names a PNG file"),
            (["reproduce", "timing", "--workers", 10**12], "workers must be at most 1000"),
            (["train", "--data", "[/b] :smile:.npz"], "/[/b] :smile:.npz does not exist"),
            (["train", "--coordinates", 300], "coordinates 300 is more than the codes"),
            (["train", "--damping", 0.1], "damping goes with operator mpf"),
            (["train", "--baseline", "learned"], "baseline goes with estimator reinforce"),
            (["train", "--seed", 5000000000], "between 0 and 2^31 - 1"),
            (["train", "--layers", 2, "--layer-sizes", 5, 5], "Both layers and layer_sizes"),
            (["train", "--layers", 2, "--layer_sizes", 5, 5], "Both layers and layer_sizes"),
            (["train", "--estimator", "rloo", "--operator", "mpf"], "goes with estimator rodeo"),
            (["train", "--estimator", "rloo", "--adapt-every", 2], "an estimator that learns"),
            (["train", "--estimator", "rloo", "--surrogate", "linear"], "with estimator rodeo"),
            (["train", "--estimator", "rloo", "--no-local"], "local goes with estimator rodeo"),
            (["train", "--estimator", "rloo", "--coordinates", 3], "goes with estimator rodeo"),
            (["train", "--surrogate", "linear", "--surrogate-hidden", 7], "goes with surrogate"),
            (["sample", "nowhere", "--seed", -1], "--seed must be between 0 and 2^31 - 1"),
            (["sample", "nowhere", "--seed", 2**70], "--seed must be between 0 and 2^31 - 1"),
            (["train", "--seed", 2**70], "between 0 and 2^31 - 1"),
            (["train", "--data-dir", "mien"], "mien, does not exist. Correct --data-dir"),
            (["data", "list", "--data-dir", "mien"], "mien, does not exist. Correct --data-dir"),
            (["train", "--checkpoint-every", -5], "checkpoint_every must be 0"),
            (["train", "--report-every", -5], "report_every must be 0"),
            (["train", "--data", "nix.npz"], "nix.npz does not exist"),
            (["train", "--data", "a.npz", "--dataset", "mnist"], "--dataset or --data, not both"),
            (["evaluate", "nowhere", "--batch-size", 0], "--batch-size must be 1 or more"),
            (["evaluate", __file__], "is not a run folder: it has no config.json. Name a folder"),
        ],
    )
    def test_errors(self, arguments, says, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert self.run(*arguments) == 1
        assert says in capsys.readouterr().err

    def test_evaluate_prints_json_whatever_the_numbers(self, trained, monkeypatch, capsys):
        monkeypatch.setattr(steingrad_lab.cli, "evaluate", lambda *_: Bounds(math.nan, -math.inf))
        main(["evaluate", str(trained.path)])
        found = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(word))
        assert (found["elbo"], found["bound"]) == (None, None)

    @pytest.mark.parametrize(
        ("left", "says"),
        [
            ([], "stopped. Nothing was written yet."),
            (["config.json"], "stopped. There is no checkpoint yet: --resume begins again."),
            (
                ["config.json", "checkpoint-0000000020.eqx"],
                "stopped. Checkpoints are kept: go on with --resume.",
            ),
        ],
    )
    def test_what_ctrl_c_leaves(self, left, says, tmp_path, monkeypatch, capsys):
        def interrupted(config, out, **_):
            for name in left:
                (out / name).write_text("")
            raise KeyboardInterrupt

        monkeypatch.setattr(steingrad_lab.cli, "train", interrupted)
        assert self.run("train", "--out", tmp_path) == 130
        assert capsys.readouterr().err.strip() == says

    @pytest.mark.filterwarnings("default")
    def test_a_run_to_resume_that_is_not_there(self, tmp_path, monkeypatch, capsys):
        trained = lambda _, out, **__: SimpleNamespace(path=out)
        monkeypatch.setattr(steingrad_lab.cli, "train", trained)
        main(["train", "--resume", "--out", str(tmp_path / "typo")])
        assert "There is no run in" in capsys.readouterr().err

    def test_tensorboard_that_is_not_there(self, tmp_path, monkeypatch, capsys):
        monkeypatch.setitem(sys.modules, "tensorboardX", None)
        assert self.run("train", "--tensorboard", "--out", tmp_path / "run") == 1
        assert "TensorBoard output needs the package tensorboardX" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()

    def test_unknown_dataset(self, capsys):
        assert self.run("train", "--dataset", "cifar") == 2
        assert "digits" in "".join(capsys.readouterr())
