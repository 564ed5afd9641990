"""Lariat: REINFORCE leave-one-out with control variates whose coefficients are solved for."""

import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..arrays import as_index, check_whole, expand
from ..distributions import as_distribution
from ..fast import leave_one_out, mean, mean_of_others, mean_of_samples, sum_of_events
from ..operators import Gibbs, Operator
from ..surrogates import Surrogate
from .base import Estimator, power_of_two, relative_mean_square, times_square
from .least_squares import (
    DECAY,
    RIDGE,
    Products,
    make_terms,
    spread_of,
    unless,
    unless_outgrown,
)
from .optimizers import average_or_adam
from .stein import stein_terms

SHRINK = 1e-3  # shrinks the memory of coordinates that hardly ever vary towards 0


class Lariat(Estimator):
    r"""$g = g_0 + \sum_m c_m G_m$, where $g_0$ is RLOO and the terms $G_m$ have mean zero. The
    coefficients $c = -\Gamma^{-1} \gamma$ minimise the mean square of $g$. $\Gamma_{mn}$ and
    $\gamma_m$ are moving averages of $G_m^\top G_n$ and $G_m^\top g_0$ over past steps, each of
    which counts `decay` times as much as the next.

    Each term is a mean over $k$. Here $\mu = E[x]$, $D = \nabla f$, and the index $-k$ stands for
    the mean over the other samples:

    - `values`: $-s_k$ and $-f_{-k} s_k$, the baseline's offset and scale;
    - `gradients`: $-\tau_{-k} s_k$ with $\tau_j = D_j^\top (\mu - x_j)$, which extrapolates $f_j$
      to the mean; $-(v_{-k}^\top (x_k - \mu)) s_k + \nabla_\eta (v_{-k}^\top \mu)$ and $(v_k^\top
      (x - \mu)_{-k}) s_k$ with $v = D$, a linear model of $f$, whose expectation has a known
      gradient; if `weighted`, also the same three with $|x_j - \mu| D_j$ in place of $D_j$;
    - `memory` (default: if `gradients` is off): the linear model, with $v$ an average of past
      $\nabla f$ or, without `gradients`, of past estimates divided by the variance of $x$. It is
      for an $f$ that is the same for the whole batch, and `init` needs the distribution;
    - `context_size` $> 0$: a baseline and a linear model that are learned functions of a `context`
      of that size, linear or with a layer of `hidden` units;
    - `surrogate`: the two terms of `Rodeo`, with its `operator`.

    `gradients`, `memory` and `context_size` need a distribution whose mean is known: `Bernoulli`,
    `Categorical`, `Ordinal`, `Subset` and `Joint`s of them. For other distributions turn them off.

    $f$ is evaluated $K$ times. Only a network (of the context or of the surrogate) has a learning
    rate. The first ten steps are plain RLOO. A `ridge`, in units of each term's mean square,
    handles terms that vanish or are linearly dependent. Update `cv` with `steingrad.cv_optimizer`:
    with any other optimiser $g$ stays unbiased, but the averages are wrong. `num_samples` is $K$.

    Reference: optimal linear control variates, e.g. Glasserman, "Monte Carlo Methods in Financial
    Engineering", 2003, section 4.1; for RLOO and Double CV, see `RLOO` and `DoubleCV`.

    >>> import jax, jax.numpy as jnp, steingrad as sg
    >>> estimator, dist = Lariat(num_samples=3), sg.Categorical(jnp.zeros((5, 4)))
    >>> cv = estimator.init(jax.random.key(0))
    >>> value, grads = estimator.value_and_grad(
    ...     lambda x: jnp.sum(x[..., 0], axis=-1) ** 2, dist, cv, key=jax.random.key(1))
    >>> grads.parameters.shape, grads.cv.averages.products.matrix.shape
    ((5, 4), (6, 6))
    """

    class Averages(eqx.Module):
        """Moving averages over past steps."""

        products: Products
        value: Float[Array, ""]
        memory: tuple[Float[Array, "..."], Float[Array, "..."]] | None

    class CV(eqx.Module):
        """The averages, and what is learned by descent: the context's network and the surrogate."""

        averages: "Lariat.Averages"
        context: dict[str, Float[Array, "..."]] | None
        surrogate: Any

    num_samples: int = eqx.field(static=True, converter=as_index, default=2)
    values: bool = eqx.field(static=True, default=True)
    """Use the terms that are made of values of f."""
    gradients: bool = eqx.field(static=True, default=True)
    """Use the terms that are made of gradients of f."""
    weighted: bool = eqx.field(static=True, default=False)
    """Also use the terms made of gradients with the weights |x − μ|."""
    memory: bool | None = eqx.field(static=True, default=None)
    """Use the linear model made of past gradients or past estimates (default: if gradients is
    off)."""
    context_size: int = eqx.field(static=True, converter=as_index, default=0)
    """The size of the context from which a baseline and a slope are learned (0: no context)."""
    hidden: int = eqx.field(static=True, converter=as_index, default=0)
    """The number of hidden units of the context's network (0: a linear function)."""
    surrogate: Surrogate | None = None
    """Also use the two terms of RODEO, with this surrogate."""
    operator: Operator = Gibbs()
    """The Stein operator of RODEO's terms."""
    decay: float = eqx.field(static=True, default=DECAY)
    """How much a step counts in the moving averages, relative to the next step."""
    ridge: float = eqx.field(static=True, default=RIDGE)
    """The ridge of the least-squares problem, in units of each term's mean square."""
    instead: ClassVar = (
        "Turn off the terms that need the mean, Lariat(gradients=False, memory=False), or add "
        "surrogate=...; or use RLOO or Rodeo."
    )
    cv_is_quadratic: ClassVar = False
    fewest: ClassVar = (2, "because each term is made of other samples")

    def __check_init__(self):
        check_whole("Lariat", "context_size", self.context_size, 0)
        check_whole("Lariat", "number of hidden units", self.hidden, 0)
        if self.num_terms == 0:
            raise ValueError(
                "Lariat has no terms left: turn on one of values, gradients, memory, context_size "
                "and surrogate, or use RLOO."
            )
        if self.weighted and not self.gradients:
            raise ValueError("Lariat has weighted=True but gradients=False: turn gradients on.")
        if not (0 < self.decay < 1 and self.ridge > 0):
            raise ValueError(
                "Lariat needs a decay between 0 and 1 and a positive ridge, but was given "
                f"{self.decay} and {self.ridge}."
            )

    @property
    def needs(self):
        return "has_mean" if self._needs_mean else None

    @property
    def needs_gradient(self):
        return self.gradients or (self.surrogate is not None and self.surrogate.needs_gradient)

    @property
    def cancels_constant(self):
        return not (self.values or self._needs_mean)

    @property
    def _needs_mean(self) -> bool:
        return self.gradients or self._remembers or self.context_size > 0

    @property
    def _remembers(self) -> bool:
        return not self.gradients if self.memory is None else self.memory

    @property
    def num_terms(self) -> int:
        return (
            2 * self.values
            + 3 * self.gradients * (1 + self.weighted)
            + 2 * self._remembers
            + 3 * (self.context_size > 0)
            + 2 * (self.surrogate is not None)
        )

    def init(self, key, dist=None):
        """The context's network starts at zero, except for its Glorot uniform hidden layer."""
        memory = context = None
        context_key, surrogate_key = jax.random.split(key)
        if self._remembers or self.context_size:
            if dist is None:
                raise ValueError(
                    "Lariat with memory (its default where gradients=False) or with a context has "
                    "arrays of the distribution's size: pass the distribution too, init(key, dist)."
                )
            dist = as_distribution(dist)
            if self._remembers:
                memory = (jnp.zeros(dist.event_shape), jnp.zeros(dist.event_shape))
            if self.context_size:
                context = self._init_context(context_key, dist)
        averages = self.Averages(Products.zero(self.num_terms), jnp.zeros(()), memory)
        surrogate = None if self.surrogate is None else self.surrogate.init(surrogate_key)
        return self.CV(averages, context, surrogate)

    def cv_optimizer(self, learning_rate):
        """Plain gradient descent, of step size 1, for the averages, and Adam for the networks."""
        return average_or_adam(learning_rate, lambda cv: cv.averages)

    def gradient(self, cv, dist, at):
        return self._terms(cv, dist, at).combine(self._coefficients(cv))

    def adapt(self, cv, dist: Any, at):
        past = cv.averages.products
        spread = spread_of(at)
        # If all samples of an element are equal, an accident shows in its distance, not its spread.
        middle = self._value(cv, at)
        far = jnp.max(jnp.abs(at.fx - middle), axis=0), middle
        factors = past.factors(spread, at, *far)

        @eqx.filter_grad(has_aux=True)
        def loss(learned):
            context, surrogate = learned
            terms = self._terms(self.CV(cv.averages, stop(context), surrogate), dist, at)
            grad, products = terms.combine_and_products(self._coefficients(cv), factors)
            square, unit = relative_mean_square(grad, dist, at)
            fit = self._context_loss(context, cv, dist, at) if self.context_size else 0.0
            return square + fit, (grad, unit, products)

        stop = lambda tree: jax.tree.map(jax.lax.stop_gradient, tree)
        (context, surrogate), (grad, unit, products) = loss((cv.context, cv.surrogate))
        context = times_square(context, power_of_two(past.unit(spread)))
        surrogate = times_square(surrogate, unit)
        weight, influence = at.sound_share, at.only_sound(past.influence(spread, *far))
        value = weight * middle + mean(influence * (at.fx - middle))
        memory = None
        if self._remembers:
            own = lambda g: expand(influence, g.ndim) * g
            of_sound = expand(at.only_sound(jnp.ones_like(influence)), at.x.ndim - 1)
            slope, scale = dist.slope(jax.tree.map(own, grad))
            if self.gradients:
                assert at.dfx is not None
                slope, scale = expand(influence, at.x.ndim - 1) * at.dfx, jnp.ones_like(at.x)
            batch = lambda v: jnp.mean(v, axis=tuple(range(v.ndim - dist.event_ndim)))
            memory = batch(slope), batch(scale * of_sound)
        average = lambda old, new: self.decay * old + (1 - self.decay) * new
        following = self.Averages(
            past.step(products, weight, spread, self.decay),
            average(cv.averages.value, value),
            jax.tree.map(average, cv.averages.memory, memory),
        )
        forget = at.has_outgrown(cv.averages.value / jnp.maximum(past.weight, 1 - self.decay))
        following = unless_outgrown(unless(forget, following), past, at)
        step = jax.tree.map(jnp.subtract, cv.averages, following)
        return grad, self.CV(step, context, surrogate)

    def _coefficients(self, cv):
        return cv.averages.products.coefficients(self.decay, self.ridge)

    def _terms(self, cv, dist, at):
        fx, score = at.fx, None if dist.large_scores else dist.score(at.x)
        one = jnp.ones_like(fx)
        # Each term is a pair: the weights of the K scores, and a vector that is added, if any.
        terms: list = [(leave_one_out(fx), None)]
        if self.values:
            # In units of f's spread the offset is like the other terms, which are linear in f.
            offset = -cv.averages.products.unit(spread_of(at)) * one
            terms += [(offset, None), (self._value(cv, at) - mean_of_others(fx), None)]
        if self._needs_mean:
            terms += self._linear_terms(cv, dist, at)
        if self.surrogate is not None:
            terms += stein_terms(self.operator, self.surrogate, cv.surrogate, dist, at, score)
        return make_terms(terms, dist, at.x, score)

    def _linear_terms(self, cv, dist, at) -> list:
        mean = dist.mean
        centred = at.x - mean
        inner = lambda v, x: sum_of_events(v * x, at.event_ndim)
        terms: list = []

        def linear(v, v_others, v_mean):
            """Add the two terms of a linear model with slope v."""
            v_mean = jnp.broadcast_to(v_mean, mean.shape)
            terms.append((-inner(v_others, centred), dist.pull_mean(v_mean)))
            terms.append((inner(v, mean_of_others(centred)), None))

        if self.gradients:
            slopes = [at.dfx, jnp.abs(centred) * at.dfx] if self.weighted else [at.dfx]
            for v in slopes:
                terms.append((mean_of_others(inner(v, centred)), None))  # −τ₋ₖ
                linear(v, mean_of_others(v), mean_of_samples(v))
        if self._remembers:
            memory = self._memory(cv)
            linear(memory, memory, memory)
        if self.context_size:
            baseline, slope = self._context(cv.context, dist, at)
            terms.append((-jnp.ones_like(at.fx) * baseline, None))
            linear(slope, slope, slope)
        return terms

    def _value(self, cv, at):
        """The mean of f over past steps; at the first step, over the samples of this step."""
        weight, share = cv.averages.products.weight, at.sound_share
        past = cv.averages.value / jnp.where(weight > 0, weight, 1)
        now = mean(at.fx) / jnp.where(share > 0, share, 1)
        return jnp.where(weight > 0, past, now)

    def _memory(self, cv):
        weight = cv.averages.products.weight
        slope, variance = cv.averages.memory
        total = variance + SHRINK * weight
        return slope / jnp.where(total > 0, total, 1)

    def _init_context(self, key, dist):
        outputs = 1 + math.prod(dist.event_shape)
        inputs, maps = self.context_size, {}
        if self.hidden:
            maps["w_in"] = jax.nn.initializers.glorot_uniform()(key, (inputs, self.hidden))
            maps["b_in"] = jnp.zeros(self.hidden)
            inputs = self.hidden
        return maps | {"w_out": jnp.zeros((inputs, outputs)), "b_out": jnp.zeros(outputs)}

    def _context(self, maps, dist, at):
        """A baseline and a slope for each element of the batch."""
        if at.context is None or at.context.shape != (*dist.batch_shape, self.context_size):
            given = None if at.context is None else at.context.shape
            raise ValueError(
                f"Lariat(context_size={self.context_size}) needs a context of shape "
                f"{(*dist.batch_shape, self.context_size)}, but was given {given}."
            )
        inputs = at.context
        if self.hidden:
            inputs = jax.nn.leaky_relu(inputs @ maps["w_in"] + maps["b_in"])
        outputs = inputs @ maps["w_out"] + maps["b_out"]
        return outputs[..., 0], outputs[..., 1:].reshape(*dist.batch_shape, *dist.event_shape)

    def _context_loss(self, maps, cv, dist, at):
        """The mean squared error of the linear model, in f and in its gradient, in units of f's
        spread."""
        baseline, slope = self._context(maps, dist, at)
        centred = at.x - dist.mean
        unit = power_of_two(cv.averages.products.unit(spread_of(at)))
        residual = at.fx - self._value(cv, at) - baseline
        if self.gradients:
            misfit = sum_of_events((centred * (at.dfx - slope) / unit) ** 2, at.event_ndim)
        else:
            misfit, residual = 0, residual - sum_of_events(slope * centred, at.event_ndim)
        return mean(at.only_sound((residual / unit) ** 2 + misfit))
