r"""A network with one hidden layer of LeakyReLU units, as the piecewise linear function it is.

For a fixed value f, the outputs H(f, t) are linear in t between the knots at which a hidden unit
changes its slope. The knots of each row are sorted, and cumulative sums give the line of each
interval. So the cost grows with points + units, not with points × units. The derivative with
respect to the weights needs, for each unit, sums over the points on one side of its knot, which are
cumulative sums of sums over intervals.
"""

import torch
from torch import Tensor

from .arrays import expand


def piecewise_linear(cv: dict, value: Tensor, linear: Tensor, slope: float) -> Tensor:
    """Both outputs of the network at (value, linear), `[2, *rows, points]`, for one value for each
    row of points, averaged over the first axis of both."""
    others, points = value.shape[0], linear.shape[-1]
    f, t = value.reshape(others, -1), linear.reshape(others, -1, points)
    order = ("b_in", "b_out", "w_in", "w_out")
    out = Piecewise.apply(slope, f, t, *(cv[name] for name in order))
    return out.reshape(2, *linear.shape[1:])


def knots(f: Tensor, w_in: Tensor, b_in: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what each unit adds to w_linear t, `[others, rows, units]`, and the sorted knots and
    their units."""
    w_value, w_linear = w_in
    offset = f[..., None] * w_value + b_in
    never = torch.where(offset > 0, -torch.inf, torch.inf)
    at = torch.where(w_linear == 0, never, -offset / torch.where(w_linear == 0, 1, w_linear))
    sorted_, units = at.sort(-1)
    return offset, sorted_.contiguous(), units


class Piecewise(torch.autograd.Function):
    """The outputs, with derivatives with respect to the weights alone."""

    generate_vmap_rule = True

    @staticmethod
    def forward(slope, f, t, b_in, b_out, w_in, w_out):
        offset, at, units = knots(f, w_in, b_in)
        w_linear = w_in[1]
        rising = w_linear >= 0
        # The line left of all knots, where units with a falling input have slope 1.
        first = 1 + (slope - 1) * rising.to(t.dtype)
        steepness = ((first * w_linear)[:, None] * w_out).sum(0)  # [2]
        heights = (first * offset) @ w_out  # [others, rows, 2]
        # What changes at each knot.
        change = (1 - slope) * (2 * rising.to(t.dtype) - 1)
        of_steepness = ((change * w_linear)[:, None] * w_out).T[:, units]  # [2, others, rows, u]
        of_heights = (change * offset).gather(-1, units) * w_out.T[:, units]
        zero = torch.zeros_like(of_heights[..., :1])
        lines = lambda changes: torch.cat([zero, changes.cumsum(-1)], -1)
        interval = torch.searchsorted(at, t.contiguous()).expand(2, *t.shape)
        a = lines(of_steepness).gather(-1, interval) + expand(steepness, 4)
        b = lines(of_heights).gather(-1, interval) + heights.movedim(-1, 0)[..., None]
        return (a * t + b).mean(1) + b_out[:, None, None]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.slope, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx, cotangent):
        f, t, b_in, _, w_in, w_out = ctx.saved_tensors
        slope, (w_value, w_linear) = ctx.slope, w_in
        _, at, units = knots(f, w_in, b_in)
        g = (cotangent / len(f))[:, None].expand(2, *t.shape)
        interval = torch.searchsorted(at, t.contiguous()).expand(2, 2, *t.shape)
        both = torch.stack([g, g * t])  # [alone or with t, 2, others, rows, points]
        zeros = torch.zeros((*both.shape[:-1], at.shape[-1] + 1), dtype=t.dtype, device=t.device)
        sums = zeros.scatter_add(-1, interval, both)
        total = sums.sum(-1, keepdim=True)
        right = (total - sums.cumsum(-1))[..., :-1]  # over the points right of each knot
        right = torch.zeros_like(right).scatter(-1, units.expand(right.shape), right)
        active = torch.where(w_linear >= 0, right, total - right)
        alone, with_t = slope * total + (1 - slope) * active  # Σ S g and Σ S t g: [2, J, rows, u]
        with_1, with_t = alone.sum((1, 2)).T, with_t.sum((1, 2)).T  # [u, 2]
        with_f = (alone * f[..., None]).sum((1, 2)).T
        of_w_in = torch.stack([(with_f * w_out).sum(-1), (with_t * w_out).sum(-1)])
        of_w_out = with_t * w_linear[:, None] + with_f * w_value[:, None] + with_1 * b_in[:, None]
        of_b_out = cotangent.sum((1, 2))
        return None, None, None, (with_1 * w_out).sum(-1), of_b_out, of_w_in, of_w_out
