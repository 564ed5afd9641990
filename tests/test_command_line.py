"""The commands, as a user types them."""

import json

import pytest

from steingrad import data
from steingrad.cli import main
from steingrad.experiments import Config, Run, Schedule, train

SMALL = Config(
    steps=20, layer_sizes=(6,), hidden=(8,), surrogate_hidden=5, batch_size=20, bound_samples=5
)


pytestmark = pytest.mark.usefixtures("standard_promotion")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, standard_promotion):
    return train(SMALL, tmp_path_factory.mktemp("runs") / "small", schedule=Schedule(), quiet=True)


class TestCommandLine:
    def run(self, *arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in arguments])
        return stop.value.code

    def test_evaluate_and_sample(self, trained, tmp_path, capsys):
        main(["evaluate", str(trained.path), "--samples", "7"])
        out = json.loads(capsys.readouterr().out)
        assert out["samples"] == 7
        assert out["bound"] > out["elbo"]
        main(["sample", str(trained.path), "--out", str(tmp_path / "grid.png")])
        assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")

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
            (["train", "--steps", 0], "--steps must be 1 or more"),
            (["train", "--learning-rate", 0], "--learning-rate must be above 0"),
            (["train", "--seeds", 1, 1], "different numbers"),
            (["train", "--batch-size", 5000], "more than the 1297 training images"),
            (["evaluate", "nowhere"], "no config.json"),
            (["sample", "nowhere"], "no config.json"),
            (["train", "--layers", 0], "--layers must be 1 or more"),
            (["train", "--coordinates", 300], "--coordinates 300 is more than the bits"),
            (["train", "--damping", 0.1], "--damping goes with an --operator other than gibbs"),
            (["train", "--baseline", "learned"], "--baseline goes with --estimator reinforce"),
            (["train", "--seed", 5000000000], "between 0 and 2^31 - 1"),
            (["train", "--layers", 2, "--layer-sizes", 5, 5], "not both"),
        ],
    )
    def test_errors(self, arguments, says, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert self.run(*arguments) == 1
        assert says in capsys.readouterr().err

    def test_unknown_dataset(self, capsys):
        assert self.run("train", "--dataset", "cifar") == 2
        assert "digits" in "".join(capsys.readouterr())
