"""Control variates at points between the states, as in REBAR and RELAX."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .arrays import expand, pack, tree_map, unpack
from .derivatives import derivative, slope_of
from .evaluated import Evaluated
from .module import Estimator, relative_mean_square, times_square
from .optimizers import Adam

Control = Callable[[Tensor], Tensor]
"""The control variate c, a function of z or of z̃."""


def initial_log_temperature() -> Tensor:
    """The logarithm of 0.1."""
    return torch.full((), math.log(0.1))


def relaxed_estimate(control: Control, dist: Any, at: Evaluated, signal: Tensor) -> Tensor:
    """1/K Σₖ (rₖ − c(z̃ₖ)) s(xₖ) + ∇c(zₖ) − ∇c(z̃ₖ), where the `signal` rₖ is f(xₖ), with or
    without a baseline subtracted."""
    x, count = dist.one_hot(at.x), len(at.fx)
    assert at.noise is not None
    noise, noise_tilde = at.noise
    # Since x is a sample, z drawn given x has the distribution of z. Its noise is kept fixed.
    noise = dist.latent_given(x, noise) - dist.location()

    def difference(logits):
        q = dist.with_logits(logits)
        c = control(q.location() + noise)
        c_tilde = control(q.latent_given(x, noise_tilde))
        return (c - c_tilde).sum() / count, c_tilde

    reparameterised, c_tilde = slope_of(difference, dist.logits)
    weights = (signal - c_tilde) / count
    return (expand(weights, x.ndim) * dist.score(at.x)).sum(0) + reparameterised


class Relaxing(Estimator):
    """The base class of `Rebar` and `Relax`, whose estimates are made in the forward pass, where f
    is evaluated between the states. The message to the backward pass is the estimate, and the
    gradient of its mean square."""

    def cv_optimizer(self, cv):
        return Adam(cv, self.cv_learning_rate, b1=0.999)

    def noise(self, dist, generator):
        return torch.stack([dist.noise(self.num_samples, generator) for _ in range(2)])

    def further_shapes(self, dist):
        self.materialize(dist)
        assert self._optimizer is not None
        return [(*dist.batch_shape, *dist.state_shape), (self._optimizer.size,)]

    def look_further(self, f, between, cv, dist, at):
        # Each element of the batch gets its own copy of scale and temperature, and the finite
        # gradients of the copies are added. An element with NaN then has no effect on the others.
        copy = lambda number: number.expand(dist.batch_shape)
        copies = cv._replace(log_temperature=copy(cv.log_temperature), scale=copy(cv.scale))
        own = lambda cv, dist, at: self.relaxed_gradient(between, cv, dist, at)
        grad, cv_grad = adapt_by(own, copies, dist, at)
        total = lambda g: torch.where(g.isfinite(), g, 0).sum()
        log_temperature, scale = total(cv_grad.log_temperature), total(cv_grad.scale)
        cv_grad = cv_grad._replace(log_temperature=log_temperature, scale=scale)
        return grad, pack(cv_grad)

    def relaxed_gradient(self, between: Any, cv: Any, dist: Any, at: Evaluated) -> Tensor:
        """The estimate, as a differentiable function of the control variates."""
        raise NotImplementedError

    def at_relaxed_points(self, between: Any, cv: Any, dist: Any) -> Control:
        """scale · f(σ(z / temperature))."""
        temperature = expand(cv.log_temperature.exp(), len(dist.logits.shape))

        def control(z):
            c = between(dist.relax(z / temperature, 1.0)).to(z.dtype)
            if not c.requires_grad and not torch.compiler.is_compiling() and z.requires_grad:
                raise RuntimeError(self.detached())
            return cv.scale * c

        return control

    def gradient(self, cv, dist, at):
        return at.memo[0]

    def adapt(self, cv, dist, at):
        return at.memo[0], unpack(tree_map(lambda leaf: leaf.shape, cv), at.memo[1])


def adapt_by(gradient: Any, cv: Any, dist: Any, at: Evaluated) -> tuple[Tensor, Any]:
    """`Estimator.adapt` for another function than the method `gradient`."""

    def mean_square(cv):
        grad = gradient(cv, dist, at)
        square, unit = relative_mean_square(grad, at)
        return square, (grad, unit)

    cv_grad, (grad, unit) = derivative(mean_square, cv)
    return grad, times_square(cv_grad, unit)
