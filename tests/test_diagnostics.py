"""What `compare` reports, against exact moments; what it must and must not call biased."""

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
from problems import moments, normal, normalised_distributions, objective

import steingrad as sg
from steingrad import diagnostics
from steingrad.diagnostics import compare
from steingrad.estimators import Estimator, Gradients

KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def _short_timing(monkeypatch):
    monkeypatch.setattr(diagnostics, "TIMED_CALLS", 2)
    monkeypatch.setattr(diagnostics, "TIMED_SECONDS", 0.0)


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def sampled(dist):
    """A FromLogProb that also knows how to sample, by enumeration."""
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
    """Not an estimator of anything: the given mean, and normal noise."""

    mean: jax.Array
    noise: float = eqx.field(static=True, default=0.0)
    num_samples: int = eqx.field(static=True, default=1)

    def estimate(self, params, dist, x, fx, dfx=None, *, key=None, f=None, context=None):
        raise NotImplementedError

    def value_and_grad(self, f, dist, params=None, *, key, args=(), context=None):
        draw = self.mean + self.noise * jax.random.normal(key, self.mean.shape)
        return jnp.zeros(()), Gradients(draw, None, args)


class Biased(sg.RLOO):
    """RLOO that forgets to leave one out."""

    def estimate(self, params, dist, x, fx, dfx=None, **kwargs):
        grad = super().estimate(params, dist, x, fx, dfx, **kwargs)
        return jax.tree.map(lambda g: g * (1 - 1 / self.num_samples), grad)


@pytest.mark.parametrize("name", ["bernoulli", "categorical3", "ordinal3", "autoregressive"])
def test_mean_and_variance_are_the_exact_ones(name):
    dist = normalised_distributions()[name]
    f = objective(dist)
    if isinstance(dist, sg.FromLogProb):
        dist = sampled(dist)
    estimators = {
        "reinforce": sg.Reinforce(1, baseline=1.3),
        "rloo": sg.RLOO(2),
        "rodeo": sg.Rodeo(2, surrogate=sg.LinearSurrogate()),
    }
    draws = 20_000
    result = compare(f, dist, estimators, key=KEY, draws=draws, adapt_steps=0)
    assert result.reference == "the exact gradient"
    gradient = flat(sg.exact_gradient(f, dist))
    np.testing.assert_allclose(result.gradient, gradient, rtol=1e-5)
    for row, estimator in zip(result.rows, estimators.values(), strict=True):
        mean, variance = map(flat, moments(estimator, estimator.init(KEY), dist, f))
        np.testing.assert_allclose(mean, gradient, atol=1e-5)
        np.testing.assert_allclose(row.variances, variance, rtol=0.1)
        np.testing.assert_allclose(row.variance, variance.sum(), rtol=0.05)
        assert row.variances.shape == row.mean.shape == row.z.shape == gradient.shape
        z = (row.mean - gradient) / np.sqrt(row.variances / draws)
        np.testing.assert_allclose(row.z, z, atol=0.01)
        assert row.largest_z == np.max(np.abs(row.z))
        assert not row.biased


def test_costs():
    dist = sg.Bernoulli(normal(0, 3))
    estimators = [sg.RLOO(3), sg.Rodeo(2, surrogate=sg.ExactSurrogate())]
    result = compare(objective(dist), dist, estimators, key=KEY, draws=100, adapt_steps=0)
    assert [row.evaluations for row in result.rows] == [3, 2 * (1 + 3)]
    for row in result.rows:
        assert 0 < row.seconds < 60
        assert row.variance_times_evaluations == row.variance * row.evaluations
        assert row.variance_times_seconds == row.variance * row.seconds
    assert result.best in result.rows


def test_adaptation():
    dist = sg.Bernoulli(normal(1, 4))
    f = lambda x: 5.0 + jnp.sum((x - 0.3) ** 2, axis=-1) + x[..., 0] * x[..., 1]
    baselines = {baseline: sg.Reinforce(1, baseline) for baseline in ("moving_average", "learned")}
    estimators = {"plain": sg.Reinforce(1), "rloo": sg.RLOO(2), "rodeo": sg.Rodeo(2), **baselines}
    before, after = (
        compare(f, dist, estimators, key=KEY, draws=2000, adapt_steps=steps, learning_rate=0.01)
        for steps in (0, 1000)
    )
    assert not any(row.biased for row in (*before.rows, *after.rows))
    np.testing.assert_array_equal(before["rloo"].mean, after["rloo"].mean)
    # α and β start at zero, baselines at zero.
    np.testing.assert_allclose(before["rodeo"].variance, before["rloo"].variance, rtol=0.2)
    assert after["rodeo"].variance < 0.2 * before["rodeo"].variance
    # At the mean of f the baseline leaves what the exact one does.
    mean = float(sg.exact_expectation(f, dist))
    _, best = moments(sg.Reinforce(1, mean), None, dist, f)
    for baseline in baselines:
        np.testing.assert_allclose(before[baseline].variance, before["plain"].variance, rtol=0.1)
        np.testing.assert_allclose(after[baseline].variance, flat(best).sum(), rtol=0.2)


def test_chunks_make_no_difference():
    dist = sg.Categorical(normal(2, (2, 3)))
    run = lambda chunk: compare(
        objective(dist), dist, [sg.RLOO(2)], key=KEY, draws=101, chunk=chunk
    )
    whole = run(None).rows[0]
    for chunk in (1, 7, 100, 101, 1000):
        row = run(chunk).rows[0]
        np.testing.assert_allclose(row.mean, whole.mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(row.variances, whole.variances, rtol=1e-4)


def test_float32_keeps_a_small_variance_beside_a_large_mean():
    estimator = Known(jnp.array([1e4, -1e4, 0.0]), noise=0.1)
    dist = sg.Bernoulli(jnp.zeros(3))
    row = compare(lambda x: x[..., 0], dist, [estimator], key=KEY, draws=50_000, chunk=1000).rows[0]
    np.testing.assert_allclose(row.variances, 0.01, rtol=0.05)


@pytest.mark.parametrize("estimator", [sg.RLOO(2), sg.Rodeo(2), sg.Rodeo(4)], ids=repr)
def test_a_hundred_thousand_draws_of_200_bits_fit_in_memory(estimator):
    weights = normal(3, 200)
    f = lambda x: jnp.sin(x @ weights) + jnp.sum((x - 0.45) ** 2, axis=-1)
    dist = sg.Bernoulli(normal(4, 200))
    params = estimator.init(KEY)
    estimate = eqx.Partial(estimator.value_and_grad, f, dist, params, args=(), context=None)
    _, size = diagnostics._cost(estimate, KEY)
    chunk = diagnostics.CHUNK_BYTES // size
    assert 10 < chunk < 50_000
    lowered = diagnostics._moments.lower(estimate, KEY, 100_000, chunk)
    memory = lowered.compile().compiled.memory_analysis()
    total = memory.temp_size_in_bytes + memory.output_size_in_bytes + memory.argument_size_in_bytes
    assert total < 2 * diagnostics.CHUNK_BYTES
    # And it runs, here with fewer: no exact gradient any more.
    row = compare(f, dist, [estimator], key=KEY, draws=1000, adapt_steps=2).rows[0]
    assert row.mean.shape == (200,)
    assert np.isfinite(row.variance)
    assert not row.biased


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


def test_bias_is_found_against_rloo_in_a_large_space():
    dist = sg.Bernoulli(0.3 * normal(6, 40))
    f = lambda x: jnp.sum(x, axis=-1)
    result = compare(f, dist, [Biased(2), sg.RLOO(2)], key=KEY, draws=10_000)
    assert [row.biased for row in result.rows] == [True, False]


@pytest.mark.parametrize("draws", [300, 3000])
def test_bits_that_hardly_ever_flip_are_not_called_biased(draws):
    signs = jnp.sign(normal(7, (4, 12)))
    dist = sg.Bernoulli(signs * jnp.linspace(2.0, 14.0, 48).reshape(4, 12))
    weights = normal(8, 12)
    f = lambda x: jnp.sin(x @ weights) + jnp.sum((x - 0.45) ** 2, axis=-1) - 30.0
    estimators = [sg.Reinforce(2), sg.RLOO(2), sg.RLOO(4)]
    for seed in range(3):
        result = compare(f, dist, estimators, key=jax.random.key(seed), draws=draws)
        assert result.reference == "the exact gradient"
        assert not any(row.biased for row in result.rows)


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


def test_parameters_that_are_a_pytree():
    dist = sampled(normalised_distributions()["ising"])
    result = compare(objective(dist), dist, [sg.RLOO(2)], key=KEY, draws=2000)
    assert result.rows[0].mean.shape == (2 + 4,)
    assert not result.rows[0].biased


def test_arguments_and_context():
    dist = sg.Bernoulli(normal(11, (2, 3)))
    f = lambda x, weights, power: jnp.sum(weights * x, axis=-1) ** power
    args = (np.arange(3, dtype=np.float32), 2)
    result = compare(f, dist, [sg.RLOO(2)], key=KEY, draws=500, args=args, context=jnp.ones((2, 5)))
    np.testing.assert_allclose(result.gradient, flat(sg.exact_gradient(f, dist, args=args)), 1e-5)
    assert not result.rows[0].biased


@pytest.mark.usefixtures("x64")
def test_double_precision():
    dist = sg.Bernoulli(normal(12, 3))
    row = compare(objective(dist), dist, [sg.Rodeo(2)], key=KEY, draws=500, adapt_steps=5).rows[0]
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
    assert list(diagnostics._named(estimators, sg.Bernoulli(jnp.zeros(2)))) == [
        "RLOO(2)",
        "RLOO(2) #2",
        "RLOO(2) #3",
        "Reinforce(1, baseline='learned')",
        "Rodeo(3, operator=Gibbs(scan='own'), surrogate=MLPSurrogate(hidden=5), local=False)",
        "Rodeo(2, operator=Zanella(kappa=<function <lambda>>))",
    ]


@pytest.fixture
def small():
    dist = sg.Bernoulli(normal(14, 3))
    exact = Known(sg.exact_gradient(objective(dist), dist))
    estimators = {"<a>, b": sg.RLOO(2), "biased": Biased(2), "exact": exact}
    return compare(objective(dist), dist, estimators, key=KEY, draws=2000)


def test_printing(small):
    lines = str(small).splitlines()
    assert repr(small) == str(small)
    assert lines[0].split()[0] == "estimator"
    assert [line.split()[0] for line in lines[2:5]] == ["<a>,", "biased", "exact"]
    assert lines[3].endswith("BIASED")
    assert lines[4].endswith("best")
    # Every column ends where its heading does.
    ends = [i for i in range(len(lines[0])) if lines[0][i : i + 2] in ("s ", "e ", "‖ ")]
    assert all(line[end + 1] == " " for line in lines[2:5] for end in ends)
    assert max(map(len, lines)) <= 120
    page = small._repr_html_()
    assert page.count("<tr>") == page.count("</tr>") == 4
    assert page.count("<th>") == page.count("</th>") == 10
    assert page.count("<td>") == page.count("</td>") == 30
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


def test_only_what_learns_needs_optax(monkeypatch):
    monkeypatch.setitem(sys.modules, "optax", None)
    dist = sg.Bernoulli(jnp.zeros(2))
    run = lambda **kwargs: compare(lambda x: x[..., 0], dist, key=KEY, draws=2, **kwargs)
    run(estimators=[sg.RLOO(2)])
    run(estimators=[sg.Rodeo(2)], adapt_steps=0)
    with pytest.raises(ImportError, match=r"Rodeo\(2\) .*adapt_steps.*steingrad\[experiments\]"):
        run(estimators=[sg.Rodeo(2)])


def test_import_needs_neither_optax_nor_matplotlib():
    code = "import sys, steingrad.diagnostics; print({'optax', 'matplotlib'} & {*sys.modules})"
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
                )
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


def test_a_class_is_not_an_estimator():
    with pytest.raises(TypeError):
        compare(lambda x: x[..., 0], sg.Bernoulli(jnp.zeros(2)), [sg.RLOO], key=KEY)
