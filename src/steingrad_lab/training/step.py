"""Training steps, compiled so that one dispatch runs many of them."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt8

from steingrad.cv_optimizer import cv_optimizer
from steingrad.estimators import Estimator

from ..models import VAE, elbo_and_grad
from .config import Config
from .devices import Devices

# The decay of the moving averages from which `grad_variance` is computed.
DECAY = 0.999


class State(NamedTuple):
    """Everything that changes during training, for one seed."""

    model: Any
    """The arrays of the model, without its static parts."""
    optimizer: Any
    cv: tuple
    cv_optimizer: Any
    grad_mean: Any
    """Moving average of the encoders' gradient."""
    grad_square: Any
    """Moving average of the square of the encoders' gradient."""
    elbo_sum: Float[Array, ""]
    """Sum of the ELBO over the steps since the last report."""
    elbo_steps: Int[Array, ""]
    """Number of steps since the last report."""
    elbo_rest: Float[Array, ""]
    """What `elbo_sum` lacks because it is rounded. The sum is `elbo_sum + elbo_rest`."""


class Trainer(NamedTuple):
    """The constant part of training. It makes the initial state and runs the steps."""

    config: Config
    model: VAE
    """The structure of the model; its arrays may be shapes only."""
    estimators: tuple[Estimator, ...]
    max_steps: int
    """The most steps in one dispatch."""
    devices: Devices | None = None
    """The devices that share each batch; `None` for one device."""

    def init(self, seed: int | Int[Array, ""], build: Callable[[PRNGKeyArray], VAE]) -> State:
        model_key, cv_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), 0))
        arrays = eqx.filter(build(model_key), eqx.is_inexact_array)
        cv_keys = jax.random.split(cv_key, len(self.estimators))
        layers = zip(self.estimators, cv_keys, self.config.codes_of_layers(), strict=True)
        cv = tuple(estimator.init(key, codes) for estimator, key, codes in layers)
        # Called twice, because buffers that are donated must not be shared.
        zeros = lambda: jax.tree.map(jnp.zeros_like, arrays.encoders)
        return State(
            arrays,
            self.optimizer.init(arrays),
            cv,
            self.cv_optimizer.init(cv),
            zeros(),
            zeros(),
            jnp.zeros(()),
            jnp.zeros((), jnp.int32),
            jnp.zeros(()),
        )

    @property
    def optimizer(self) -> optax.GradientTransformation:
        kind = optax.radam if self.config.optimizer == "radam" else optax.adam
        return kind(self.config.learning_rate)

    @property
    def cv_optimizer(self) -> optax.GradientTransformation:
        return cv_optimizer(self.estimators, self.config.cv_learning_rate)

    def run(
        self,
        state: State,
        seed: Int[Array, ""],
        images: UInt8[Array, "images pixels"],
        start: Int[Array, ""],
        stop: Int[Array, ""],
    ) -> State:
        """Runs the steps from `start` to `stop`, at most `max_steps` of them.

        The random numbers of a step depend only on the seed and the number of the step. So the
        result does not depend on how a run is divided into calls of this function.
        """
        batches = Batches.between(seed, start, self.max_steps, len(images), self.config.batch_size)

        def steps(start, stop, state, adapt):
            one = lambda step, state: self.step(state, seed, step, images[batches.at(step)], adapt)
            return jax.lax.fori_loop(start, stop, one, state)

        every = self.config.adapt_every
        if self.max_steps == 1:  # without a loop: see `steps_per_dispatch`
            adapt = True if every == 1 else start % every == 0
            return self.step(state, seed, start, images[batches.at(start)], adapt)
        if every == 1:
            return steps(start, stop, state, adapt=True)

        def until_adapted(carry):
            """Runs steps without adaptation up to a multiple of `every`, then one step with it.

            A condition inside each step would be simpler, but XLA would copy the state.
            """
            step, state = carry
            due = step + jnp.minimum(-step % every, stop - step)  # never beyond 32-bit integers
            after = jnp.minimum(due + 1, stop)
            state = steps(step, due, state, adapt=False)
            return after, steps(due, after, state, adapt=True)

        unfinished = lambda carry: carry[0] < stop
        return jax.lax.while_loop(unfinished, until_adapted, (start, state))[1]

    def step(
        self,
        state: State,
        seed: Int[Array, ""],
        step: Int[Array, ""],
        images: UInt8[Array, "batch pixels"],
        adapt: bool | Bool[Array, ""] = True,
    ) -> State:
        """Runs one step. If `adapt` is false, the control variates keep their values.

        If `adapt` is a Python `False`, their gradient is not even computed.
        """
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), step)
        observe_key, elbo_key = jax.random.split(key)
        images = images if self.devices is None else self.devices.share(images)
        model = eqx.combine(state.model, self.model)
        y = model.likelihood.observe(observe_key, images)
        elbo, grads = elbo_and_grad(
            model,
            y,
            self.estimators,
            state.cv,
            key=elbo_key,
            common_random_numbers=self.config.common_random_numbers,
            average_decoder=self.config.average_decoder,
        )

        ascent = dataclasses.replace(
            state.model.with_generative(grads.generative), encoders=grads.encoders
        )
        updates, optimizer = self.optimizer.update(
            jax.tree.map(jnp.negative, ascent), state.optimizer, state.model
        )
        cv: Any = state.cv
        cv_optimizer = state.cv_optimizer
        if adapt is not False:
            cv_updates, cv_optimizer = self.cv_optimizer.update(grads.cv, cv_optimizer, cv)
            cv = optax.apply_updates(cv, cv_updates)
        if not isinstance(adapt, bool):
            select = lambda new, old: jnp.where(adapt, new, old)
            before = (state.cv, state.cv_optimizer)
            cv, cv_optimizer = jax.tree.map(select, (cv, cv_optimizer), before)
        elbo_sum, elbo_rest = add(state.elbo_sum, state.elbo_rest, elbo)
        return State(
            optax.apply_updates(state.model, updates),
            optimizer,
            cv,
            cv_optimizer,
            average(state.grad_mean, grads.encoders),
            average(state.grad_square, jax.tree.map(jnp.square, grads.encoders)),
            elbo_sum,
            state.elbo_steps + 1,
            elbo_rest,
        )


def add(
    total: Float[Array, ""], rest: Float[Array, ""], x: Float[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Adds `x` to the sum `total + rest`, in about twice the precision of one number.

    `total` is the rounded sum and `rest` what it lacks (Knuth's two-sum). In a single float32, the
    sum of a million ELBOs is wrong by one percent.
    """
    # The barriers keep XLA from replacing (total + x) - total by x.
    new, x = jax.lax.optimization_barrier((total + x, x))
    part = new - total
    lost = (total - (new - part)) + (x - part)
    rest = rest + lost
    total = jax.lax.optimization_barrier(new + rest)
    return total, rest - (total - new)


class Batches(NamedTuple):
    """The images of each step, in a new random order for every epoch."""

    orders: Int[Array, "epochs images"]
    first_epoch: Int[Array, ""]
    batch_size: int
    per_epoch: int

    @classmethod
    def between(cls, seed, start, max_steps: int, num_images: int, batch_size: int) -> "Batches":
        """Returns the orders of all epochs that `max_steps` steps from `start` can reach."""
        per_epoch = num_images // batch_size
        epochs = (max_steps - 2) // per_epoch + 2
        first = start // per_epoch
        key = jax.random.fold_in(jax.random.key(seed), 2)
        order = lambda epoch: jax.random.permutation(jax.random.fold_in(key, epoch), num_images)
        orders = jax.vmap(order)(first + jnp.arange(epochs, dtype=jnp.int32))
        return cls(orders, first, batch_size, per_epoch)

    def at(self, step: Int[Array, ""]) -> Int[Array, " batch"]:
        row = step // self.per_epoch - self.first_epoch
        column = step % self.per_epoch * self.batch_size
        return jax.lax.dynamic_slice(self.orders, (row, column), (1, self.batch_size))[0]


def average(old: Any, new: Any) -> Any:
    """Returns the moving averages `DECAY * old + (1 - DECAY) * new`.

    They are computed in another form, in which the weights still add up to 1 after rounding: in
    float32, the averages would otherwise be too large by a factor of 1 + 1.3e-5.
    """
    return jax.tree.map(lambda old, new: old + (1 - DECAY) * (new - old), old, new)


def grad_variance(state: State, step: int) -> Float[Array, ""]:
    """Returns the variance of the encoders' gradient, averaged over their parameters."""
    return _variance(state.grad_mean, state.grad_square, 1 - DECAY**step)


@jax.jit
def _variance(grad_mean, grad_square, correction):
    total = lambda tree: jnp.sum(jnp.stack([jnp.sum(leaf) for leaf in jax.tree.leaves(tree)]))
    square = total(grad_square) / correction
    mean = total(jax.tree.map(lambda m: (m / correction) ** 2, grad_mean))
    return (square - mean) / sum(leaf.size for leaf in jax.tree.leaves(grad_mean))
