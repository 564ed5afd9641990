"""Progress bars in terminals of different widths."""

import io

import pytest
from rich.console import Console

from steingrad_lab.training import Config
from steingrad_lab.training.display import Display, SweepDisplay

LONG_NAME = "mnist-bernoulli-straight_through-k2-seed1"


def shown(progress, width):
    console = Console(width=width, file=io.StringIO())
    console.print(progress.make_tasks_table(progress.tasks))
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 100, 160])
def test_what_matters_is_not_cut(width):
    display = Display(Config(dataset="photos[old].npz", steps=1_000_000), 123_500)
    numbers = "ELBO -104.52  variance 0.0123  12.3 ms/step"
    display.progress.update(display.task, numbers=numbers)
    (line,) = shown(display.progress, width).splitlines()
    assert "123500/1000000" in line
    assert "left -:--:-- ELBO -104.52" in line
    assert (numbers in line) == (width == 160)
    assert "photos[old]" in line

    display = SweepDisplay(100, 2_000_000, quiet=True)
    display.start(LONG_NAME, 500, 1_000_000)
    display.run(LONG_NAME, 600, 12.3)
    display.overall(600, 126_000.0)
    everything, run = shown(display.progress, width).splitlines()
    assert "600/2000000 steps about 35.0 h left" in everything
    assert "600/1000000 steps 12.3 ms/step" in run
    assert (LONG_NAME in run) == (width > 80)
