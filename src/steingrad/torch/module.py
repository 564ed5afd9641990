"""The base class of the estimators as PyTorch modules, from f to an estimate."""

import contextlib
import math
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .. import estimators as sg
from ..estimators.checks import NEEDS
from . import distributions
from .arrays import (
    GENERATORS,
    Seed,
    Surroundings,
    compute_dtype,
    expand,
    pack,
    power_of_two,
    tree_map,
    unpack,
)
from .calls import Call, Sample, Value, quiet_norms
from .derivatives import derivative, learns_here
from .distributions import Law
from .evaluated import Evaluated, stamp
from .optimizers import Adam, Optimizer

NATIVE: dict[type, type] = {}
"""The class of this package for each class of `steingrad` that it implements."""


class Estimator(nn.Module):
    r"""$E_{q_\eta}[f(x)]$ as a tensor whose `backward` makes an estimate of the gradient.

        value = estimator(f, dist)

    A call draws $K$ samples, evaluates `f` at all of them at once, and returns the mean of `f`.
    `f` maps states `[K, *batch, *event]` to values `[K, *batch]`, each state on its own. `dist` is
    a `Bernoulli`, `OneHotCategorical` or `Categorical` of `torch.distributions`, a `Subset`, or a
    tensor of logits of bits. `Independent`, or `event_ndim`, says how many of the last axes of its
    variables belong to one state.

    One backward pass gives the logits the estimate and f's own parameters their gradient. In
    training mode it also adapts the control variates, once for each value; inside `torch.func`
    transforms they are read and not adapted. The control variates are buffers. Their sizes are
    known from the first call on or, with `event_shape` (and `num_values`), from the construction
    on. An estimator that learns belongs to one distribution, such as one layer of a model.

    `steingrad.torch.Estimator(steingrad.Bronco(...))` is the same as `steingrad.torch.Bronco(...)`.

    >>> import torch, steingrad.torch as sgt
    >>> logits = torch.zeros(5, requires_grad=True)
    >>> estimator = sgt.Bronco(event_shape=(5,))
    >>> value = estimator(lambda x: -((x - 0.45) ** 2).sum(-1), logits)
    >>> (-value).backward()
    >>> value.shape, logits.grad.shape, estimator.cv.gram.shape
    (torch.Size([]), torch.Size([5]), torch.Size([5, 3, 3]))
    """

    kind: ClassVar[Any] = sg.Estimator
    """The class of `steingrad` whose settings, checks and names this estimator has."""
    cv_numbers: Any
    cv_counts: Any

    def __new__(cls, *settings: Any, **more: Any):
        if cls is Estimator:
            cls = native_class(settings)
        return super().__new__(cls)

    def __init_subclass__(cls, **keywords: Any):
        super().__init_subclass__(**keywords)
        if "kind" in vars(cls):
            NATIVE[cls.kind] = cls

    def __init__(
        self,
        *settings: Any,
        cv_learning_rate: Any = 1e-3,
        event_shape: tuple[int, ...] | None = None,
        num_values: int = 2,
        **more: Any,
    ):
        super().__init__()
        given = settings[0] if settings and isinstance(settings[0], sg.Estimator) else None
        self.estimator: Any = self.kind(*settings, **more) if given is None else given
        """The estimator of `steingrad` that has the same settings."""
        self.cv_learning_rate = cv_learning_rate
        # The initial control variates are fixed when the module is built, like any weights.
        self._seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_())
        self._shapes: Any = None
        self._met: Any = None
        self._optimizer: Optimizer | None = None
        # Empty until the sizes are known, but not None, because DDP finds the buffers at its start.
        self.register_buffer("cv_numbers", torch.zeros(0))
        self.register_buffer("cv_counts", torch.zeros(0, dtype=torch.int32))
        self.check_settings()
        if event_shape is not None:
            size = math.prod(event_shape)
            bits = num_values == 2
            logits = torch.zeros((size,) if bits else (size, num_values))
            law = distributions.Bernoulli(logits) if bits else distributions.Categorical(logits)
            self.materialize(law)

    # What a subclass defines, in this order. Only `gradient` is required.

    @property
    def num_samples(self) -> int:
        return self.estimator.num_samples

    @property
    def relaxed_samples(self) -> bool:
        """Whether the samples are points between the states."""
        return not self.estimator.samples_are_states

    def check_settings(self) -> None:
        """Raise if a setting exists in JAX only."""

    def init(self, dist: Law, seed: Any) -> Any:
        """The initial control variates, a tree of tensors; `None` if nothing is learned."""
        return None

    def cv_optimizer(self, cv: Any) -> Optimizer:
        """The optimiser that updates the control variates."""
        return Adam(cv, self.cv_learning_rate)

    def draw(self, dist: Law, generator: Any) -> Tensor:
        """The points at which to evaluate f, as `dist` stores states."""
        return dist.draw(self.num_samples, generator)

    def noise(self, dist: Law, generator: Any) -> Tensor | None:
        """The random numbers of the estimate; `None` if it needs none."""
        return None

    def propose(self, cv: Any, dist: Law, at: Evaluated) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Returns further points `[n, K, *batch, ...]`, and a memo for `gradient` and `adapt`,
        numbers of shape `[n, K, *batch]`. Called only if the estimator looks further."""
        raise NotImplementedError

    def look_further(self, f: Any, between: Any, cv: Any, dist: Law, at: Evaluated) -> tuple:
        """What the estimate needs of f besides its values and gradients at the samples, as tensors
        of the shapes that `further_shapes` says. `f` takes states, as `dist` stores them, and has
        no graph; `between` takes points between the states and has one."""
        with exact(dist.logits):
            y, memo = self.propose(cv, dist, at)
        # One call for each point, so that f always sees the shape of the samples.
        return (torch.stack([f(points) for points in y]), *memo)

    def further_shapes(self, dist: Law) -> list[tuple[int, ...]]:
        """The shapes of the tensors that `look_further` returns; none if it is not called."""
        own = (self.num_further(dist), self.num_samples, *dist.batch_shape)
        return [own] * (1 + self.num_memos(dist)) if own[0] else []

    def num_further(self, dist: Law) -> int:
        """The number of further points for each sample."""
        return 0

    def num_memos(self, dist: Law) -> int:
        """The number of tensors in the memo of `propose`."""
        return 0

    def gradient(self, cv: Any, dist: Law, at: Evaluated) -> Tensor:
        """The estimate for each element of the batch, shaped like the logits."""
        raise NotImplementedError

    def adapt(self, cv: Any, dist: Law, at: Evaluated) -> tuple[Tensor, Any]:
        """Returns the estimate, and the gradient of its mean square with respect to `cv`, or `cv`
        minus its new value if it consists of sums or averages."""

        def mean_square(cv):
            grad = self.gradient(cv, dist, at)
            square, unit = relative_mean_square(grad, at)
            return square, (grad, unit)

        cv_grad, (grad, unit) = derivative(mean_square, cv)
        return grad, times_square(cv_grad, unit)

    def is_sound(self, dist: Law, at: Evaluated) -> Tensor:
        """Which elements of the batch may enter what is learned."""
        sound = at.fx.isfinite().all(0)
        if at.dfx is None:
            return sound
        return sound & at.dfx.isfinite().flatten(-dist.state_axes).all(-1).all(0)

    # What all estimators share.

    @property
    def needs_gradient(self) -> bool:
        """Whether the gradient of f at the samples is needed."""
        return bool(self.estimator.needs_gradient) and not self.estimator.relaxes

    @property
    def cv(self) -> Any:
        """The control variates, to inspect; `None` if there are none."""
        if self._shapes is None or not self.cv_numbers.numel():
            return None
        return self._tree(self.cv_numbers)

    def _tree(self, numbers: Tensor) -> Any:
        assert self._optimizer is not None
        return unpack(self._shapes, numbers[: self._optimizer.size])

    def extra_repr(self) -> str:
        return repr(self.estimator)

    def forward(
        self,
        f: Any,
        dist: Any = None,
        context: Tensor | None = None,
        *,
        event_ndim: int | None = None,
        reduction: str = "mean",
        has_aux: bool = False,
        return_samples: bool = False,
        flatten: bool = False,
        indices: bool = False,
        generator: Any = None,
        relaxation: Any = None,
    ) -> Any:
        """Returns the mean of `f`, then f's aux with `has_aux`, then the samples with
        `return_samples`.

        With `reduction="none"` there is one mean for each element of the batch, `[*batch]`, and
        with `"sum"` their sum. With `has_aux`, f returns a pair, its values and anything else,
        whose tensors are returned without a graph. With `flatten`, f gets all samples along one
        leading axis and returns values along it, as for convolutions. With `indices`, f gets
        categories as whole numbers in place of one-hot vectors. `generator` draws the samples in
        place of PyTorch's own. `relaxation` replaces f between the states, for `Rebar` and
        `Relax`.
        """
        if dist is None:
            raise TypeError(self._without_f())
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(
                f"The reduction is {reduction!r}, but must be 'mean', 'sum' or 'none'."
            )
        law = distributions.read(dist, event_ndim)
        self._check(law, context, indices)
        call = Call(f, law, has_aux, flatten, indices, self.relaxed_samples)
        state = self.materialize(law)
        constant = distributions.compute(law)
        wanted = torch.is_grad_enabled() and law.logits.requires_grad
        with torch.no_grad(), one_thread(), exact(law.logits):
            x = self.draw(constant, generator)
            noise = self.noise(constant, generator) if wanted else None
        if not wanted or not law.logits.numel():
            fx, aux = call(x)
            value = Value.reduce(fx, reduction)
            value = value + 0 * law.logits.sum() if wanted else value
            return self._outcome(value, aux, call, x, None, has_aux, return_samples)
        if context is not None:
            context = context.detach().to(constant.logits.dtype)
        # A copy, so that changes of the buffers before `backward` make no difference.
        numbers = None if state is None else state.clone()
        plan = Plan(self, law, reduction, indices, learns_here())
        surroundings = None
        if plan.looks_further and not torch.compiler.is_compiling():
            surroundings = Surroundings.here(x.device)
        shown, message = Sample.apply(plan, law.logits, x, noise, numbers, context)
        fx, aux = call.evaluate(shown)
        if self.needs_gradient and not fx.requires_grad:
            raise RuntimeError(self.detached())
        memo = ()
        if plan.looks_further:
            with torch.no_grad():
                wide = fx.detach().to(constant.logits.dtype)
                seen = Evaluated(x, wide, noise=noise, context=context)
                cv = None if numbers is None else self._cast(numbers, wide)
                seen = self._prepare(cv, constant, seen)
                again = partial(self._again, call, surroundings)
                between = call if relaxation is None else call.replaced(relaxation)
                between = partial(self._between, between, surroundings)
                memo = self.look_further(again, between, cv, constant, seen)
        value = Value.apply(plan, fx, message, *memo)
        return self._outcome(value, aux, call, x, law.logits, has_aux, return_samples)

    def _again(self, call: Call, surroundings: Surroundings | None, x: Tensor) -> Tensor:
        """f at further points, with the same random numbers as at the samples."""
        with torch.no_grad(), again(surroundings), quiet_norms():
            return call(x)[0]

    def _between(self, call: Call, surroundings: Surroundings | None, x: Tensor) -> Tensor:
        """f at points between the states, to be differentiated."""
        with again(surroundings), quiet_norms():
            return call.evaluate(call.relaxed_view(x))[0]

    def _outcome(self, value, aux, call, x, logits, has_aux, return_samples):
        found = (value, aux) if has_aux else (value,)
        if return_samples:
            found = (*found, call.returned(x, logits))
        return found if len(found) > 1 else value

    def estimate(self, numbers: Tensor | None, dist: Law, at: Evaluated, adapts: bool) -> Tensor:
        """The estimate for each element of the batch. If it `adapts`, the buffers are updated."""
        cv = None if numbers is None else self._cast(numbers, at.fx)
        at = self._prepare(cv, dist, at)
        if cv is None or not adapts:
            return stamp(self.gradient(cv, dist, at), at)
        grad, cv_grad = self.adapt(cv, dist, at)
        flat = pack(cv_grad)
        assert self._optimizer is not None
        # Whatever f returned, nothing enters the control variates that is not finite.
        useful = flat.isfinite().all()
        if at.sound is not None:
            useful = useful & at.sound.any()
        dtype = self.cv_numbers.dtype
        flat = torch.where(useful, flat, 0).to(dtype)
        self._optimizer.step(self.cv_numbers, self.cv_counts, flat)
        return stamp(grad, at)

    def _cast(self, numbers: Tensor, like: Tensor) -> Any:
        return self._tree(numbers.to(like.dtype))

    def _prepare(self, cv: Any, dist: Law, at: Evaluated) -> Evaluated:
        """If something is learned, find the elements of the batch that may enter it."""
        if cv is None:
            return at._replace(sound=None)
        sound = self.is_sound(dist, at)
        sound = sound if at.sound is None else sound & at.sound
        at = at._replace(sound=sound)
        dfx = at.dfx
        if dfx is not None:
            dfx = torch.where(expand(sound, dfx.ndim - 1), dfx, 0)
        return at._replace(fx=at.only_sound(at.fx), dfx=dfx)

    def materialize(self, dist: Any) -> Tensor | None:
        """Give the buffers the sizes and first values that belong to a distribution, if they have
        none yet. Returns the control variates; `None` if the estimator learns nothing."""
        law = dist if isinstance(dist, Law) else distributions.read(dist)
        shape = (type(law), law.state_shape)
        if self._met != shape:
            like = law.with_logits(torch.zeros(law.state_shape, device="cpu"))
            with torch.no_grad():
                cv = self.init(like, Seed(self._seed))
            self._met = shape
            if cv is None:
                return None
            self._optimizer = self.cv_optimizer(cv)
            self._shapes = tree_map(lambda leaf: leaf.shape, cv)
            if not self.cv_numbers.numel():
                self._fill(pack(cv), law.logits)
        if self._optimizer is None:
            return None
        found = self.cv_numbers.numel(), self.cv_counts.numel()
        needed = self._optimizer.total, self._optimizer.counts
        if found != needed:
            raise ValueError(
                f"This {type(self).__name__} has learned control variates of {found[0]} numbers, "
                f"but with these settings and logits of shape {tuple(law.logits.shape)} they have "
                f"{needed[0]}. Give each distribution an estimator of its own, and load a "
                "state_dict into one with the same settings."
            )
        return self.cv_numbers

    def _fill(self, numbers: Tensor, like: Tensor) -> None:
        assert self._optimizer is not None
        dtype = compute_dtype(like)
        # Buffers that are made in inference mode could not be changed outside it.
        with torch.inference_mode(False), torch.no_grad():
            rest = torch.zeros(self._optimizer.total - numbers.numel())
            numbers = torch.cat([numbers.clone(), rest])
            self.cv_numbers = numbers.to(device=like.device, dtype=dtype)
            counts = torch.zeros(self._optimizer.counts, dtype=torch.int32, device=like.device)
            self.cv_counts = counts

    def _check(self, law: Law, context: Tensor | None, indices: bool) -> None:
        needs, name = self.estimator.needs, type(self).__name__
        if needs is not None and not getattr(law, needs):
            raise ValueError(
                f"{name} needs {NEEDS[needs]}, but was given {type(law).__name__}, which lacks "
                f"that. {self.estimator.instead}"
            )
        if context is not None and context.device != law.logits.device:
            raise ValueError(
                f"The context is on {context.device}, but the distribution on "
                f"{law.logits.device}: move one of them with .to(...)."
            )
        if indices and (self.estimator.needs_gradient or law.state_axes == 1):
            why = "uses the gradient of f, which whole numbers do not have"
            if law.state_axes == 1:
                why = "was given no categories"
            raise ValueError(
                f"indices=True hands categories to f as whole numbers, but {name} {why}: leave "
                "indices out, or use an estimator that needs values only, such as RLOO or CARMS."
            )

    def _without_f(self) -> str:
        name = type(self).__name__
        return (
            f"{name} estimates the gradient of E[f(x)] and needs f, but was given one argument. "
            f"Call it as value = estimator(f, dist), with f from states to values: "
            f"sgt.{name}(...)(lambda x: -loss(x), torch.distributions.Bernoulli(logits=logits)). "
            "A sample that is differentiated by itself, z = sgt.ReinMax()(logits), exists for "
            "StraightThrough, ReinMax and GumbelSoftmax, which are biased."
        )

    def detached(self) -> str:
        return (
            f"{type(self).__name__} uses the gradient of f at the samples, but what f returned "
            "does not depend on its argument in PyTorch's graph: f detaches it (.detach(), "
            ".item(), .numpy(), torch.no_grad), compares or rounds it. Remove that, or use an "
            "estimator that needs values only: RLOO, DisARM, ARMS, Reinforce, "
            "Bronco(use_gradient=False), Lariat(gradients=False)."
        )

    def _load_from_state_dict(self, state_dict, prefix, *args):
        # Buffers that are still empty take the shapes of the loaded ones.
        for name in ("cv_numbers", "cv_counts"):
            stored, here = state_dict.get(prefix + name), getattr(self, name)
            if stored is not None and here.shape != stored.shape:
                setattr(self, name, torch.empty_like(stored, device=here.device))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _apply(self, fn, recurse=True):
        before = self.cv_numbers
        super()._apply(fn, recurse)
        # Averages over many steps need single precision, even in a half-precision model.
        if self.cv_numbers.dtype in (torch.float16, torch.bfloat16):
            self.cv_numbers = before.to(self.cv_numbers.device)
        return self


class Plan:
    """What the backward pass of a call needs besides tensors."""

    def __init__(self, module: Estimator, law: Law, reduction: str, indices: bool, learns: bool):
        self.module, self.reduction, self.indices = module, reduction, indices
        self.relaxed = module.relaxed_samples
        self.kind, self.event_shape = type(law), law.event_shape
        self.rest = law.settings()
        self.batch = law.batch_shape
        self.lead = (module.num_samples, *self.batch)
        self.learns = learns
        further = module.further_shapes(law)
        self.looks_further = bool(further)
        self.parts = [self.lead, self.batch if reduction == "none" else (), *further]
        self.sizes = [math.prod(part) for part in self.parts]

    def law(self, logits: Tensor) -> Law:
        kind: Any = self.kind
        return kind(logits, *self.rest, self.event_shape)

    def backward(self, tensors: tuple, dfx: Tensor | None, message: Tensor, once: bool) -> Tensor:
        """The gradient with respect to the logits. `dfx` is ∇f times the factor of f in the
        loss, which the `message` contains together with f and what is known of further points."""
        logits, x, noise, numbers, context = tensors
        module = self.module
        dist = distributions.compute(self.law(logits))
        fx, factor, *more = (
            part.reshape(shape)
            for part, shape in zip(message.split(self.sizes), self.parts, strict=True)
        )
        size = factor.abs()
        usable = (size >= torch.finfo(fx.dtype).tiny * len(fx)) & factor.isfinite()
        if module.needs_gradient:
            if dfx is None:
                raise RuntimeError(module.detached())
            dfx = dfx.reshape(*self.lead, *dist.state_shape).to(fx.dtype)
            by = torch.where(usable, factor / len(fx), 1)
            dfx = dfx / expand(by, by.ndim + dist.state_axes)
        else:
            dfx = None
        at = Evaluated(x, fx, dfx, noise=noise, context=context, sound=usable.expand(self.batch))
        if module.estimator.relaxes:
            at = at._replace(memo=tuple(more))
        elif more:
            at = at._replace(fy=more[0], memo=tuple(more[1:]))
        adapts = self.learns and once and module.training
        with exact(logits):
            grad = module.estimate(numbers, dist, at, adapts)
        factor, usable, size = (expand(t, t.ndim + dist.state_axes) for t in (factor, usable, size))
        scaled = torch.where(usable, grad * factor, 0 * factor)
        return scaled.to(logits.dtype)


@contextlib.contextmanager
def again(surroundings: Surroundings | None):
    """A context in which f draws the same random numbers as at the samples."""
    with surroundings.again() if surroundings is not None else contextlib.nullcontext():
        yield


def one_thread() -> Any:
    """A context in which no other thread resets PyTorch's generator to call f again."""
    return contextlib.nullcontext() if torch.compiler.is_compiling() else GENERATORS


def exact(logits: Tensor) -> Any:
    """A context without autocast, in which estimates are computed."""
    kind = logits.device.type
    if torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return contextlib.nullcontext()


def native_class(settings: tuple) -> type:
    """The class of this package for an estimator of `steingrad`."""
    given = settings[0] if settings else None
    if type(given) in NATIVE:
        return NATIVE[type(given)]
    name = type(given).__name__
    advice = "Use it in JAX, or use one of the classes of steingrad.torch."
    if isinstance(given, sg.Estimator):
        raise TypeError(f"{name} does not exist in PyTorch. {advice}")
    raise TypeError(
        f"Estimator takes an estimator such as steingrad.RLOO(2), but was given a {name}. {advice}"
    )


def relative_mean_square(grad: Tensor, at: Evaluated) -> tuple[Tensor, Tensor]:
    """Returns the mean square of an estimate in units of its size, and the unit, a power of two.
    Numbers that are not finite count as 0."""
    if at.sound is not None:
        grad = torch.where(expand(at.sound, grad.ndim), grad, 0)
    grad = torch.where(grad.isfinite(), grad, 0)
    unit = power_of_two(grad.detach().abs().amax())
    return (grad / unit).square().mean(), unit


def times_square(tree: Any, unit: Tensor) -> Any:
    """Multiply by the square of `unit`; by 0 if the square is near the ends of float32's range."""
    smallest = sg.base.SMALLEST
    inside = (unit > smallest) & (unit < 1 / smallest)
    factor = torch.where(inside, torch.where(inside, unit, 0) ** 2, 0)
    return tree_map(lambda g: g * factor, tree)
