"""What f may be: its key, and the type of what it returns."""

import functools

import jax
import jax.numpy as jnp
import pytest

import steingrad as sg

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


@pytest.mark.parametrize("estimator", [sg.Rebar(), sg.Relax()], ids=["rebar", "relax"])
@pytest.mark.parametrize("dtype", [bool, jnp.int32])
@pytest.mark.parametrize("front_door", [sg.expectation, sg.value_and_grad])
def test_relaxing_estimators_want_a_continuous_f(estimator, dtype, front_door):
    f = lambda x: (jnp.sum(x, axis=-1) > 1).astype(dtype)
    cv = estimator.init(KEY, Q)
    with pytest.raises(TypeError, match=r"must be continuous, but it returned .*relaxation="):
        front_door(f, Q, estimator, cv, key=KEY)
    smooth = lambda x: jnp.sum(x, axis=-1)
    front_door(f, Q, estimator, cv, key=KEY, relaxation=smooth)  # f itself may jump
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
