"""The call of f, and the two nodes of the graph around it."""

import contextlib
import math
import threading
from typing import Any

import torch
from torch import Tensor, nn

from .arrays import compute_dtype
from .distributions import Law


class Call:
    """f, with the shapes in which it gets states and returns values."""

    def __init__(
        self, f: Any, law: Law, has_aux: bool, flatten: bool, indices: bool, relaxed: bool
    ):
        self.f, self.has_aux, self.flatten, self.law = f, has_aux, flatten, law
        self.indices, self.relaxed = indices, relaxed
        self.event_shape = law.event_shape[:-1] if indices else law.event_shape

    def view(self, x: Tensor) -> Tensor:
        """Stored samples in the form in which f gets them."""
        return view(self.law, x, self.indices, self.relaxed)

    def relaxed_view(self, x: Tensor) -> Tensor:
        """Points between the states in the form in which f gets them."""
        lead = x.shape[: x.ndim - self.law.state_axes]
        return x.reshape(*lead, *self.law.event_shape).to(self.law.logits.dtype)

    def replaced(self, f: Any) -> "Call":
        """The same call of another function, without aux."""
        return Call(f, self.law, False, self.flatten, False, self.relaxed)

    def __call__(self, x: Tensor) -> tuple[Tensor, Any]:
        return self.evaluate(self.view(x))

    def evaluate(self, x: Tensor) -> tuple[Tensor, Any]:
        """Returns f at states that have the right form, and its aux."""
        lead = x.shape[: x.ndim - len(self.event_shape)]
        found = self.f(x.reshape(-1, *self.event_shape) if self.flatten else x)
        aux = None
        if self.has_aux:
            if not (isinstance(found, tuple) and len(found) == 2):
                raise TypeError(
                    "With has_aux=True f must return a pair, its values and anything else, but "
                    f"returned a {type(found).__name__}: return values, aux."
                )
            found, aux = found
            aux = torch.utils._pytree.tree_map(
                lambda a: a.detach() if isinstance(a, Tensor) else a, aux
            )
        return self._checked(found, x, tuple(lead)), aux

    def _checked(self, fx: Any, x: Tensor, lead: tuple[int, ...]) -> Tensor:
        name = type(fx).__name__
        if not isinstance(fx, Tensor):
            raise TypeError(
                f"f must return a tensor, but returned a {name}. Wrap it: torch.as_tensor(...)."
            )
        if fx.device != x.device:
            raise ValueError(
                f"f was given states on {x.device}, but returned values on {fx.device}: move "
                "what f uses to the device of the logits with .to(...)."
            )
        expected = (math.prod(lead),) if self.flatten else lead
        given = (*expected, *self.event_shape)
        if tuple(fx.shape) != expected:
            raise ValueError(
                f"f was given states of shape {given} and must return one number for each, of "
                f"shape {expected}, but returned shape {tuple(fx.shape)}. Sum over the last "
                f"{len(self.event_shape)} axes only. Without torch.distributions.Independent or "
                "event_ndim the last axis of variables holds the coordinates of one state."
            )
        if fx.is_complex():
            raise TypeError(f"f must return real numbers, but returned {fx.dtype}.")
        fx = fx.reshape(lead)
        return fx if fx.is_floating_point() else fx.to(torch.float32)

    def returned(self, x: Tensor, logits: Tensor | None) -> Tensor:
        """The samples as a result, which must not be differentiated."""
        x = self.view(x)
        if logits is None or not x.is_floating_point():
            return x
        return Returned.apply(x, logits)


def view(law: Law, x: Tensor, indices: bool, relaxed: bool) -> Tensor:
    """Stored samples in the form in which f gets them, in memory of their own, so that f may change
    them in place."""
    lead, event = x.shape[: 1 + len(law.batch_shape)], law.event_shape
    if indices or not (relaxed or law.state_axes == 1):
        index = x.reshape(*lead, *event[:-1])
        return index.clone() if indices else law.one_hot(index)
    # A copy that is not a view: autograd lets f change only that in place.
    shown = x.to(law.logits.dtype, copy=True)
    return shown if x.shape[len(lead) :] == event else shown.reshape(*lead, *event).clone()


class Sample(torch.autograd.Function):
    """The node of the graph before f: from logits to samples, and back.

    The second output, zeros, is an input of `Value`, the node after f. The gradient that `Value`
    passes back through it is a message: the values of f and their factor in the loss. So the
    backward pass reaches this node last, with all that an estimate needs, and no part of it leaves
    the graph.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(plan, logits, x, noise, numbers, context):
        message = torch.zeros(sum(plan.sizes), dtype=compute_dtype(logits), device=logits.device)
        return view(plan.law(logits), x, plan.indices, plan.relaxed), message

    @staticmethod
    def setup_context(ctx, inputs, output):
        plan, *tensors = inputs
        ctx.plan, ctx.passed = plan, False
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        if not plan.module.needs_gradient:
            ctx.mark_non_differentiable(output[0])

    @staticmethod
    def backward(ctx, dfx, message):
        if message is None:
            return None, None, None, None, None, None
        tensors = ctx.saved_tensors
        once = not ctx.passed
        if not torch.compiler.is_compiling():
            ctx.passed = True
        with torch.no_grad():
            grad = ctx.plan.backward(tensors, dfx, message, once)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # The second derivative may be formed, but not used.
            grad = Once.apply(grad, tensors[0])
        return None, grad, None, None, None, None


class Value(torch.autograd.Function):
    """The node of the graph after f: the mean of f, and on the way back the message."""

    generate_vmap_rule = True

    @staticmethod
    def reduce(fx: Tensor, reduction: str) -> Tensor:
        if reduction == "none":
            return fx.mean(0)
        if reduction == "sum":
            return fx.mean(0).sum()
        return fx.mean() if fx.numel() else fx.sum()

    @staticmethod
    def forward(plan, fx, message, *memo):
        return Value.reduce(fx, plan.reduction)

    @staticmethod
    def setup_context(ctx, inputs, output):
        plan, fx, message, *memo = inputs
        ctx.plan, ctx.dtype = plan, message.dtype
        ctx.save_for_backward(fx, *memo)

    @staticmethod
    def backward(ctx, cotangent):
        fx, *memo = ctx.saved_tensors
        plan = ctx.plan
        factor = cotangent.to(ctx.dtype)
        if plan.reduction == "mean":
            factor = factor / fx[0].numel()
        dfx = (factor / len(fx)).to(fx.dtype).expand(fx.shape)
        parts = [fx.detach(), factor, *memo]
        message = torch.cat([part.to(ctx.dtype).reshape(-1) for part in parts])
        return None, dfx, message, *(None for _ in memo)


class Once(torch.autograd.Function):
    """An estimate that raises an error if it is differentiated with respect to the logits."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad, logits):
        return grad.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *cotangents):
        raise RuntimeError(
            "An estimate was differentiated by its logits, as for a second derivative. Its samples "
            "were drawn with them, so a derivative at fixed samples would be wrong. Add .detach() "
            "to leave it out. See steingrad.expectation, in JAX, for estimates of a Hessian."
        )


class Returned(torch.autograd.Function):
    """Samples that raise an error if something is differentiated through them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, logits):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *cotangents):
        raise RuntimeError(
            "Something other than f's value was made of the returned samples and differentiated, "
            "but the estimate contains the gradient of E[f(x)] only. Move it into f, so that it is "
            "part of f's value, or use samples.detach() if it belongs to other parameters alone."
        )


@contextlib.contextmanager
def quiet_norms():
    """A context in which batch normalisation uses the statistics of its batch, as in training, and
    leaves its running statistics alone. They belong to f at the samples."""
    if torch.compiler.is_compiling():
        yield
        return
    thread, changed = threading.get_ident(), []

    def before(module, _):
        if (
            isinstance(module, nn.modules.batchnorm._BatchNorm)
            and module.training
            and module.track_running_stats
            and threading.get_ident() == thread
        ):
            module.track_running_stats = False
            changed.append(module)

    handle = nn.modules.module.register_module_forward_pre_hook(before)
    try:
        yield
    finally:
        handle.remove()
        for module in changed:
            module.track_running_stats = True
