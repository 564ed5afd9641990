"""The results of `compare` agree with exact moments, and its verdicts on bias are right."""

import csv
import io
import json
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from marks import slow
from problems import moments, normal, normalised_distributions, objective, random_cv
from steingrad.diagnostics import best_num_samples, check_objective, compare, measure
from steingrad.diagnostics.compare import _named
from steingrad.estimators import Estimator, Gradients

KEY = jax.random.key(0)


@pytest.fixture(autouse=True, scope="module")
def _quick():
    """Less timing and less compiler optimisation, which take most of the time of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "TIMED_CALLS", 2)
        patch.setattr(measure, "TIMED_SECONDS", 0.0)
        jax.config.update("jax_disable_most_optimizations", True)
        yield
        jax.config.update("jax_disable_most_optimizations", False)


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def sampled(dist):
    """A FromLogProb with a sampler, by enumeration."""
    states, log_probs = dist.enumerate(), jnp.log(dist.probabilities())
    return sg.FromLogProb(
        dist.log_prob_fn,
        dist.parameters,
        num_coordinates=dist.num_coordinates,
        values=dist.values,
        normalized=True,
        sampler=lambda key, _: states[jax.random.categorical(key, log_probs)],
    )


class Known(Estimator):
    """An estimator that returns a given mean plus normal noise."""

    mean: jax.Array
    noise: float = eqx.field(static=True, default=0.0)
    num_samples: int = eqx.field(static=True, default=1)

    def gradient(self, cv, dist, at):
        raise NotImplementedError

    def value_and_grad(self, f, dist, cv=None, *, key, args=(), context=None, relaxation=None):
        draw = self.mean + self.noise * jax.random.normal(key, self.mean.shape)
        return jnp.ones(()), Gradients(draw, None, args)


class Biased(sg.RLOO):
    """RLOO with a baseline that includes the sample itself."""

    def gradient(self, cv, dist, at):
        grad = super().gradient(cv, dist, at)
        return jax.tree.map(lambda g: g * (1 - 1 / self.num_samples), grad)


class Trained(sg.Rodeo):
    """RODEO with control variates far from their initial values."""

    def init(self, key, dist=None):
        return random_cv(sg.Rodeo(self.num_samples, self.operator, self.surrogate))


@pytest.mark.parametrize(
    ("name", "estimator"),
    [
        ("bernoulli", sg.Reinforce(1, baseline=1.3)),
        *slow(
            ("bernoulli", Trained(2, surrogate=sg.LinearSurrogate())),
            ("categorical3", sg.RLOO(3)),
            ("autoregressive", sg.RLOO(2)),
        ),
    ],
    ids=repr,
)
def test_mean_and_variance_are_the_exact_ones(name, estimator):
    dist = normalised_distributions()[name]
    f = objective(dist)
    mean, variance = map(flat, moments(estimator, estimator.init(KEY), dist, f))
    if isinstance(dist, sg.FromLogProb):
        dist = sampled(dist)
    draws = 20_000
    result = compare(f, dist, [estimator], key=KEY, draws=draws, adapt_steps=0)
    assert result.reference == "the exact gradient"
    np.testing.assert_allclose(result.gradient, mean, atol=1e-5)
    row = result.rows[0]
    assert row.mean.shape == row.z.shape == mean.shape
    # The variance of a variance involves fourth powers, which are large if a value is rare.
    np.testing.assert_allclose(row.variances, variance, rtol=0.1, atol=1e-3 * variance.max())
    np.testing.assert_allclose(row.variance, variance.sum(), rtol=0.05)
    tested = row.z != 0
    assert np.mean(tested) >= 0.5
    z = (row.mean - mean)[tested] / np.sqrt(variance[tested] / draws)
    np.testing.assert_allclose(row.z[tested], z, rtol=0.05, atol=0.01)
    assert row.largest_z == np.max(np.abs(row.z))
    assert not row.biased


@pytest.mark.slow
def test_adaptation():
    dist = sg.Bernoulli(normal(1, 4))
    f = lambda x: 5.0 + jnp.sum((x - 0.3) ** 2, axis=-1) + x[..., 0] * x[..., 1]
    estimators = {"rodeo": sg.Rodeo(2)}
    estimators |= {b: sg.Reinforce(1, b) for b in ("moving_average", "learned")}
    result = compare(f, dist, estimators, key=KEY, draws=2000, learning_rate=0.01)
    assert not any(row.biased for row in result.rows)
    variance = lambda estimator: flat(moments(estimator, None, dist, f)[1]).sum()
    assert result["rodeo"].variance < 0.5 * variance(sg.RLOO(2))  # the initial value
    mean = float(sg.exact_expectation(f, dist))
    np.testing.assert_allclose(
        result["moving_average"].variance, variance(sg.Reinforce(1, mean)), rtol=0.15
    )
    # Adam is slower than an average, but has come most of the way from zero by then.
    assert result["learned"].variance < 0.1 * variance(sg.Reinforce(1))


def test_chunks_make_no_difference():
    dist, f = sg.Categorical(normal(2, (2, 3))), lambda x: jnp.sum(x[..., 0], axis=-1) ** 2
    estimate = eqx.Partial(sg.RLOO(2).value_and_grad, f, dist)
    g = [estimate(key=jax.random.fold_in(KEY, i))[1].parameters.ravel() for i in range(23)]
    for chunk in (1, 7, 22, 23):
        result = measure.moments(estimate, KEY, 23, chunk)
        np.testing.assert_allclose(result.mean, np.mean(g, axis=0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(result.variance, np.var(g, axis=0, ddof=1), rtol=1e-4)


def test_float32_keeps_a_small_variance_beside_a_large_mean():
    estimator = Known(jnp.array([1e4, -1e4, 0.0]), noise=0.1)
    estimate = eqx.Partial(estimator.value_and_grad, None, None)
    result = measure.moments(estimate, KEY, 50_000, 1000)
    np.testing.assert_allclose(result.variance, 0.01, rtol=0.05)


@pytest.mark.parametrize("estimator", [sg.RLOO(2), sg.Rodeo(2)], ids=repr)
def test_a_hundred_thousand_draws_of_200_bits_fit_in_memory(estimator):
    weights = normal(3, 200)
    f = lambda x: jnp.sin(x @ weights) + jnp.sum((x - 0.45) ** 2, axis=-1)
    dist = sg.Bernoulli(normal(4, 200))
    estimate = eqx.Partial(estimator.value_and_grad, f, dist, estimator.init(KEY))
    chunk = measure.CHUNK_BYTES // measure.cost(estimate, KEY)[1]
    assert 10 < chunk < 50_000
    compiled = measure.moments.lower(estimate, KEY, 100_000, chunk).compile()
    memory = compiled.compiled.memory_analysis()
    assert memory.temp_size_in_bytes + memory.output_size_in_bytes < 2 * measure.CHUNK_BYTES


def test_a_space_too_large_to_enumerate():
    dist = sg.Bernoulli(normal(4, 200))
    result = compare(lambda x: x[..., 0], dist, [Biased(3), sg.RLOO(2)], key=KEY, draws=2000)
    assert result.reference == "as many draws of RLOO(3)"
    np.testing.assert_allclose(result.rows[0].mean[0], 2 / 3 * result.gradient[0], rtol=0.1)
    assert [row.biased for row in result.rows] == [True, False]


@pytest.mark.parametrize("random", [False, True])
def test_bias_is_found(random):
    dist = sg.Bernoulli(normal(5, (2, 3)))
    exact = objective(dist)
    noisy = lambda x, key: exact(x) + 0.1 * jax.random.normal(key, x.shape[:-1])
    estimators = {"sound": sg.RLOO(4), "biased": Biased(4)}
    result = compare(noisy if random else exact, dist, estimators, key=KEY, draws=5000)
    assert result.reference == ("as many draws of RLOO(4)" if random else "the exact gradient")
    assert not result["sound"].biased
    assert result["sound"].p_value > 0.001
    assert result["biased"].biased
    assert result["biased"].p_value < 1e-6
    assert result.best is result["sound"]
    assert "BIASED" in str(result)


def test_what_is_biased_by_design_is_labelled():
    dist = sg.Bernoulli(normal(5, 3))
    f = lambda x: 5 * jnp.sum((x - 0.3) ** 2, axis=-1)
    estimators = {"reinmax": sg.ReinMax(), "straight": sg.StraightThrough(), "rloo": sg.RLOO(2)}
    result = compare(f, dist, estimators, key=KEY, draws=4000)
    # ReinMax is exact for a quadratic f, but still declares itself biased.
    assert [row.verdict for row in result.rows] == ["biased (declared)"] * 2 + [""]
    assert [row.biased for row in result.rows] == [False, True, False]
    assert [row.declared for row in result.rows] == [True, True, False]
    assert result.best is result["rloo"]
    assert result.least_error is min(result.rows, key=lambda row: row.mean_squared_error)
    lines = str(result).splitlines()
    assert [line.split("  ")[-1].split(",")[0] for line in lines[2:5]] == [
        "biased (declared)",
        "biased (declared)",
        "best",
    ]


@pytest.mark.parametrize("random", [False, True])
def test_mean_squared_error(random):
    """Bias² agrees with exact summation within its standard error."""
    dist = sg.Bernoulli(normal(6, 3))
    exact = objective(dist)
    noisy = lambda x, key: exact(x) + 0 * jax.random.normal(key, x.shape[:-1])
    estimator = sg.StraightThrough()
    mean, variance = moments(estimator, None, dist, exact)
    gradient = sg.exact_gradient(exact, dist)
    bias_squared = float(jnp.sum((mean - gradient) ** 2))
    f = noisy if random else exact
    row = compare(f, dist, [estimator], key=KEY, draws=20_000).rows[0]
    assert 0 < row.bias_squared_error < 0.3 * bias_squared
    assert abs(row.bias_squared - bias_squared) < 4 * row.bias_squared_error
    np.testing.assert_allclose(row.variance, flat(variance).sum(), rtol=0.05)
    assert row.mean_squared_error == row.bias_squared + row.variance
    cosine = jnp.sum(mean * gradient) / jnp.linalg.norm(mean) / jnp.linalg.norm(gradient)
    np.testing.assert_allclose(row.cosine_of_mean, cosine, atol=0.02)


@pytest.mark.slow
def test_error_of_the_squared_bias():
    """The standard deviation of many estimates of bias² equals their reported error."""
    dist = sg.Bernoulli(jnp.zeros(3))
    f = lambda x: x[..., 0]
    gradient = sg.exact_gradient(f, dist)
    for bias in (0.0, 0.5):
        estimator = Known(gradient + bias, noise=1.0)
        rows = [
            compare(lambda x: x[..., 0], dist, [estimator], key=jax.random.key(i), draws=200).rows[
                0
            ]
            for i in range(40)
        ]
        found = np.asarray([row.bias_squared for row in rows])
        said = np.mean([row.bias_squared_error for row in rows])
        if bias:
            np.testing.assert_allclose(np.mean(found), 3 * bias**2, atol=4 * said / 40**0.5)
            np.testing.assert_allclose(np.std(found), said, rtol=0.4)
        else:
            # The variance is 2 tr C², with C = 1/200 for each of three; negative values become 0.
            np.testing.assert_allclose(said, (2 * 3) ** 0.5 / 200, rtol=0.3)
            assert np.mean(found == 0) > 0.2


def test_cosine_of_one_estimate():
    dist = sg.Bernoulli(normal(9, 3))
    gradient = sg.exact_gradient(objective(dist), dist)
    estimators = {"same": Known(gradient), "against": Known(-gradient), "none": Known(0 * gradient)}
    result = compare(objective(dist), dist, estimators, key=KEY, draws=1000)
    np.testing.assert_allclose([row.cosine for row in result.rows], [1, -1, 0], atol=1e-6)
    np.testing.assert_allclose([row.cosine_of_mean for row in result.rows], [1, -1, 0], atol=1e-6)


@pytest.mark.parametrize(("logit", "draws"), [(9.0, 500), (7.0, 500), (0.0, 8)])
def test_more_draws(logit, draws):
    """No event seen, few events seen, or too few draws: there is no verdict, and no z of 0."""
    dist = sg.Bernoulli(jnp.full(3, logit))
    f = lambda x: jnp.sum(x, axis=-1) ** 2
    result = compare(f, dist, [sg.RLOO(2)], key=KEY, draws=draws)
    row = result.rows[0]
    assert not row.biased
    assert row.judged < 0.5
    assert row.verdict == "more draws"
    head, cells = result._cells()
    shown = dict(zip(head, cells, strict=True))
    assert shown["max |z|"] == shown["p"] == ""
    assert shown[""].startswith("more draws")
    assert "undecided" in str(result)
    many = compare(f, sg.Bernoulli(jnp.zeros(3)), [sg.RLOO(2)], key=KEY, draws=2000)
    assert many.rows[0].verdict == ""
    assert many.rows[0].judged == 1


def rare(x):
    return 1e6 * jnp.prod(x, axis=-1)


def test_an_event_that_the_draws_may_have_missed():
    """One of 1024 states has all of the gradient. The 1000 samples of these seeds have it not once,
    once, and a few times."""
    dist = sg.Bernoulli(jnp.zeros(10))
    reasons = []
    for seed in range(8):
        result = compare(rare, dist, [sg.RLOO(2)], key=jax.random.key(seed), draws=500)
        row = result.rows[0]
        assert row.verdict == "more draws"
        assert not row.biased
        assert result.best is result.least_error is None
        reasons.append(row.undecided)
    assert "all estimates are 0, so nothing of the gradient has been seen" in reasons
    assert any("too few rare events" in reason for reason in reasons)
    # A constant makes the estimates of Reinforce vary, although they miss the event.
    f = lambda x: 5 + 1e6 * jnp.prod(x[..., :16], axis=-1)
    row = compare(f, sg.Bernoulli(jnp.zeros(16)), [sg.Reinforce(2)], key=KEY, draws=500).rows[0]
    assert row.variance > 0
    assert row.undecided.startswith("the difference may come from states that are so rare")


def test_nothing_has_been_seen():
    """The event has a probability of 10⁻⁶, and the reference has missed it too."""
    estimators = [sg.RLOO(2), sg.Reinforce(2), sg.StraightThrough(2)]
    result = compare(rare, sg.Bernoulli(jnp.zeros(20)), estimators, key=KEY, draws=500)
    assert [row.verdict for row in result.rows] == ["more draws"] * 2 + ["biased (declared)"]
    assert result.best is result.least_error is None
    assert "of RLOO(2), Reinforce(2) is undecided: all estimates are 0, so nothing" in str(result)
    assert "Compare again with draws=5000 or more before you choose." in str(result)
    # Estimates that vary are not compared with a reference that has seen nothing.
    f = lambda x: 5 + rare(x)
    result = compare(f, sg.Bernoulli(jnp.zeros(20)), [sg.Reinforce(2)], key=KEY, draws=2000)
    assert "all draws of the reference are 0" in result.rows[0].undecided


def test_no_more_draws_than_needed():
    """Ordinary problems are decided by 500 draws, and so are estimators with a bias."""

    class Silent(sg.StraightThrough):
        biased = False

    dist = sg.Bernoulli(jnp.linspace(-1.5, 1.5, 10))
    f = lambda x: jnp.sum((x - 0.45) ** 2, axis=-1) ** 2
    sound = [sg.RLOO(2), sg.DoubleCV(2), sg.LocalExpectation()]
    estimators = [*sound, Silent(2), Biased(2)]
    result = compare(f, dist, estimators, key=KEY, draws=500, adapt_steps=20)
    assert [row.verdict for row in result.rows] == [""] * 3 + ["BIASED"] * 2
    assert all(row.p_value < 1e-6 for row in result.rows[3:])
    assert result.best in result.rows[:3]


def test_what_does_not_fit_is_left_out():
    dist = sg.Categorical(normal(2, (2, 3)))
    f = lambda x: jnp.sum(x[..., 0], axis=-1) ** 2
    estimators = [sg.DisARM(2), sg.RLOO(2), sg.Relax(1, context_size=4), sg.CARMS(3)]
    result = compare(f, dist, estimators, key=KEY, draws=500, adapt_steps=2)
    assert [row.name for row in result.rows] == ["RLOO(2)", "CARMS(3)"]
    assert list(result.skipped) == ["DisARM(2)", "Relax(1, context_size=4)"]
    assert "Left out: DisARM(2). DisARM needs independent bits, but was given Cat" in str(result)
    assert result.to_dict()["skipped"] == result.skipped
    with pytest.raises(ValueError, match="DisARM needs independent bits"):
        compare(f, dist, [sg.DisARM(2), sg.ARMS(2)], key=KEY)


def test_mistakes_are_no_refusals():
    """Errors that were not raised on purpose are shown with their type and place."""

    class Mistaken(sg.Estimator):
        num_samples: int = 2

        def gradient(self, cv, dist, at):
            return at.x @ jnp.zeros(7)

    f, dist = lambda x: x[..., 0], sg.Bernoulli(jnp.zeros(3))
    result = compare(f, dist, {"mine": Mistaken(), "RLOO": sg.RLOO(2)}, key=KEY, draws=500)
    assert result.skipped["mine"].startswith("TypeError in gradient, line ")
    assert "of test_diagnostics.py: dot_general requires" in result.skipped["mine"]


def test_progress(monkeypatch, capsys):
    run = lambda: compare(
        lambda x: x[..., 0], sg.Bernoulli(jnp.zeros(2)), [sg.RLOO(2)], key=KEY, draws=200
    )
    run()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "RLOO(2)" in shown.err
    monkeypatch.setitem(sys.modules, "rich.progress", None)  # not installed
    run()
    assert capsys.readouterr().err == ""


def test_bits_that_hardly_ever_flip_are_not_called_biased():
    signs = jnp.sign(normal(7, (4, 12)))
    dist = sg.Bernoulli(signs * jnp.linspace(2.0, 14.0, 48).reshape(4, 12))
    weights = normal(8, 12)
    f = lambda x: jnp.sin(x @ weights) + jnp.sum((x - 0.45) ** 2, axis=-1) - 30.0
    result = compare(f, dist, [sg.Reinforce(2), sg.RLOO(4)], key=KEY, draws=3000)
    assert result.reference == "the exact gradient"
    for row in result.rows:
        error = np.sqrt(row.variances / result.draws)
        # A plain z-test would call this a bias.
        assert np.any(np.abs(row.mean - result.gradient) > 10 * error)
        assert not row.biased


def test_zero_variance():
    dist = sg.Bernoulli(normal(9, 3))
    f = objective(dist)
    gradient = sg.exact_gradient(f, dist)
    estimators = {"right": Known(gradient * (1 + 1e-7)), "wrong": Known(gradient.at[1].add(1e-3))}
    result = compare(f, dist, estimators, key=KEY, draws=10)
    right, wrong = result.rows
    assert right.variance == wrong.variance == 0
    np.testing.assert_array_equal(right.z, 0)
    np.testing.assert_array_equal(wrong.z, [0, np.inf, 0])
    assert right.p_value == 1
    assert not right.biased
    assert wrong.p_value == 0
    assert wrong.biased
    constant = lambda x: jnp.full(x.shape[:-1], 3.3)
    assert not compare(constant, dist, [sg.RLOO(2)], key=KEY, draws=10).rows[0].biased


def test_a_gradient_that_is_not_a_number_is_biased():
    dist = sg.Bernoulli(normal(10, 3))
    f = lambda x: jnp.log(x[..., 0] - 0.5)
    result = compare(f, dist, [sg.RLOO(2)], key=KEY, draws=20)
    assert result.rows[0].biased
    assert result.best is None
    assert "nan" in str(result)


def test_arguments_and_context():
    dist = sg.Bernoulli(normal(11, (2, 3)))
    f = lambda x, weights, power: jnp.sum(weights * x, axis=-1) ** power
    args = (np.arange(3, dtype=np.float32), 2)
    result = compare(f, dist, [sg.RLOO(2)], key=KEY, draws=500, args=args, context=jnp.ones((2, 5)))
    exact = sg.exact_gradient(f, dist, args=args)
    np.testing.assert_allclose(result.gradient, flat(exact), atol=1e-6)
    assert not result.rows[0].biased


@pytest.mark.usefixtures("x64")
def test_double_precision():
    dist = sg.Bernoulli(normal(12, 3))
    estimators = [sg.Reinforce(2, "learned")]
    row = compare(objective(dist), dist, estimators, key=KEY, draws=500, adapt_steps=5).rows[0]
    assert row.mean.dtype == row.variances.dtype == np.float64
    assert not row.biased


def test_bfloat16():
    dist = sg.Bernoulli(normal(13, 3).astype(jnp.bfloat16))
    f = lambda x: jnp.sum(x.astype(jnp.float32), axis=-1)
    assert not compare(f, dist, [sg.RLOO(2)], key=KEY, draws=2000).rows[0].biased


def test_names():
    kappa = lambda t: jnp.minimum(1.0, t)
    estimators = [
        sg.RLOO(2),
        sg.RLOO(2),
        sg.RLOO(2),
        sg.Reinforce(1, "learned"),
        sg.Rodeo(3, sg.Gibbs(scan="own"), sg.MLPSurrogate(hidden=5), local=False),
        sg.Rodeo(2, sg.Zanella(kappa)),
    ]
    assert list(_named(estimators)) == [
        "RLOO(2)",
        "RLOO(2) #2",
        "RLOO(2) #3",
        "Reinforce(1, baseline='learned')",
        "Rodeo(3, operator=Gibbs(scan='own'), surrogate=MLPSurrogate(hidden=5), local=False)",
        "Rodeo(2, operator=Zanella(kappa=<function test_names.<locals>.<lambda>>))",
    ]


@pytest.fixture(scope="module")
def small():
    dist = sg.Bernoulli(normal(14, 3))
    exact = Known(sg.exact_gradient(objective(dist), dist))
    estimators = {"<a>, b": sg.RLOO(2), "biased": Biased(2), "exact": exact}
    return compare(objective(dist), dist, estimators, key=KEY, draws=2000)


def test_costs(small):
    assert [row.evaluations for row in small.rows] == [2, 2, 1]
    for row in small.rows:
        assert 0 < row.seconds < 60
        assert row.variance_times_evaluations == row.variance * row.evaluations
        assert row.variance_times_seconds == row.variance * row.seconds
    assert small.best is small["exact"]  # biased ones do not count


def test_printing(small):
    lines = str(small).splitlines()
    assert repr(small) == str(small)
    assert lines[0].split()[0] == "estimator"
    assert [line.split()[0] for line in lines[2:5]] == ["<a>,", "biased", "exact"]
    assert lines[3].endswith("BIASED")
    assert lines[4].endswith("best, least error")
    # Every column ends at the same position as its heading.
    ends = [i for i in range(len(lines[0])) if lines[0][i : i + 2] in ("s ", "e ", "² ")]
    assert all(line[end + 1] == " " for line in lines[2:5] for end in ends)
    assert max(map(len, lines)) <= 130
    page = small._repr_html_()
    assert page.count("<tr>") == page.count("</tr>") == 4
    assert page.count("<th>") == page.count("</th>") == 12
    assert page.count("<td>") == page.count("</td>") == 36
    assert "&lt;a&gt;" in page
    assert "<a>" not in page


def test_export(small, tmp_path):
    table = json.loads(json.dumps(small.to_dict()))
    assert table["draws"] == 2000
    assert table["gradient"] == small.gradient.tolist()
    assert [row["name"] for row in table["rows"]] == ["<a>, b", "biased", "exact"]
    assert table["rows"][0]["variances"] == small["<a>, b"].variances.tolist()
    assert table["rows"][1]["biased"] is True
    text = small.to_csv(tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text() == text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["name"] for row in rows] == ["<a>, b", "biased", "exact"]
    assert float(rows[0]["variance"]) == small.rows[0].variance
    assert "mean" not in rows[0]


def test_plot(small, tmp_path):
    axes = small.plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
    assert [ax.get_xscale() + ax.get_yscale() for ax in axes] == ["loglog"] * 2
    labels = axes[0].get_legend_handles_labels()[1]
    assert labels == ["<a>, b", "biased (biased)", "exact (variance 0)"]
    markers = [line.get_marker() for line in axes[1].get_lines()[:3]]
    assert len(set(markers)) == 3


def test_import_does_not_need_matplotlib():
    code = "import sys, steingrad.diagnostics; print({'matplotlib'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draws": 1}, "draws of 2 or more"),
        ({"adapt_steps": -1}, "adapt_steps of 0 or more"),
        ({"chunk": 0}, "chunk of 1 or more"),
        ({"estimators": []}, "at least one estimator"),
        ({"estimators": {}}, "at least one estimator"),
        ({"dist": normalised_distributions()["ising"]}, "without a sampler"),
        (
            {
                "dist": sg.FromLogProb(
                    lambda p, x: p @ x, jnp.zeros(2), num_coordinates=2, sampler=lambda k, p: p
                ),
                "estimators": [sg.Reinforce(2)],
            },
            "normalized=True",
        ),
        ({"f": lambda x: x}, "must return one number for each"),
    ],
)
def test_errors(change, message):
    settings = {"f": lambda x: x[..., 0], "dist": sg.Bernoulli(jnp.zeros(2))}
    settings |= {"estimators": [sg.RLOO(2)], "key": KEY, "draws": 10} | change
    with pytest.raises(ValueError, match=message):
        compare(**settings)


def test_empty_batches_are_refused():
    dist, f = sg.Bernoulli(jnp.zeros((2, 0, 3))), lambda x: x[..., 0]
    for run in (
        lambda: compare(f, dist, [sg.RLOO(2)], key=KEY),
        lambda: best_num_samples(f, dist, sg.RLOO, key=KEY),
        lambda: check_objective(f, dist, key=KEY),
    ):
        with pytest.raises(ValueError, match=r"empty batch: the batch_shape is \(2, 0\)"):
            run()


@pytest.mark.parametrize("one", [False, True])
@pytest.mark.slow
def test_keys_of_the_old_kind(one):
    """Raw uint32 keys give the same numbers as new-style keys, also for a random f of one state."""
    dist, old = sg.Bernoulli(normal(14, 2)), jax.random.PRNGKey(7)
    f = lambda x, key: jnp.sum(x, axis=-1) + jax.random.normal(key, x.shape[:-1])
    f = sg.per_example(f) if one else f
    check_objective(f, dist, key=old)
    ours, theirs = (
        compare(f, dist, [sg.RLOO(2), sg.DoubleCV(2)], key=key, draws=60, adapt_steps=2)
        for key in (old, jax.random.wrap_key_data(old))
    )
    assert ours.reference == "as many draws of RLOO(2)"
    for a, b in zip(ours.rows, theirs.rows, strict=True):
        np.testing.assert_array_equal(a.mean, b.mean)
    assert best_num_samples(f, dist, sg.RLOO, key=old, candidates=(2,), seconds=0.01)


def test_a_class_is_not_an_estimator():
    with pytest.raises(TypeError):
        compare(lambda x: x[..., 0], sg.Bernoulli(jnp.zeros(2)), [sg.RLOO], key=KEY)


def test_best_number_of_samples():
    dist, f = sg.Bernoulli(normal(14, 3)), objective(sg.Bernoulli(normal(14, 3)))
    found = best_num_samples(f, dist, sg.RLOO, key=KEY, candidates=(1, 2, 4), seconds=0.5)
    assert sorted(row.num_samples for row in found) == [2, 4]  # RLOO has no baseline with 1
    products = [row.variance_times_seconds for row in found]
    assert products == sorted(products)
    for row in found:
        assert row.draws >= 600
        assert row.evaluations == row.num_samples
        assert row.variance_times_seconds == row.variance * row.seconds
        exact = flat(moments(sg.RLOO(row.num_samples), None, dist, f)[1]).sum()
        assert abs(row.variance - exact) < 0.25 * exact
        assert 0 < row.error < 0.3 * row.variance_times_seconds


def test_best_number_of_something_else():
    make = lambda k: sg.GumbelSoftmax(1, straight_through=True, jacobian_draws=k)
    dist = sg.Bernoulli(normal(14, 3))
    found = best_num_samples(objective(dist), dist, make, key=KEY, candidates=(1, 10), seconds=0.1)
    by_number = {row.num_samples: row for row in found}
    assert by_number[10].variance < by_number[1].variance
    assert by_number[10].evaluations == 1


def test_best_number_of_samples_refuses():
    dist, f = sg.Bernoulli(jnp.zeros(2)), lambda x: x[..., 0]
    for change in ({"candidates": ()}, {"seconds": 0.0}):
        with pytest.raises(ValueError, match="needs candidates, and seconds above 0"):
            best_num_samples(f, dist, sg.RLOO, key=KEY, **change)
    with pytest.raises(ValueError, match="RLOO needs a whole num_samples of 2 or more"):
        best_num_samples(f, dist, sg.RLOO, key=KEY, candidates=(1,))
    subset = sg.Subset(jnp.zeros(3), 2)
    with pytest.raises(ValueError, match="CARMS needs independent coordinates"):
        best_num_samples(f, subset, sg.CARMS, key=KEY, candidates=(2, 3))
