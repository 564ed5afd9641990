"""The objective f: its key, and the dtype of its values."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingrad as sg
from steingrad.diagnostics import check_objective

Q, KEY = sg.Bernoulli(jnp.zeros(3)), jax.random.key(0)


def test_a_bound_key_stays_the_users():
    seen = []

    def f(x, scale=1.0, *, key):
        seen.append(key)
        return scale * jnp.sum(x, axis=-1)

    mine = jax.random.key(42)
    bound = functools.partial(functools.partial(f, key=mine), scale=2.0)
    sg.value_and_grad(bound, Q, sg.RLOO(2), key=KEY)
    sg.expectation(bound, Q, sg.RLOO(2), key=KEY)
    assert all(key is mine for key in seen)
    seen.clear()
    sg.value_and_grad(functools.partial(f, scale=2.0), Q, sg.RLOO(2), key=KEY)
    assert seen
    assert all(key is not mine for key in seen)


def draw(x, key):
    return jax.random.uniform(key, x.shape[:-1])


MINE = jax.random.key(42)


@functools.wraps(draw)
def without_key(x):
    return draw(x, MINE)


@functools.wraps(draw)
def passed_on(*args, **keywords):
    return draw(*args, **keywords)


@pytest.mark.parametrize(
    ("f", "mine"),
    [
        (jax.jit(functools.partial(draw, key=MINE)), True),
        (eqx.filter_jit(functools.partial(draw, key=MINE)), True),
        (functools.partial(jax.checkpoint(functools.partial(draw, key=MINE))), True),
        (eqx.Partial(draw, key=MINE), True),
        (functools.partial(lambda key, x: draw(x, key), MINE), True),
        (without_key, True),
        (jax.jit(draw), False),
        (passed_on, False),
    ],
    ids=["jit", "filter_jit", "checkpoint", "eqx", "by position", "wraps", "free", "free, wraps"],
)
def test_a_key_is_bound_however_deep(f, mine):
    value, _ = sg.value_and_grad(f, Q, sg.RLOO(2), key=KEY)
    assert (float(value) == float(jnp.mean(draw(jnp.zeros((2, 3)), MINE)))) == mine


@pytest.mark.parametrize(
    "estimator",
    [sg.StraightThrough(), sg.ReinMax(), sg.GumbelSoftmax(straight_through=True)],
    ids=lambda estimator: type(estimator).__name__,
)
def test_estimators_that_are_all_gradient_want_one(estimator):
    """Integers have the gradient 0, and so would the estimate."""
    f = lambda x: (jnp.sum(x, axis=-1) > 1).astype(jnp.int32)
    for run in (sg.expectation, sg.value_and_grad):
        with pytest.raises(TypeError, match=r"depends on the gradient of f.*returned int32"):
            run(f, Q, estimator, key=KEY)


@pytest.mark.parametrize("estimator", [sg.Rebar(), sg.Relax()], ids=["rebar", "relax"])
@pytest.mark.parametrize("dtype", [bool, jnp.int32])
@pytest.mark.parametrize("front_door", [sg.expectation, sg.value_and_grad])
def test_relaxing_estimators_want_a_continuous_f(estimator, dtype, front_door):
    f = lambda x: (jnp.sum(x, axis=-1) > 1).astype(dtype)
    cv = estimator.init(KEY, Q)
    with pytest.raises(TypeError, match=r"must be continuous .* returned .*relaxation="):
        front_door(f, Q, estimator, cv, key=KEY)
    smooth = lambda x: jnp.sum(x, axis=-1)
    front_door(f, Q, estimator, cv, key=KEY, relaxation=smooth)  # f itself may be discontinuous
    with pytest.raises(TypeError, match="must be continuous"):
        front_door(smooth, Q, estimator, cv, key=KEY, relaxation=f)


@pytest.mark.parametrize("dtype", [bool, jnp.int32])
def test_others_take_whole_numbers(dtype):
    f = lambda x: (jnp.sum(x, axis=-1) > 1).astype(dtype)
    value, _ = sg.value_and_grad(f, Q, sg.RLOO(2), key=KEY)
    assert value.dtype == jnp.float32


def test_complex_values_are_refused():
    f = lambda x: jnp.sum(x, axis=-1).astype(jnp.complex64)
    for run in (sg.expectation, sg.value_and_grad):
        with pytest.raises(TypeError, match=r"real numbers, but returned complex64.*jnp.real"):
            run(f, Q, sg.RLOO(2), key=KEY)
    with pytest.raises(TypeError, match="real numbers"):
        sg.exact_expectation(f, Q)


BATCH = sg.Bernoulli(jnp.linspace(-1, 1, 12).reshape(4, 3))
W = jnp.array([1.0, -2.0, 0.5])


def both_doors(f, dist, estimator, **settings):
    """The value (and aux) and the gradient of the logits, by `expectation` and `value_and_grad`."""
    cv = estimator.init(KEY, dist)
    has_aux = settings.get("has_aux", False)
    value, grads = sg.value_and_grad(f, dist, estimator, cv, key=KEY, **settings)
    loss = lambda logits: sg.expectation(
        f, sg.Bernoulli(logits), estimator, cv, key=KEY, **settings
    )
    again, grad = jax.jit(jax.value_and_grad(loss, has_aux=has_aux))(dist.logits)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), value, again)
    np.testing.assert_allclose(grads.parameters, grad, atol=1e-6)
    return value, grad


ESTIMATORS = [sg.RLOO(2), sg.Rodeo(2), sg.LocalExpectation(2), sg.Lariat(2), sg.Bronco()]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
@pytest.mark.slow
def test_has_aux(estimator):
    plain = lambda x: jnp.sin(x @ W)
    f = lambda x: (plain(x), {"states": x, "count": jnp.sum(x, axis=-1).astype(int)})
    (value, aux), grad = both_doors(f, BATCH, estimator, has_aux=True)
    expected, expected_grad = both_doors(plain, BATCH, estimator)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(grad, expected_grad, atol=1e-6)
    x = aux["states"]
    assert x.shape == (estimator.num_samples, 4, 3)
    np.testing.assert_allclose(jnp.mean(plain(x)), value, rtol=1e-6)
    np.testing.assert_array_equal(aux["count"], jnp.sum(x, axis=-1))


def test_aux_is_not_differentiated_and_is_checked():
    def loss(logits, w):
        f = lambda x: (x @ w, x @ w)
        value, aux = sg.expectation(f, sg.Bernoulli(logits), sg.RLOO(2), key=KEY, has_aux=True)
        return value + jnp.sum(aux), aux

    without = lambda logits, w: sg.expectation(
        lambda x: x @ w, sg.Bernoulli(logits), sg.RLOO(2), key=KEY
    )
    both, _ = jax.grad(loss, (0, 1), has_aux=True)(BATCH.logits, W)
    jax.tree.map(np.testing.assert_allclose, both, jax.grad(without, (0, 1))(BATCH.logits, W))
    for run in (sg.expectation, sg.value_and_grad):
        with pytest.raises(TypeError, match="must return a pair, its values and anything"):
            run(lambda x: x @ W, BATCH, sg.RLOO(2), key=KEY, has_aux=True)
        with pytest.raises(TypeError, match=r"returned a tuple.*pass has_aux=True"):
            run(lambda x: (x @ W, x), BATCH, sg.RLOO(2), key=KEY)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
@pytest.mark.slow
def test_one_example(estimator):
    targets, scale = jnp.arange(4.0), jnp.array(2.0)
    one = lambda x, target, scale: scale * jnp.cos(W @ x - target)
    many = lambda x, target, scale: scale * jnp.cos(x @ W - target)
    args = (targets, scale)
    value, grad = both_doors(one, BATCH, estimator, args=args, batched=False, in_axes=(0, None))
    expected, expected_grad = both_doors(many, BATCH, estimator, args=args)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(grad, expected_grad, atol=1e-5)
    with_aux = lambda x: (W @ x, x)
    (_, aux), _ = both_doors(with_aux, BATCH, estimator, batched=False, has_aux=True)
    assert aux.shape == (estimator.num_samples, 4, 3)


def test_one_example_has_its_own_key_and_is_checked():
    f = lambda x, key: jax.random.normal(key) + 0 * x[0]
    run = lambda f, **settings: sg.value_and_grad(
        f, BATCH, sg.RLOO(2), key=KEY, batched=False, **settings
    )
    (_, aux), _ = run(lambda x, key: (f(x, key), f(x, key)), has_aux=True)
    assert len(np.unique(aux)) == 8
    exact = sg.exact_expectation(sg.per_example(lambda x: W @ x), BATCH)
    np.testing.assert_allclose(exact, jnp.mean(BATCH.mean @ W), rtol=1e-5)
    with pytest.raises(ValueError, match=r"one number for each, of shape \(2, 4\), but returned"):
        run(lambda x: x)
    with pytest.raises(ValueError, match="in_axes has 2 entries, but f is given 1 args"):
        run(lambda x, w: x @ w, args=(W,), in_axes=(0, None))
    with pytest.raises(ValueError, match=r"the batch, \(4,\), but it has shape \(3,\)"):
        run(lambda x, w: x @ w, args=(W,), in_axes=(0,))
    with pytest.raises(ValueError, match="0 where it begins with the axes of the batch"):
        run(lambda x, w: x @ w, args=(W,), in_axes=(1,))
    with pytest.raises(ValueError, match="so it needs batched=False, but batched is True"):
        sg.value_and_grad(lambda x: x @ W, BATCH, sg.RLOO(2), key=KEY, in_axes=())


GRADIENT_FREE = [
    sg.RLOO(2),
    sg.Reinforce(2, "moving_average"),
    sg.LocalExpectation(1),
    sg.Rodeo(2, surrogate=sg.ExactSurrogate()),
    sg.Lariat(2, gradients=False),
    sg.DisARM(2),
]


@pytest.mark.parametrize("estimator", GRADIENT_FREE, ids=lambda e: type(e).__name__)
@pytest.mark.slow
def test_a_numpy_f(estimator):
    """A NumPy f gives the same results as the same f in JAX."""
    numpy = sg.callback(lambda x, w: np.tanh(x @ w) * x.shape[-1])
    ours = both_doors(numpy, BATCH, estimator, args=(W,))
    native = lambda x, w: jnp.tanh(x @ jax.lax.stop_gradient(w)) * 3
    expected = both_doors(native, BATCH, estimator, args=(W,))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ours, expected)
    one = sg.callback(lambda x, shift: float(np.tanh(W_NUMPY @ x + shift)))
    shifts = jnp.arange(4.0)
    how = {"args": (shifts,), "batched": False, "in_axes": (0,)}
    ours = both_doors(one, BATCH, estimator, **how)
    expected = both_doors(lambda x, s: jnp.tanh(x @ W + s), BATCH, estimator, args=(shifts,))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ours, expected)


W_NUMPY = np.asarray(W)


def test_a_numpy_f_under_vmap():
    """It works with mapped arguments too."""
    f = sg.callback(lambda x, w: x @ w)
    value = lambda w, key: sg.expectation(f, BATCH, sg.RLOO(2), key=key, args=(w,))
    native = lambda w, key: sg.expectation(
        lambda x, w: x @ w, BATCH, sg.RLOO(2), key=key, args=(w,)
    )
    ws, keys = jnp.stack([W, 2 * W, -W]), jax.random.split(KEY, 3)
    for axes in ((0, 0), (None, 0), (0, None)):
        inputs = (W if axes[0] is None else ws, KEY if axes[1] is None else keys)
        ours, expected = (jax.vmap(fn, axes)(*inputs) for fn in (value, native))
        np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_a_numpy_f_has_no_gradient():
    f = sg.callback(lambda x, w: x @ w)
    for estimator in (sg.Rodeo(2), sg.Lariat(2), sg.DoubleCV(2), sg.Rebar()):
        cv = estimator.init(KEY, BATCH)
        for run in (sg.expectation, sg.value_and_grad):
            for wrapped in (f, sg.per_example(f)):
                with pytest.raises(
                    ValueError, match=r"needs the gradient of f. An f made by `call"
                ):
                    run(wrapped, BATCH, estimator, cv, key=KEY, args=(W,))
    _, grads = sg.value_and_grad(f, BATCH, sg.RLOO(2), key=KEY, args=(W,))
    assert grads.args == (None,)
    loss = lambda w: sg.expectation(f, BATCH, sg.RLOO(2), key=KEY, args=(w,))
    with pytest.raises(TypeError, match="runs in NumPy: it has no gradient"):
        jax.grad(loss)(W)
    wrong = sg.callback(lambda x: np.zeros(3))
    with pytest.raises(Exception, match=r"one number for each state, of shape \(2, 4\), but"):
        jax.block_until_ready(sg.value_and_grad(wrong, BATCH, sg.RLOO(2), key=KEY))


def test_a_callback_must_be_real():
    """Imaginary parts are not dropped."""
    whole = sg.callback(lambda x: x @ W_NUMPY + 1j)
    for f in (whole, sg.per_example(sg.callback(lambda x: complex(x @ W_NUMPY)))):
        with pytest.raises(Exception, match="must return real numbers, but returned complex"):
            jax.block_until_ready(sg.value_and_grad(f, BATCH, sg.RLOO(2), key=KEY))


def test_check_objective():
    check = lambda f, dist=BATCH, **args: check_objective(f, dist, key=KEY, **args)
    check(lambda x: x @ W)
    check(lambda x: 0 * x[..., 0])  # a constant
    check(lambda x, data: jnp.sum(x * data, axis=-1), args=(jnp.arange(12.0).reshape(4, 3),))
    check(lambda x, key: jax.random.normal(key, x.shape[:-1]) + x @ W)
    check(sg.per_example(lambda x, key: jax.random.normal(key) + x @ W))
    check(sg.callback(lambda x: x @ W_NUMPY))
    check(lambda x: 1e4 + x["a"] @ W, sg.Joint(a=BATCH, b=sg.Subset(jnp.zeros((4, 3)), 1)))

    def batch_norm(x):
        y = x @ W
        return jnp.tanh((y - jnp.mean(y, axis=1, keepdims=True)) / (jnp.std(y) + 1e-3))

    for mixing in (
        batch_norm,
        lambda x: x @ W + jnp.roll(x[..., 0], 1, axis=-1),
        lambda x: x @ W - jnp.mean(x @ W, axis=0),
        lambda x: jax.nn.log_softmax(x @ W, axis=-1),
    ):
        with pytest.raises(ValueError, match="f mixes the states that it is given: at sample and"):
            check(mixing)
    with pytest.raises(ValueError, match="must not depend on the number of samples"):
        check(lambda x: x @ W / len(x))
    with pytest.raises(ValueError, match="every state needs a finite value"):
        check(lambda x: jnp.log(x[..., 0]))
    generator = np.random.default_rng(0)
    with pytest.raises(ValueError, match="other values when it was called again"):
        check(lambda x: x @ W + generator.normal())
