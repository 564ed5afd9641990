"""What PyTorch users expect of a module and of `backward`."""

import copy
import io

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: run `make test-torch`")

from torch import distributions as td

import steingrad as sg
import steingrad.torch as sgt

LEARNING = [sgt.Rodeo, sgt.Bronco, sgt.Lariat]


def f(x):
    return -((x - 0.45) ** 2).sum(-1) + x[..., 0] * x[..., 1]


def step(module, logits, factor=1.0, f=f):
    """The gradient of the logits."""
    (grad,) = torch.autograd.grad(factor * module(f, logits), logits)
    return grad


def bits(*shape, **settings):
    return torch.randn(*shape, **settings).requires_grad_()


@pytest.mark.parametrize("make", LEARNING)
def test_resuming_gives_the_same_numbers(make):
    logits = bits(4, 6)
    module = make()
    for _ in range(12):
        step(module, logits)
    file = io.BytesIO()
    torch.save({"module": module.state_dict(), "rng": torch.get_rng_state()}, file)
    copied, seed = copy.deepcopy(module), torch.get_rng_state()
    pickled = io.BytesIO()
    torch.save(module, pickled)
    expected = [step(module, logits) for _ in range(3)]

    stored = torch.load(io.BytesIO(file.getvalue()))
    fresh = make()
    fresh.load_state_dict(stored["module"])
    used = make()
    step(used, bits(4, 6))
    used.load_state_dict(stored["module"])
    pickled.seek(0)
    whole = torch.load(pickled, weights_only=False)
    for other in (fresh, used, copied, whole):
        torch.set_rng_state(seed)
        for grad in expected:
            assert torch.equal(step(other, logits), grad)
        assert torch.equal(other.cv_numbers, module.cv_numbers)


def test_a_seed_is_enough():
    grads = []
    for _ in range(2):
        torch.manual_seed(3)
        module, logits = sgt.Rodeo(), torch.zeros(2, 5, requires_grad=True)
        grads.append(torch.stack([step(module, logits) for _ in range(4)]))
    assert torch.equal(*grads)
    assert len(grads[0].unique(dim=0)) == 4


@pytest.mark.parametrize("make", LEARNING)
def test_adapts_in_backward_and_in_training_only(make):
    logits, module = bits(4, 6), make()
    value = module(f, logits)
    before = module.cv_numbers.clone()
    module.eval()
    value.backward()
    assert torch.equal(module.cv_numbers, before)
    module.train()
    with torch.no_grad():
        assert not module(f, logits).requires_grad
    assert torch.equal(module.cv_numbers, before)
    module(f, logits).backward()
    assert not torch.equal(module.cv_numbers, before)


@pytest.mark.parametrize("make", LEARNING)
def test_several_backward_passes(make):
    calls = []

    def counted(x):
        calls.append(torch.is_grad_enabled())
        return f(x)

    logits, module = bits(4, 6), make()
    value = module(counted, logits)
    value.backward(retain_graph=True)
    first, adapted, evaluations = logits.grad.clone(), module.cv_numbers.clone(), len(calls)
    (2 * value).backward()
    assert torch.allclose(logits.grad, 3 * first)
    assert torch.equal(module.cv_numbers, adapted)
    assert len(calls) == evaluations == (2 if make is sgt.Bronco else 1)
    assert calls == [True] + [False] * (evaluations - 1)  # further points without a graph


@pytest.mark.parametrize("make", LEARNING)
@pytest.mark.parametrize("factor", [-1.0, 2.0**-10])
def test_any_factor(make, factor):
    """A factor (a power of two) scales the gradient exactly, and does not change what is
    learned."""
    outcomes = []
    for by in (1.0, factor):
        torch.manual_seed(1)
        logits, module = torch.zeros(4, 6, requires_grad=True), make()
        for _ in range(3):
            grad = step(module, logits, by)
        outcomes.append((grad, module.cv_numbers))
    (grad, learned), (scaled, learned_scaled) = outcomes
    assert torch.allclose(scaled, factor * grad, rtol=1e-4, atol=1e-7 * abs(factor))
    assert torch.allclose(learned, learned_scaled, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("make", LEARNING)
def test_no_factor(make):
    logits, module = torch.zeros(4, 6, requires_grad=True), make()
    for _ in range(3):
        assert not step(module, logits, 0.0).any()


def test_accumulated_gradients():
    """Two halves of a batch give the same gradient one after the other as in one loss."""
    module = sgt.Bronco().eval()
    logits = bits(6, 5)
    step(module, logits)  # creates the control variates
    torch.manual_seed(2)
    for half in logits.split(3):
        (module(f, half) / 2).backward()
    one, logits.grad = logits.grad, None
    torch.manual_seed(2)
    sum(module(f, half) / 2 for half in logits.split(3)).backward()
    assert torch.allclose(logits.grad, one)


def test_values_that_were_drawn_before_the_buffers_moved_on():
    """Each backward pass adds its statistics to the present buffers."""
    module, logits = sgt.Bronco(), bits(6, 5)
    step(module, logits)
    first = module.cv_numbers.clone()
    values = []
    for _ in range(2):
        torch.manual_seed(2)
        values.append(module(f, logits))
    values[0].backward()
    second = module.cv_numbers.clone()
    values[1].backward()
    assert not torch.allclose(second, first)
    assert torch.allclose(module.cv_numbers - second, second - first, atol=1e-5)


def test_buffers_that_change_in_place_before_the_backward_pass():
    """After load_state_dict, the statistics of the draw are added to the loaded buffers."""
    module, logits = sgt.Bronco(), bits(6, 5)
    step(module, logits)
    loaded = module.cv_numbers.clone()
    step(module, logits)
    before, other = module.cv_numbers.clone(), copy.deepcopy(module)
    for each in (module, other):
        torch.manual_seed(2)
        value = each(f, logits)
        if each is other:
            each.cv_numbers.copy_(loaded)
        value.backward()
    seen = module.cv_numbers - before
    assert seen.abs().max() > 0.1
    assert torch.allclose(other.cv_numbers, loaded + seen, atol=1e-5)


def test_direct_dependence_is_added():
    logits = torch.zeros(5, requires_grad=True)
    value = sgt.RLOO(2)(lambda x: x.sum(-1) * 0 + (logits**2 + logits).sum(), logits)
    value.backward()
    assert torch.allclose(logits.grad, torch.ones(5))


def test_nothing_is_computed_twice():
    """There is one forward and one backward pass, for the logits and for f's own parameters."""
    forward, backward = [], []
    layer = torch.nn.Linear(6, 3)
    layer.register_forward_hook(lambda *_: forward.append(1))
    layer.register_full_backward_hook(lambda *_: backward.append(1))
    logits = bits(4, 6)
    sgt.Rodeo(2)(lambda x: layer(x).tanh().sum(-1), logits).backward()
    assert (len(forward), len(backward)) == (1, 1)
    assert logits.grad.any()
    assert layer.weight.grad.any()


def test_only_what_is_asked_for():
    layer, logits = torch.nn.Linear(6, 1), bits(4, 6)
    module = sgt.Rodeo(2)
    of_layer = lambda x: layer(x)[..., 0]
    value = module(of_layer, logits.detach())
    value.backward()
    assert layer.weight.grad.any()
    before = layer.weight.grad.clone()
    step(module, logits, f=of_layer)
    assert torch.equal(layer.weight.grad, before)


def test_f_that_only_counts():
    """RLOO needs values only: f may return integers without a graph."""
    logits = bits(5000, 4)
    value = sgt.RLOO(4)(lambda x: (x.detach() > 0.5).sum(-1), logits)
    value.backward()
    assert value.dtype == torch.float32
    p = torch.sigmoid(logits.detach())
    assert abs(float((5000 * logits.grad - p * (1 - p)).mean())) < 0.02


def test_random_f_at_a_flip():
    """f gets the same random numbers as at the sample, so that noise cancels."""
    noises = []

    def noisy(x):
        noise = torch.randn(x.shape[:-1])
        noises.append(noise)
        return f(x) + 100 * noise

    logits = bits(4, 6)
    value = sgt.Bronco(1, flips=2)(noisy, logits)
    torch.randn(3)
    value.backward()
    assert len(noises) == 3
    assert torch.equal(noises[0], noises[1])
    assert torch.equal(noises[0], noises[2])
    after = torch.randn(3)
    assert not torch.equal(after, noises[0].ravel()[:3])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_types(dtype):
    logits = bits(4, 6, dtype=dtype)
    for module in (sgt.RLOO(), sgt.Rodeo(), sgt.Bronco(), sgt.Lariat()):
        value = module(f, logits)
        value.backward()
        assert value.dtype == logits.grad.dtype == dtype
        assert torch.isfinite(logits.grad).all()
        if module.cv is not None:
            double = dtype == torch.float64
            assert module.cv_numbers.dtype == (torch.float64 if double else torch.float32)


def test_casting_a_module():
    module = sgt.Rodeo()
    step(module, bits(6))
    assert module.double().cv_numbers.dtype == torch.float64
    step(module, bits(6))
    step(module, bits(6, dtype=torch.float64))
    assert module.cv_numbers.dtype == torch.float64
    numbers = module.float().cv_numbers
    assert torch.equal(module.bfloat16().cv_numbers, numbers)
    assert module.cv_counts.dtype == torch.int32


def test_a_step_that_overflows_leaves_no_trace():
    logits, module = bits(4, 6), sgt.Bronco()
    step(module, logits)
    before = module.cv_numbers.clone()
    assert not step(module, logits, f=lambda x: f(x) * torch.inf).isfinite().all()
    assert step(module, logits, factor=torch.inf).isnan().all()
    assert torch.equal(module.cv_numbers, before)
    assert step(module, logits).isfinite().all()


@pytest.mark.parametrize(
    ("dist", "states"),
    [
        (lambda: bits(4, 6), (2, 4, 6)),
        (lambda: td.Bernoulli(logits=bits(6)), (2, 6)),
        (lambda: td.Bernoulli(probs=torch.full((6,), 0.3).requires_grad_()), (2, 6)),
        (lambda: td.Independent(td.Bernoulli(logits=bits(4, 6)), 1), (2, 4, 6)),
        (lambda: td.Independent(td.Bernoulli(logits=bits(4, 3, 2)), 2), (2, 4, 3, 2)),
        (lambda: td.OneHotCategorical(logits=bits(4, 6, 3)), (2, 4, 6, 3)),
        (lambda: td.Categorical(logits=bits(4, 6, 3)), (2, 4, 6, 3)),
        (lambda: td.Independent(td.OneHotCategorical(logits=bits(4, 2, 3, 3)), 2), (2, 4, 2, 3, 3)),
        (lambda: bits(0, 6), (2, 0, 6)),
        (lambda: bits(3, 6).T.contiguous().T, (2, 3, 6)),
        (lambda: bits(25)[1:].reshape(4, 6), (2, 4, 6)),
    ],
)
def test_distributions(dist, states):
    axes = len(states) - 1 - (states[1:2] in ((4,), (0,), (3,)))
    seen = []

    def f(x):
        seen.append(tuple(x.shape))
        return (x**2).sum(tuple(range(-axes, 0)))

    for module in (sgt.RLOO(2), sgt.Rodeo(2), sgt.Bronco(2)):
        value = module(f, dist())
        value.backward()
        assert torch.isfinite(value)
    assert set(seen) == {states}


def test_probabilities_get_their_gradient():
    probs = torch.full((20_000, 3), 0.3, requires_grad=True)
    dist = td.Bernoulli(probs=probs)
    (20_000 * sgt.Bronco()(lambda x: x @ torch.tensor([1.0, 2.0, 3.0]), dist)).backward()
    assert torch.allclose(probs.grad.mean(0), torch.tensor([1.0, 2.0, 3.0]), atol=0.1)


class TestErrors:
    """Error messages say what was given, what is allowed and what to do."""

    def test_distribution(self):
        for dist in (td.Normal(0.0, 1.0), td.Independent(td.Poisson(torch.ones(3)), 1), 3.0):
            with pytest.raises(TypeError, match=r"Pass torch\.distributions\.Bernoulli"):
                sgt.RLOO()(f, dist)
        with pytest.raises(ValueError, match=r"unsqueeze\(-2\)"):
            sgt.RLOO()(f, td.Categorical(logits=torch.zeros(3)))
        with pytest.raises(TypeError, match="floating-point"):
            sgt.RLOO()(f, torch.zeros(3, dtype=torch.int64))
        with pytest.raises(ValueError, match="DisARM needs independent bits, but was given Categ"):
            sgt.DisARM()(f, td.Categorical(logits=torch.zeros(1, 2, 3)))

    @pytest.mark.parametrize("make", LEARNING)
    def test_f_that_detaches(self, make):
        layer = torch.nn.Linear(6, 1)
        with pytest.raises(RuntimeError, match="detaches"):
            make()(lambda x: f(x.detach()), bits(6))
        value = make()(lambda x: layer(x.detach())[..., 0], bits(6))
        with pytest.raises(RuntimeError, match="detaches"):
            value.backward()

    def test_what_f_returns(self):
        with pytest.raises(ValueError, match=r"of shape \(2, 4\), but returned shape \(2,\)"):
            sgt.RLOO()(lambda x: x.sum((-1, -2)), bits(4, 6))
        with pytest.raises(TypeError, match=r"torch\.as_tensor"):
            sgt.RLOO()(lambda x: x.detach().numpy().sum(-1), bits(4, 6))
        with pytest.raises(ValueError, match="on cpu, but returned values on meta"):
            sgt.RLOO()(lambda x: f(x).to("meta"), bits(4, 6))

    def test_context_elsewhere(self):
        context = torch.ones(4, 2, device="meta")
        with pytest.raises(ValueError, match="context is on meta"):
            sgt.Lariat(2, context_size=2)(f, bits(4, 6), context)

    def test_logits_changed_before_backward(self):
        logits = bits(4, 6)
        value = sgt.RLOO()(f, logits)
        with torch.no_grad():
            logits.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            value.backward()

    def test_another_distribution(self):
        module = sgt.Bronco()
        step(module, bits(6))
        with pytest.raises(ValueError, match="estimator of its own"):
            step(module, bits(7))
        other = sgt.Rodeo()
        other.load_state_dict(module.state_dict())
        with pytest.raises(ValueError, match="same settings"):
            step(other, bits(6))

    @pytest.mark.parametrize(
        ("make", "name"),
        [
            (lambda: sgt.Estimator(sg.UnorderedSet(2)), "UnorderedSet does not exist"),
            (lambda: sgt.Estimator(sg.DisARMSB(2)), "DisARMSB does not exist"),
            (lambda: sgt.Rodeo(operator=sg.Barker()), "was given a Barker"),
            (lambda: sgt.Rodeo(operator=sg.Gibbs(num_coordinates=3)), "num_coordinates=3"),
            (lambda: sgt.Rodeo(surrogate=sg.ExactSurrogate()), "was given a ExactSurrogate"),
            (lambda: sgt.Estimator(3), "such as steingrad.RLOO"),
        ],
    )
    def test_what_is_in_jax_only(self, make, name):
        with pytest.raises(TypeError, match=name):
            make()

    def test_second_derivatives(self):
        logits = bits(6)
        (grad,) = torch.autograd.grad(sgt.RLOO()(f, logits), logits, create_graph=True)
        with pytest.raises(RuntimeError, match="second derivative"):
            grad.sum().backward()


def test_settings_are_those_of_jax():
    module = sgt.Rodeo(3, operator=sg.Gibbs(scan="own"))
    assert module.estimator == sg.Rodeo(num_samples=3, operator=sg.Gibbs(scan="own"))
    assert "own" in repr(module)
    with pytest.raises(ValueError, match="RLOO needs"):
        sgt.RLOO(1)


def test_no_reference_cycles():
    """Graphs, which hold a batch's activations, are freed with the value."""
    import gc
    import weakref

    class Big:
        pass

    gc.collect()
    gc.disable()
    try:
        big = Big()
        alive = weakref.ref(big)
        module, logits = sgt.Bronco(), bits(6)
        value = module(lambda x, big=big: f(x), logits)
        value.backward()
        del value, big
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("make", [sgt.RLOO, sgt.Bronco, sgt.Lariat, sgt.Rodeo])
def test_autocast(make):
    """PyTorch uses half precision at the samples and at the flips. Gradients are float32, and close
    to those without autocast."""
    gradients, types = [], set()
    for enabled in (False, True):
        torch.manual_seed(3)
        encoder, decoder = torch.nn.Linear(6, 8), torch.nn.Linear(8, 5)
        y, estimator = torch.rand(400, 6), make()

        def f(x, decoder=decoder, enabled=enabled):
            out = decoder(x)
            types.add((enabled, out.dtype))
            return -(out.float() ** 2).sum(-1)

        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            value = estimator(f, encoder(y))
        value.backward()
        assert value.dtype == torch.float32
        assert encoder.weight.grad.dtype == decoder.weight.grad.dtype == torch.float32
        parts = encoder.weight.grad, decoder.weight.grad
        gradients.append(torch.cat([part.flatten() for part in parts]))
    assert types == {(False, torch.float32), (True, torch.bfloat16)}
    assert torch.cosine_similarity(*gradients, dim=0) > 0.98


@pytest.mark.parametrize("make", [lambda: sgt.RLOO(4), sgt.DisARM, *LEARNING])
def test_every_pass_gives_the_same_estimate(make):
    """In-place changes of the gradients between passes make no difference."""
    torch.manual_seed(0)
    logits = bits(4, 5)
    value = make()(f, logits)
    value.backward(retain_graph=True)
    first = logits.grad.clone()
    for count in (2, 3, 4):
        value.backward(retain_graph=True)
        torch.testing.assert_close(logits.grad, count * first)
    logits.grad.zero_()
    value.backward(retain_graph=True)
    torch.testing.assert_close(logits.grad, first)
    (gradient,) = torch.autograd.grad(value, logits, retain_graph=True)
    gradient.mul_(10)
    torch.testing.assert_close(torch.autograd.grad(value, logits)[0], first)


@pytest.mark.parametrize("factor", [1e-8, 1e-40])
def test_a_first_pass_with_hardly_any_factor(factor):
    half = torch.zeros(4, 5, dtype=torch.float16, requires_grad=True)
    value = sgt.RLOO(3)(lambda x: f(x.float()), half)
    (value * factor).backward(retain_graph=True)
    half.grad = None
    value.backward()
    assert bool(half.grad.isfinite().all())
    assert bool((half.grad != 0).any())
    logits = bits(4, 5)
    value = sgt.Bronco()(f, logits)
    (value * factor).backward()
    assert bool(logits.grad.isfinite().all())


@pytest.mark.parametrize("make", [sgt.RLOO, sgt.DisARM, sgt.Bronco])
def test_inference_mode(make):
    with torch.inference_mode():
        assert make()(f, torch.zeros(4, 6)).shape == ()
