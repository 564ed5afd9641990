"""What PyTorch users ask of the estimators beyond a scalar and its gradient."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: run `make test-torch`")

import subprocess
import sys

from torch import distributions as td
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import steingrad.torch as sgt

ON_BITS = {
    "reinforce": lambda **k: sgt.Reinforce(2, baseline="moving_average", **k),
    "rloo": lambda **k: sgt.RLOO(3, **k),
    "disarm": sgt.DisARM,
    "arms": sgt.ARMS,
    "double_cv": sgt.DoubleCV,
    "local_expectation": sgt.LocalExpectation,
    "bronco": sgt.Bronco,
    "bronco_values": lambda **k: sgt.Bronco(use_gradient=False, **k),
    "lariat": sgt.Lariat,
    "rodeo": sgt.Rodeo,
    "rebar": sgt.Rebar,
    "relax": sgt.Relax,
    "modified_relax": sgt.ModifiedRelax,
    "straight_through": sgt.StraightThrough,
    "gumbel_softmax": sgt.GumbelSoftmax,
}
ON_CATEGORIES = {name: make for name, make in ON_BITS.items() if name not in ("disarm", "arms")}
ON_CATEGORIES |= {"carms": sgt.CARMS, "disarm_iw": sgt.DisARMIW, "reinmax": sgt.ReinMax}


def bits(*shape, **settings):
    return torch.randn(*shape, **settings).requires_grad_()


def f(x):
    return -((x - 0.45) ** 2).sum(-1) + x[..., 0] * x[..., 1]


def one_hot(logits):
    # Without its checks, for which the host waits. (OneHotCategorical checks in any case.)
    return td.Categorical(logits=logits, validate_args=False)


class Ops(TorchDispatchMode):
    """Records the operations that wait for a device, or copy between devices."""

    def __init__(self):
        super().__init__()
        self.found, self.count = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        name = func.name()
        if "_local_scalar_dense" in name or "nonzero" in name or "is_nonzero" in name:
            self.found.append(name)
        device = (kwargs or {}).get("device")
        if "_to_copy" in name and device is not None and device != args[0].device:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ON_BITS)
def test_the_host_never_waits_for_bits(name):
    module, logits = ON_BITS[name](), bits(4, 6)
    module(f, logits).backward()  # the first call makes the buffers
    with Ops() as ops:
        module(f, logits).backward()
    assert ops.found == []
    assert ops.count > 10


@pytest.mark.parametrize("name", ON_CATEGORIES)
def test_the_host_never_waits_for_categories(name):
    module, logits = ON_CATEGORIES[name](), bits(4, 6, 3)
    of_one_hot = lambda x: f(x.flatten(-2))
    module(of_one_hot, one_hot(logits)).backward()
    with Ops() as ops:
        module(of_one_hot, one_hot(logits)).backward()
    assert ops.found == []


def test_waiting_is_seen():
    with Ops() as ops:
        torch.ones(3).sum().item()
    assert ops.found == ["aten::_local_scalar_dense"]


COMPILED = """
import torch, steingrad.torch as sgt
from torch import distributions as td
from jax._src import xla_bridge

layer = torch.nn.Linear(15, 1)
bits, values = torch.zeros(4, 15), torch.zeros(4, 5, 3)
categories = lambda l: td.OneHotCategorical(logits=l, validate_args=False)
cases = {
    "bits": (bits, lambda l: l, (15,), 2),
    "categories": (values, categories, (5,), 3),
}
f = lambda x: layer(x.flatten(-2) if x.shape[-1] == 3 else x)[..., 0].tanh()
for make, kinds in MAKES:
    for kind in kinds.split():
        zeros, dist, event_shape, num_values = cases[kind]
        module, logits = make(event_shape, num_values), zeros.clone().requires_grad_()
        step = lambda l: module(f, dist(l))
        torch._dynamo.reset()
        before = module.cv_numbers.clone()
        torch.compile(step, fullgraph=True, backend="aot_eager")(logits).backward()
        assert logits.grad.isfinite().all() and layer.weight.grad.any(), module
        assert not len(before) or not torch.equal(module.cv_numbers, before), module
        before = module.cv_numbers.clone()
        assert torch.func.grad(step)(zeros).shape == zeros.shape
        whole = lambda l: module(f, td.Independent(dist(l), 1) if kind == "categories" else l)
        found = torch.func.vmap(torch.func.grad(whole), randomness="different")(zeros)
        assert found.shape == zeros.shape and torch.equal(module.cv_numbers, before), module
        print(type(module).__name__, kind)
assert not xla_bridge._backends, "a JAX program ran"
print("done")
"""
MAKES = """
MAKES = [(lambda s, m, make=make: make(event_shape=s, num_values=m), kinds) for make, kinds in [
    (sgt.RLOO, "bits categories"),
    (lambda **k: sgt.Reinforce(2, baseline="moving_average", **k), "bits"),
    (lambda **k: sgt.Reinforce(2, baseline="learned", **k), "bits"),
    (sgt.StraightThrough, "categories"),
    (sgt.ReinMax, "categories"),
    (sgt.GumbelSoftmax, "categories"),
    (lambda **k: sgt.GumbelSoftmax(straight_through=True, **k), "bits"),
    (sgt.DisARM, "bits"),
    (sgt.ARMS, "bits"),
    (sgt.CARMS, "categories"),
    (sgt.DisARMIW, "categories"),
    (sgt.DoubleCV, "bits"),
    (sgt.LocalExpectation, "bits"),
    (sgt.Bronco, "bits categories"),
    (lambda **k: sgt.Bronco(use_gradient=False, **k), "categories"),
    (sgt.Lariat, "bits categories"),
    (sgt.Rodeo, "bits categories"),
    (lambda **k: sgt.Rodeo(coefficients="least_squares", **k), "bits"),
    (sgt.Rebar, "bits"),
    (sgt.Relax, "categories"),
    (sgt.ModifiedRelax, "bits"),
]]
"""


def test_compile_and_transforms(tmp_path):
    """A step compiles to one graph; `torch.func.grad` and `vmap` go through it; and no JAX program
    runs. The checks of annotations in other tests cannot be compiled, so this is a process of its
    own."""
    start, end = COMPILED.split("layer = ", 1)
    (tmp_path / "program.py").write_text(f"{start}{MAKES}\nlayer = {end}")
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=500
    )
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr


def test_aux():
    logits, module = bits(4, 6), sgt.Bronco(2)

    def with_aux(x):
        return f(x), {"mean": x.mean(), "name": "aux"}

    value, aux = module(with_aux, logits, has_aux=True)
    value.backward()
    assert not aux["mean"].requires_grad
    assert aux["name"] == "aux"
    with pytest.raises(TypeError, match="a pair"):
        module(f, logits, has_aux=True)


@pytest.mark.parametrize("make", [sgt.RLOO, sgt.Bronco, sgt.Lariat, sgt.Rodeo])
def test_reductions(make):
    """The factor of each element of the batch scales its estimate."""
    logits, weights = bits(4, 6), torch.tensor([1.0, -2.0, 0.0, 0.5])
    module = make(event_shape=(6,)).eval()
    grads = []
    for reduction in ("none", "sum", "mean"):
        torch.manual_seed(1)
        value = module(f, logits, reduction=reduction)
        assert value.shape == ((4,) if reduction == "none" else ())
        total = (weights * value).sum() if reduction == "none" else value
        grads.append(torch.autograd.grad(total, logits)[0])
    torch.testing.assert_close(grads[0], weights[:, None] * grads[1])
    torch.testing.assert_close(grads[2], grads[1] / 4)
    with pytest.raises(ValueError, match="'average'"):
        module(f, logits, reduction="average")


def test_an_element_without_a_factor_is_not_learned_from():
    """f may be absurd where the loss does not use it."""
    learned = []
    for worst in (1.0, 1e6):
        torch.manual_seed(0)
        module, logits = sgt.Bronco(event_shape=(6,)), torch.zeros(4, 6, requires_grad=True)
        scale = torch.tensor([1.0, 1.0, worst, 1.0])
        for _ in range(3):
            value = module(lambda x, scale=scale: f(x) * scale, logits, reduction="none")
            (value * torch.tensor([1.0, 1.0, 0.0, 1.0])).sum().backward()
        learned.append(module.cv_numbers)
    gram = learned[0][: 6 * 9]
    torch.testing.assert_close(gram[8::9], learned[1][: 6 * 9][8::9], rtol=1, atol=1)
    assert bool(learned[1].isfinite().all())


def test_nesting():
    """f may call another estimator, whose states have the outer samples as a batch."""
    outer, inner = sgt.Bronco(2), sgt.Bronco(2)
    logits, layer = bits(4, 6), nn.Linear(6, 5)

    def f_outer(x):
        return inner(lambda z: (z - 0.4).square().sum(-1), layer(x), reduction="none")

    for _ in range(2):
        outer(f_outer, logits).backward()
    assert logits.grad.any()
    assert layer.weight.grad.any()
    assert inner.cv.flips > 0


def test_nested_gradients_are_unbiased():
    """The gradient of the outer logits through an inner expectation."""
    torch.manual_seed(0)
    outer, inner = sgt.RLOO(2), sgt.RLOO(2)
    logits = torch.full((20_000, 2), 0.3, requires_grad=True)
    to_inner = lambda x: 2 * x - 1
    f_outer = lambda x: inner(lambda z: z[..., 0] * (1 + z[..., 1]), to_inner(x), reduction="none")
    outer(f_outer, logits, reduction="sum").backward()
    exact_logits = torch.tensor([0.3, 0.3], requires_grad=True)
    p = torch.sigmoid(exact_logits)
    expected = torch.zeros(())
    for a in (0.0, 1.0):
        for b in (0.0, 1.0):
            q = torch.sigmoid(torch.tensor([2 * a - 1, 2 * b - 1]))
            weight = (p[0] if a else 1 - p[0]) * (p[1] if b else 1 - p[1])
            expected = expected + weight * q[0] * (1 + q[1])
    expected.backward()
    error = logits.grad.std(0) / len(logits) ** 0.5
    assert bool(((logits.grad.mean(0) - exact_logits.grad).abs() < 4 * error).all())


def test_flatten():
    """Batch normalisation and convolutions take one leading axis."""
    network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 1))
    shapes = []

    def f_flat(x):
        shapes.append(tuple(x.shape))
        return network(x[:, None])[:, 0]

    dist = td.Independent(td.Bernoulli(logits=bits(5, 4, 4)), 2)
    sgt.Bronco(2)(f_flat, dist, flatten=True).backward()
    assert set(shapes) == {(10, 4, 4)}
    with pytest.raises(ValueError, match=r"of shape \(10,\)"):
        sgt.RLOO(2)(lambda x: x.sum(), dist, flatten=True)


def test_batch_norm_sees_each_sample_once():
    """The running statistics are moved by f at the samples, and not at the flips."""
    norm, logits = nn.BatchNorm1d(6), bits(8, 6)
    of_norm = lambda x: norm(x).tanh().sum(-1)
    means = []
    for module in (sgt.Bronco(1, flips=3), sgt.Reinforce(1)):
        norm.reset_running_stats()
        torch.manual_seed(1)
        module(of_norm, logits, flatten=True).backward()
        assert norm.num_batches_tracked == 1
        assert norm.track_running_stats
        means.append(norm.running_mean.clone())
    assert torch.equal(*means)


def test_returned_samples():
    logits = bits(4, 6)
    value, aux, x = sgt.Bronco(2)(lambda x: (f(x), 1), logits, has_aux=True, return_samples=True)
    value.backward()
    assert x.shape == (2, 4, 6)
    assert aux == 1
    x.detach().sum()
    with pytest.raises(RuntimeError, match="Something other than f's value"):
        (x * 2).sum().backward()
    with torch.no_grad():
        assert not sgt.RLOO()(f, logits, return_samples=True)[1].requires_grad


def test_indices():
    """Categories as whole numbers give the same gradient as one-hot vectors."""
    logits, table = bits(4, 6, 5), torch.randn(5, 3)
    grads, seen = [], []
    for indices in (True, False):
        torch.manual_seed(2)

        def of_table(x, indices=indices):
            seen.append((x.dtype, tuple(x.shape)))
            rows = table[x] if indices else x @ table
            return rows.sum(-2).square().sum(-1)

        value = sgt.RLOO(3)(of_table, one_hot(logits), indices=indices)
        grads.append(torch.autograd.grad(value, logits)[0])
    torch.testing.assert_close(*grads)
    assert seen == [(torch.int64, (3, 4, 6)), (torch.float32, (3, 4, 6, 5))]
    embed = nn.EmbeddingBag(5, 3, mode="sum")
    by_rows = lambda i: embed(i.flatten(0, -2)).square().sum(-1).reshape(i.shape[:-1])
    sgt.Bronco(use_gradient=False)(by_rows, one_hot(logits), indices=True).backward()
    for module, dist in ((sgt.Lariat(), one_hot(logits)), (sgt.RLOO(), bits(3))):
        with pytest.raises(ValueError, match="indices=True"):
            module(f, dist, indices=True)


class TestAxes:
    """How many axes belong to one state is never guessed where both are likely."""

    def test_a_batch_of_single_variables(self):
        logits = bits(4, 3)
        for dist in (td.Categorical(logits=logits), td.OneHotCategorical(logits=logits)):
            with pytest.raises(ValueError, match=r"unsqueeze\(-2\).*event_ndim=1"):
                sgt.RLOO()(lambda x: x[..., 0], dist)
            value = sgt.Bronco()(lambda x: x[..., 0], dist, event_ndim=0)
            (value + sgt.RLOO()(lambda x: x[..., 0].sum(-1), dist, event_ndim=1)).backward()
        assert logits.grad.shape == (4, 3)

    def test_shapes(self):
        shapes = []
        f = lambda x: shapes.append(tuple(x.shape)) or x.flatten(1).sum(-1) * 0 + 1
        flat = lambda x: shapes.append(tuple(x.shape)) or x.sum() * torch.ones(x.shape[:2])
        sgt.RLOO(2)(lambda x: shapes.append(tuple(x.shape)) or x, bits(4), event_ndim=0)
        sgt.RLOO(2)(flat, td.Categorical(logits=bits(4, 3)), event_ndim=0)
        sgt.RLOO(2)(flat, td.Categorical(logits=bits(4, 3)), event_ndim=0, indices=True)
        sgt.RLOO(2)(f, bits(5, 3), event_ndim=2)
        assert shapes == [(2, 4), (2, 4, 3), (2, 4), (2, 5, 3)]

    def test_errors(self):
        with pytest.raises(ValueError, match="event_ndim=3"):
            sgt.RLOO()(f, bits(5, 3), event_ndim=3)
        with pytest.raises(ValueError, match="Independent"):
            sgt.RLOO()(f, td.Independent(td.Bernoulli(logits=bits(5, 3)), 1), event_ndim=1)


class TestSamplers:
    """Samples that are differentiated by themselves."""

    @pytest.mark.parametrize("make", [sgt.StraightThrough, sgt.ReinMax, sgt.GumbelSoftmax])
    def test_drop_in(self, make):
        """The same gradient as through f, for the same random numbers."""
        logits, table = bits(7, 4), torch.randn(4)
        grads = []
        for drop_in in (True, False):
            torch.manual_seed(3)
            if drop_in:
                loss = (make()(logits) * table).sum(-1).square().sum()
            else:
                of_x = lambda x: (x * table).sum(-1).square()
                loss = make()(of_x, one_hot(logits), event_ndim=0, reduction="sum")
            grads.append(torch.autograd.grad(loss, logits)[0])
        torch.testing.assert_close(*grads)

    def test_functions(self):
        logits = bits(2, 3, 4)
        hard = sgt.reinmax(logits), sgt.straight_through(logits)
        for x in (*hard, sgt.gumbel_softmax(logits, straight_through=True)):
            assert x.shape == logits.shape
            assert torch.equal(x.sort(-1).values, torch.eye(4)[3].expand(2, 3, 4))
            (x * torch.randn(4)).sum().backward()
        soft = sgt.gumbel_softmax(logits, temperature=0.7)
        assert bool(((soft > 0) & (soft < 1)).all())
        x = sgt.StraightThrough()(td.Bernoulli(logits=bits(5)))
        assert x.shape == (5,)

    def test_reinmax_is_that_of_the_paper(self):
        """Algorithm 2 of Liu et al. 2023, written out."""
        logits = bits(6, 4, dtype=torch.float64)
        x = sgt.reinmax(logits)
        (grad,) = torch.autograd.grad((x * torch.arange(4.0)).sum(), logits)
        p = logits.softmax(-1)
        halfway = ((p + x) / 2).detach()
        p1 = (torch.log(halfway) + logits - logits.detach()).softmax(-1)
        surrogate = 2 * p1 - 0.5 * p
        (expected,) = torch.autograd.grad((surrogate * torch.arange(4.0)).sum(), logits)
        torch.testing.assert_close(grad, expected)

    def test_unbiased_ones_need_f(self):
        with pytest.raises(TypeError, match=r"value = estimator\(f, dist\)"):
            sgt.Bronco()(torch.zeros(3, 4))
        with pytest.raises(ValueError, match="num_samples=1"):
            sgt.ReinMax(2)(torch.zeros(3, 4))


class TestBuffers:
    def test_sizes_from_the_construction_on(self):
        """Averaged models copy buffers, which must have their sizes then."""
        for make in (sgt.Bronco, sgt.Rodeo, sgt.Lariat):
            model = make(event_shape=(6,))
            both = nn.ModuleList([model, nn.Linear(1, 1)])
            average = torch.optim.swa_utils.AveragedModel(both)
            size = len(model.cv_numbers)
            model(f, bits(4, 6)).backward()
            average.update_parameters(both)
            average.update_parameters(both)
            assert size == len(model.cv_numbers) > 0
            assert torch.equal(average.module[0].cv_numbers, model.cv_numbers)
            fresh = make(event_shape=(6,))
            fresh.load_state_dict(model.state_dict(), strict=True)
            assert torch.equal(fresh.cv_numbers, model.cv_numbers)
        values = sgt.Bronco(event_shape=(2, 3), num_values=4)
        assert values.cv.cross.shape == (6, 3)
        values(lambda x: x[..., 0].sum((-1, -2)), td.Independent(one_hot(bits(5, 2, 3, 4)), 2))

    def test_first_call_without_a_gradient(self):
        """Any call gives the buffers their sizes, as for PyTorch's lazy modules."""
        model = sgt.Bronco()
        with torch.inference_mode():
            model(f, torch.zeros(4, 6))
        size = len(model.cv_numbers)
        both = nn.ModuleList([model, nn.Linear(1, 1)])
        average = torch.optim.swa_utils.AveragedModel(both)
        model(f, bits(4, 6)).backward()
        average.update_parameters(both)
        assert len(average.module[0].cv_numbers) == size

    def test_schedule_of_the_learning_rate(self):
        module, logits = sgt.DoubleCV(cv_learning_rate=lambda count: 0.1 / (1 + count)), bits(4, 6)
        sizes = []
        for _ in range(3):
            before = module.cv.alpha.clone() if module.cv else torch.zeros(())
            module(f, logits).backward()
            sizes.append(float((module.cv.alpha - before).abs()))
        assert sizes[0] == pytest.approx(0.1, rel=1e-3)
        assert sizes[2] < 0.05


def test_checkpointing():
    layer, module = nn.Linear(6, 6), sgt.Bronco(event_shape=(6,))
    data, grads = torch.randn(4, 6), []
    for use in (True, False):
        torch.manual_seed(4)
        module.eval()
        step = lambda y: module(f, layer(y))
        value = checkpoint(step, data, use_reentrant=False) if use else step(data)
        grads.append(torch.autograd.grad(value, layer.weight)[0])
    torch.testing.assert_close(*grads)


def test_samples_may_be_changed_in_place():
    """f gets samples of its own, and its gradient is that at the samples as drawn."""
    grads = []
    for in_place in (True, False):
        torch.manual_seed(5)
        logits, module = torch.zeros(4, 6, requires_grad=True), sgt.Lariat(2)
        change = (lambda x: x.mul_(2)) if in_place else (lambda x: x * 2)
        module(lambda x, change=change: f(change(x)), logits).backward()
        grads.append(logits.grad)
    torch.testing.assert_close(*grads)
