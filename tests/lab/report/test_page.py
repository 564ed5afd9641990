"""The page of a report in a browser: tables, curves, tooltips, legend, and no errors."""

import re
import shutil
from dataclasses import replace

import pytest
from synthetic import entries, write_paper, write_run

from steingrad_lab.report import write_report
from steingrad_lab.training import Config

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver, and one is not installed"
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1000",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    with webdriver.Chrome(options=options, service=service) as driver:
        yield driver


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("report")
    write_paper(path / "runs", lines=30)
    for name in ("rodeo", "rloo"):
        write_run(path / "runs" / name, Config(estimator=name, steps=500), final=-20.0, lines=30)
    # Long enough to reach the step of a published variance.
    (long,) = entries("variance-curves", dataset="fashion_mnist", likelihood="bernoulli",
                      samples=2, estimator="disarm")  # fmt: skip
    write_run(path / "runs" / "long", replace(long.config, steps=200_000, seeds=(1,)), lines=30)
    write_report(path / "runs", path / "out")
    return (path / "out" / "index.html").as_uri()


@pytest.fixture
def opened(browser, page):
    """Opens the page. After the test the browser's log must be empty."""
    browser.get(page)
    yield browser
    assert browser.get_log("browser") == []


def chart(browser, name="variance-curves-mnist-bernoulli-k2"):
    found = browser.find_element(By.CSS_SELECTOR, f'[data-figure="{name}"]')
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", found)
    return found


def labels(figure):
    """Returns the labels of the curves in each panel."""
    return [
        [
            path.get_attribute("data-label")
            for path in panel.find_elements(By.CSS_SELECTOR, ".curve")
        ]
        for panel in figure.find_elements(By.CSS_SELECTOR, ".panel > svg")
    ]


def axis_texts(panel):
    return [text.text for text in panel.find_elements(By.CSS_SELECTOR, "text.quiet")]


class TestPage:
    def test_tables(self, opened):
        row = opened.find_element(By.XPATH, "//section[@id='train-elbo']//tr[th='RODEO']")
        assert "±" in row.text
        assert "−101.89 ± 0.17" in row.text
        assert opened.find_elements(By.CSS_SELECTOR, "#train-elbo strong")
        for name in ("test-bound", "hierarchical", "timing", "own-digits-bernoulli", "provenance"):
            assert opened.find_elements(By.CSS_SELECTOR, f"#{name} table"), name
        width = "return document.documentElement.scrollWidth - window.innerWidth"
        assert opened.execute_script(width) <= 0

    def test_curves(self, opened):
        charts = opened.find_elements(By.CSS_SELECTOR, ".chart")
        assert len(charts) == len(opened.find_elements(By.CSS_SELECTOR, "figure")) >= 10
        for figure in charts:
            paths = opened.execute_script(
                "return [...arguments[0].querySelectorAll('.panel > svg .curve')]"
                ".map((path) => path.getAttribute('d'))",
                figure,
            )
            assert len(paths) >= 4  # two panels
            assert all(path.count("L") >= 20 and "NaN" not in path for path in paths)
        dashes = {
            curve.get_attribute("stroke-dasharray")
            for curve in chart(opened).find_elements(By.CSS_SELECTOR, ".panel > svg .curve")
        }
        assert len(dashes) == len(entries("variance-curves", dataset="mnist", samples=2)) / 2 == 8

    def test_stars_are_the_papers(self, opened):
        figure = chart(opened, "variance-curves-fashion_mnist-bernoulli-k2")
        stars = lambda: [
            len(panel.find_elements(By.CSS_SELECTOR, ".star"))
            for panel in figure.find_elements(By.CSS_SELECTOR, ".panel > svg")
        ]
        assert stars() == [1, 0]
        star = figure.find_element(By.CSS_SELECTOR, ".star")
        assert "NaN" not in star.get_attribute("d")
        said = star.find_element(By.CSS_SELECTOR, "title").get_attribute("textContent")
        assert said == "DisARM, the paper's: 0.0105"
        figure.find_elements(By.CSS_SELECTOR, ".axis button")[1].click()
        assert stars() == [0, 0]

    def test_hover(self, opened):
        figure = chart(opened)
        panel = figure.find_element(By.CSS_SELECTOR, ".panel > svg")
        tip = figure.find_element(By.CSS_SELECTOR, ".tip")
        assert not tip.is_displayed()
        webdriver.ActionChains(opened).move_to_element(panel).perform()
        assert re.match(r"step [\d,]+\n", tip.text)
        assert all(name in tip.text for name in ("RLOO", "DisARM", "Double CV", "RODEO", "0.0"))
        webdriver.ActionChains(opened).move_to_element(
            opened.find_element(By.CSS_SELECTOR, "#variance-curves h2")
        ).perform()
        assert not tip.is_displayed()

    def test_values_by_keyboard(self, opened):
        figure = chart(opened)
        figure.find_element(By.CSS_SELECTOR, ".panel > svg").send_keys(Keys.ARROW_LEFT)
        assert figure.find_element(By.CSS_SELECTOR, ".tip b").text == "step 20,000"

    def test_legend(self, opened):
        figure = chart(opened)
        button = next(
            button
            for button in figure.find_elements(By.CSS_SELECTOR, ".legend button")
            if button.text == "RLOO"
        )
        rodeo = lambda: figure.find_element(By.CSS_SELECTOR, '[data-label="RODEO"]').get_attribute(
            "d"
        )
        before, drawn = labels(figure), rodeo()
        assert all("RLOO" in own for own in before)
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
        assert labels(figure) == [[label for label in own if label != "RLOO"] for own in before]
        others = [
            other
            for other in figure.find_elements(By.CSS_SELECTOR, ".legend button")
            if other.text not in ("RLOO", "RODEO")
        ]
        for other in others:
            other.click()
        assert rodeo() != drawn  # the axis follows the curves that are left
        for other in others:
            other.click()
        button.send_keys(Keys.SPACE)
        assert button.get_attribute("aria-pressed") == "true"
        assert labels(figure) == before
        assert rodeo() == drawn
        for other in figure.find_elements(By.CSS_SELECTOR, ".legend button"):
            other.click()
        assert labels(figure) == [[], []]

    def test_time(self, opened):
        figure = chart(opened)
        steps, time = figure.find_elements(By.CSS_SELECTOR, ".axis button")
        assert steps.get_attribute("aria-pressed") == "true"
        before = axis_texts(figure.find_element(By.CSS_SELECTOR, ".panel > svg"))
        time.click()
        assert steps.get_attribute("aria-pressed") == "false"
        panel = figure.find_element(By.CSS_SELECTOR, ".panel > svg")
        assert "seconds" in panel.text
        assert axis_texts(panel) != before
        webdriver.ActionChains(opened).move_to_element(panel).perform()
        assert figure.find_element(By.CSS_SELECTOR, ".tip b").text.endswith(" s")
