"""An estimator as a module: f runs in PyTorch, and `backward` calls the estimator in JAX."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from ..compatibility import enable_x64
from ..estimators import Estimator as JaxEstimator
from .distributions import Law, read
from .native import native
from .programs import Programs, Seen, State
from .tensors import (
    GENERATORS,
    Surroundings,
    compute_dtype,
    draw_seeds,
    to_jax,
    to_torch,
    version,
)

BUFFERS = State("cv_numbers", "cv_counts")


class Estimator(nn.Module):
    r"""$E_{q_\eta}[f(x)]$ as a scalar tensor whose `backward` calls the estimator.

    It wraps an estimator of `steingrad`; `steingrad.torch.Bronco(...)` is short for
    `Estimator(steingrad.Bronco(...))`. A call draws $K$ samples, evaluates `f` at all of them at
    once, and returns the mean of `f`:

        value = estimator(f, dist, context=None)

    `f` maps states `[K, *batch, *event]` to values `[K, *batch]`, each state on its own. `dist` is
    a `Bernoulli`, `OneHotCategorical` or `Categorical` of `torch.distributions`, or a tensor of
    logits of bits. The last axis of its variables holds the coordinates of one state; `Independent`
    around the distribution says if there are more such axes. `context` is a further input of the
    control variates of some estimators.

    One backward pass gives the logits the estimate and f's own parameters their gradient. In
    training mode it also adapts the control variates, once for each value. The control variates are
    buffers, created at the first call. An estimator that learns belongs to one distribution, such
    as one layer of a model. Random numbers come from PyTorch's generator.

    >>> import torch, steingrad.torch as sgt
    >>> logits = torch.zeros(5, requires_grad=True)
    >>> estimator = sgt.Bronco()
    >>> value = estimator(lambda x: -((x - 0.45) ** 2).sum(-1), logits)
    >>> (-value).backward()
    >>> value.shape, logits.grad.shape, estimator.cv.gram.shape
    (torch.Size([]), torch.Size([5]), (5, 3, 3))
    """

    cv_numbers: Any
    cv_counts: Any

    def __init__(self, estimator: JaxEstimator, *, cv_learning_rate: Any = 1e-3):
        super().__init__()
        if estimator.relaxes:
            raise TypeError(
                f"{type(estimator).__name__} differentiates f between the states inside JAX, which "
                "cannot differentiate a PyTorch function. Use Rodeo, Lariat, Bronco or "
                "ModifiedRelax, which need the gradient of f at the samples only."
            )
        if estimator.weighs_samples:
            raise TypeError(
                f"{type(estimator).__name__} weighs its samples, but a module returns and "
                "differentiates their plain mean. Use it in JAX, or use RLOO or CARMS here."
            )
        self._programs = Programs.of(estimator, cv_learning_rate)
        # The initial control variates are fixed when the module is built, like any weights.
        self._init_seeds = draw_seeds().copy()
        self._law: tuple[Any, tuple[int, ...]] | None = None
        # Empty until the first call, but not None, because DDP must find the buffers at its start.
        self.register_buffer(BUFFERS.numbers, torch.zeros(0))
        self.register_buffer(BUFFERS.counts, torch.zeros(0, dtype=torch.int32))

    @property
    def estimator(self) -> JaxEstimator:
        """The estimator of `steingrad` that this module wraps."""
        return self._programs.estimator

    @property
    def cv(self) -> Any:
        """The control variates, to inspect, as JAX arrays by name; `None` before the first call."""
        if not len(self.cv_numbers) or self._law is None:
            return None
        with enable_x64(self.cv_numbers.dtype == torch.float64):
            return self._programs.tree(*self._law, self._state.map(to_jax))[0]

    def extra_repr(self) -> str:
        return repr(self.estimator)

    def forward(
        self,
        f: Callable[[torch.Tensor], torch.Tensor],
        dist: Any,
        context: torch.Tensor | None = None,
    ) -> torch.Tensor:
        law = read(dist)
        if context is not None and context.device != law.logits.device:
            raise ValueError(
                f"The context is on {context.device}, but the distribution on {law.logits.device}: "
                "move one of them with .to(...)."
            )
        draw = Draw(self, f, law, context)
        x, token = Sample.apply(law.logits, draw)
        return draw.evaluate(x, token)

    @property
    def _state(self) -> State:
        """The buffers, read from `_buffers`, because attributes of a module take longer to find."""
        numbers, counts = (self._buffers[name] for name in BUFFERS)
        return State(numbers, counts if len(counts) else None)  # pyright: ignore[reportArgumentType]

    def _become(self, state: State) -> None:
        """Store new control variates. `setattr` on a module takes longer than the arithmetic."""
        for name, array in zip(BUFFERS, state, strict=True):
            if array is not None:
                old: Any = self._buffers[name]
                self._buffers[name] = to_torch(array, old.device).to(old.dtype)

    def _prepare(self, law: Law) -> State | None:
        """The control variates for a distribution, created if there are none yet."""
        met = law.kind, law.state_shape
        if met != self._law:  # setting an attribute of a module is slow
            self._law = met
        numbers, counts = self._programs.sizes(*met)
        if not numbers:
            return None
        if not len(self._state.numbers):
            device = law.logits.device
            fresh = self._programs.init(*met, self._init_seeds)
            self.cv_numbers = to_torch(fresh.numbers, device)
            self.cv_counts = to_torch(fresh.counts, device) if counts else self.cv_counts.to(device)
        state = self._state
        sizes = len(state.numbers), 0 if state.counts is None else len(state.counts)
        if sizes != (numbers, counts):
            raise ValueError(
                f"This {type(self.estimator).__name__} has learned control variates of "
                f"{sizes[0]} numbers, but with these settings and logits of shape "
                f"{tuple(law.logits.shape)} they have {numbers}. Give each distribution an "
                "estimator of its own, and load a state_dict into one with the same settings."
            )
        return state

    def _load_from_state_dict(self, state_dict, prefix, *args):
        # Buffers that are still empty take the shapes of the loaded ones.
        for name in BUFFERS:
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


class Draw:
    """The samples of one call, the values of f, and the estimate after the first backward pass."""

    def __init__(
        self,
        module: Estimator,
        f: Callable[[torch.Tensor], torch.Tensor],
        law: Law,
        context: torch.Tensor | None,
    ):
        self.module, self.f = module, f
        self.kind, self.batch_shape, self.event_shape = law.kind, law.batch_shape, law.event_shape
        self.reshaped = law.event_shape != law.state_shape
        self.device, self.dtype = law.logits.device, compute_dtype(law.logits)
        self.context = None if context is None else context.detach().to(self.dtype)
        self.native = native(module.estimator)
        with GENERATORS, self._precision():
            self.seeds = draw_seeds()
            programs = module._programs
            programs.check(law)
            if programs.couples_samples:
                x = programs.sample(self.kind, self.seeds, to_jax(law.logits))
                self.x = to_torch(x, self.device)
            else:  # faster than JAX, which would compete for the cores
                self.x = law.sample(programs.estimator.num_samples)
            self.version = version(self.x)
            wanted = torch.is_grad_enabled() and law.logits.requires_grad
            # A copy, so that changes of the buffers before `backward` make no difference.
            state = module._prepare(law) if wanted else None
            self.state = None if state is None else state.map(torch.clone)
            self.surroundings = Surroundings.here(self.device) if self.native is None else None
        self.needs_gradient = programs.estimator.needs_gradient
        self.fx = self.estimate = None

    def evaluate(self, x: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        """Returns the mean of f, and stores the values that the estimate needs later."""
        fx = self._call(x)
        self._check_samples()
        value = fx.mean() if fx.numel() else fx.sum()
        if not token.requires_grad:
            return value
        if self.needs_gradient and not fx.requires_grad:
            raise RuntimeError(self._detached())
        self.fx = fx.detach().to(self.dtype, copy=True)
        return value + token.to(value.dtype)

    def gradient(
        self, logits: torch.Tensor, dfx: torch.Tensor | None, cotangent: torch.Tensor
    ) -> torch.Tensor:
        """The gradient with respect to the logits. `dfx` is ∇f · cotangent / (K · batch)."""
        batch = max(math.prod(self.batch_shape), 1)
        if self.estimate is not None:
            # Further passes through the same graph.
            return (self.estimate() * (cotangent / batch)).to(logits.dtype)
        self._check_samples()
        if self.needs_gradient and dfx is None:
            raise RuntimeError(self._detached())
        factor = cotangent.item() / (batch * len(self.x))
        if abs(factor) < torch.finfo(self.dtype).tiny or not logits.numel():
            return torch.zeros_like(logits)
        if not math.isfinite(factor):
            return torch.full_like(logits, math.nan)
        if self.native is not None:
            estimate = self.native(self.x, self.fx)
            self.estimate = lambda: estimate
            return (estimate * (factor * len(self.x))).to(logits.dtype)
        with self._precision():
            return self._estimate(logits, dfx, factor)

    def _estimate(self, logits, dfx, factor) -> torch.Tensor:
        """The gradient at the first pass through the graph. Later passes use `self.estimate`."""
        programs, module = self.module._programs, self.module
        given = self.kind, self.seeds, to_jax(logits)
        fx, optional = to_jax(self.fx), lambda tensor: None if tensor is None else to_jax(tensor)
        factor = np.asarray(factor, fx.dtype)
        seen = Seen(to_jax(self.x), fx, optional(dfx), factor, optional(self.context))
        state = current = None
        if self.state is not None:
            state, current = self.state.map(to_jax), module._state.map(to_jax)
        with programs.evaluating(self._callback):
            if programs.estimator.looks_further:
                y, memo = programs.propose(*given, seen, state)
                y = to_torch(y, self.device).to(self.x.dtype)
                fy = torch.stack([self._again(points) for points in y])
                seen = seen._replace(fy=to_jax(fy.to(self.dtype)), memo=memo)
            adapting = module.training and state is not None
            kind, seeds, logits_ = given
            estimate, grad, following = programs.gradient(
                kind, adapting, seeds, logits_, seen, state, current
            )
            # A copy of the estimate's memory, because the caller may change the gradient. On a GPU
            # JAX may also reuse its memory while PyTorch's operations are queued.
            grad = to_torch(grad, self.device)
            grad = grad.clone() if grad.is_cuda else grad
        self.estimate = partial(to_torch, estimate, self.device)
        if adapting:
            module._become(following)
        return grad

    def _check_samples(self) -> None:
        if version(self.x) != self.version:
            raise RuntimeError(
                "The samples were changed in place, by f or after it, but the estimate needs them "
                "as they were drawn. Replace operations such as x.mul_(...) or x[...] = ... by "
                "ones that make a new tensor, or begin f with x = x.clone()."
            )

    def _call(self, x: torch.Tensor) -> torch.Tensor:
        lead = (len(self.x), *self.batch_shape)
        fx = self.f(x.reshape(*lead, *self.event_shape) if self.reshaped else x)
        name = type(fx).__name__
        if not isinstance(fx, torch.Tensor):
            raise TypeError(
                f"f must return a tensor, but returned a {name}. Wrap it: torch.as_tensor(...)."
            )
        if fx.device != self.device:
            raise ValueError(
                f"f was given states on {self.device}, but returned values on {fx.device}: move "
                "what f uses to the device of the logits with .to(...)."
            )
        if tuple(fx.shape) != lead:
            raise ValueError(
                f"f was given states of shape {(*lead, *self.event_shape)} and must return one "
                f"number for each, of shape {lead}, but returned shape {tuple(fx.shape)}. Sum over "
                f"the last {len(self.event_shape)} axes only. Without torch.distributions."
                "Independent the last axis of variables holds the coordinates of one state."
            )
        if fx.is_complex():
            raise TypeError(f"f must return real numbers, but returned {fx.dtype}.")
        return fx if fx.is_floating_point() else fx.to(self.dtype)

    def _again(self, x: torch.Tensor) -> torch.Tensor:
        """f at other points, with the same random numbers as at the samples."""
        assert self.surroundings is not None
        with self.surroundings.again():
            return self._call(x)

    def _callback(self, x: np.ndarray) -> np.ndarray:
        fx = self._again(torch.from_numpy(x.copy()).to(self.device))
        return fx.to(self.dtype).cpu().numpy()

    def _precision(self):
        return enable_x64(self.dtype == torch.float64)

    def _detached(self) -> str:
        return (
            f"{type(self.module.estimator).__name__} uses the gradient of f at the samples, but "
            "what f returned does not depend on its argument in PyTorch's graph: f detaches it "
            "(.detach(), .item(), .numpy(), torch.no_grad), compares or rounds it. Remove that, or "
            "use an estimator that needs values only: RLOO, DisARM, ARMS, Reinforce, "
            "Bronco(use_gradient=False), Lariat(gradients=False)."
        )


class Sample(torch.autograd.Function):
    """The node of the graph before f: from logits to samples, and back.

    The backward pass reaches this node last, with the gradient of f at the samples, computed in the
    same pass as the gradients of f's own parameters. The second output, a zero that is added to the
    mean of f, receives the factor of the mean in the loss. With it the pass reaches this node even
    if no gradient goes through f.
    """

    @staticmethod
    def forward(ctx, logits, draw):
        # The draw keeps a tensor of its own, because this one will refer to this node.
        x = draw.x.detach()
        ctx.draw = draw
        ctx.save_for_backward(logits)
        ctx.set_materialize_grads(False)
        if not draw.needs_gradient:
            ctx.mark_non_differentiable(x)
        return x, logits.new_zeros((), dtype=draw.dtype)

    @staticmethod
    def backward(ctx, dfx, cotangent):
        (logits,) = ctx.saved_tensors
        if cotangent is None:
            return None, None
        with torch.no_grad():
            grad = ctx.draw.gradient(logits, dfx, cotangent)
        # With create_graph=True the second derivative may be formed, but not used.
        return (Once.apply(grad, logits) if torch.is_grad_enabled() else grad), None


class Once(torch.autograd.Function):
    """An estimate that raises an error if it is differentiated with respect to the logits."""

    @staticmethod
    def forward(ctx, grad, logits):
        return grad.clone()

    @staticmethod
    def backward(ctx, *cotangents):
        raise RuntimeError(
            "An estimate was differentiated by its logits, as for a second derivative. Its samples "
            "were drawn with them, so a derivative at fixed samples would be wrong. Add .detach() "
            "to leave it out. See steingrad.expectation, in JAX, for estimates of a Hessian."
        )
