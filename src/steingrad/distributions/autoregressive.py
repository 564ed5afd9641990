"""Sequences of tokens, each drawn given the tokens before it, by a step function with a carry."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..arrays import as_index, brief, check_whole, compute_dtype, is_concrete, log_softmax, take
from ..derivatives import on_each_device
from ..draws import categorical
from .base import COORDINATES_AT_A_TIME, MAX_STATES
from .from_function import FromFunction, batch_of, check_parameters

Step = Callable[[Any, Any, Array], tuple[Any, Array]]


class Autoregressive(FromFunction):
    r"""Sequences of $T$ tokens (`length`) out of $V$ (`vocabulary`), $q(x) = \prod_t q(x_t \mid x_1
    \dots x_{t-1})$, from a recurrent step: a GRU, a language model with a cache, a table.

    `step(parameters, carry, token)` takes the carry of one sequence, any pytree of arrays, and the
    previous token as a one-hot vector `[V]` (all zeros at the first step). It returns the new carry
    and the logits `[V]` of the next token. A logit of $-\infty$ excludes a token, but not all
    tokens may be excluded. (That is an error; under `jit`, which cannot raise it, $\log q$ is NaN.)
    `carry` is the first carry, or a function `carry(parameters)` that returns it. A sample has
    shape `[*batch, T, V]`, one one-hot vector for each token, so that $\nabla f$ is defined.

    With `end`, the index of the end-of-sequence token, sequences have different lengths: after the
    first `end` only `end` follows, with probability 1. `mask` and `lengths` show where a sequence
    ends. All other states have probability 0.

    The `parameters`, any pytree, are shared by the whole batch. The elements of the batch differ in
    their `conditions`, arrays that begin with the axes of the batch (`batch_shape`; by default
    their first axis alone). The first carry is then `carry(parameters, condition)`; it must hold
    whatever the steps need of the condition. Conditions are constants. If the weights of an encoder
    are to be differentiated, make them parameters and call the encoder in `carry`.

    Samples take one `lax.scan`, and so do log-probabilities. For an operator the tokens are the
    coordinates, and each neighbour costs another scan.

    >>> import equinox as eqx, jax, jax.numpy as jnp, steingrad as sg
    >>> class Policy(eqx.Module):
    ...     cell: eqx.nn.GRUCell
    ...     out: eqx.nn.Linear
    >>> def step(policy, hidden, token):
    ...     hidden = policy.cell(token, hidden)
    ...     return hidden, policy.out(hidden)
    >>> keys = jax.random.split(jax.random.key(0))
    >>> policy = Policy(eqx.nn.GRUCell(5, 8, key=keys[0]), eqx.nn.Linear(8, 5, key=keys[1]))
    >>> q = Autoregressive(step, policy, jnp.zeros(8), length=6, vocabulary=5, end=4)
    >>> x = q.sample(jax.random.key(1), (3,))
    >>> x.shape, q.lengths(x), q.log_prob(x).shape
    ((3, 6, 5), Array([4, 4, 5], dtype=int32), (3,))
    >>> f = lambda x: jnp.sum(x[..., 0], axis=-1)  # how often token 0 occurs
    >>> value, grads = sg.value_and_grad(f, q, sg.RLOO(4), key=jax.random.key(2))
    >>> grads.parameters.out.weight.shape
    (5, 8)
    """

    shares_parameters: ClassVar = True
    step: Step = eqx.field(static=True)
    _parameters: Any
    carry: Any
    _carry_fn: Callable | None = eqx.field(static=True)
    conditions: Any
    length: int = eqx.field(static=True)
    vocabulary: int = eqx.field(static=True)
    end: int | None = eqx.field(static=True)
    _batch_shape: tuple[int, ...] = eqx.field(static=True)
    _built_dtype: Any = eqx.field(static=True)
    _factors: Any

    def __init__(
        self,
        step: Step,
        parameters: Any,
        carry: Any,
        *,
        length: int,
        vocabulary: int,
        end: int | None = None,
        conditions: Any = None,
        batch_shape: Sequence[int] | None = None,
    ):
        self.length, self.vocabulary = as_index(length), as_index(vocabulary)
        check_whole("Autoregressive", "length", self.length, 1)
        check_whole("Autoregressive", "vocabulary", self.vocabulary, 2)
        self.end = None if end is None else as_index(end)
        if end is not None and not (isinstance(self.end, int) and 0 <= self.end < vocabulary):
            raise ValueError(
                f"Autoregressive needs end=None or the index of a token, 0 to {vocabulary - 1} "
                f"with vocabulary={vocabulary}, but was given end={end!r}."
            )
        if any(map(eqx.is_array, jax.tree.leaves(step))):
            raise TypeError(
                "Autoregressive was given a step with arrays inside, which would not be "
                "differentiated. Pass them as parameters: step=lambda cell, carry, token: "
                "cell(...), parameters=cell."
            )
        self.step = step
        self._parameters = parameters
        check_parameters("Autoregressive", parameters)
        self._built_dtype = self.dtype
        self._carry_fn = carry if callable(carry) else None
        self.carry = None if callable(carry) else jax.tree.map(jnp.asarray, carry)
        self.conditions = jax.tree.map(jnp.asarray, conditions)
        self._batch_shape = batch_of("Autoregressive", self.conditions, batch_shape)
        self._factors = None
        if self._batch_shape and conditions is None:
            raise ValueError(
                f"Autoregressive was given batch_shape={self._batch_shape} without conditions: all "
                "elements would be the same. Pass conditions=..., arrays that begin with those "
                "axes, or draw more samples."
            )
        if conditions is not None and self._carry_fn is None:
            raise ValueError(
                "Autoregressive was given conditions, but its carry is not a function of them: "
                "pass carry=lambda parameters, condition: ..., which returns the first carry."
            )
        _check_step(self)

    @property
    def event_shape(self):
        return (self.length, self.vocabulary)

    @property
    def num_coordinates(self):
        """The number of tokens, $T$."""
        return self.length

    @property
    def num_values(self):
        """The size of the vocabulary, $V$."""
        return self.vocabulary

    @property
    def num_states(self):
        """$V^T$; with `end`, the number of sequences in which only `end` follows `end`."""
        return self._continuations()[0]

    @property
    def full_support(self):
        return self.end is None

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()):
        return self.sample_and_log_prob(key, shape)[0]

    def sample_and_log_prob(
        self, key: PRNGKeyArray, shape: tuple[int, ...] = ()
    ) -> tuple[Float[Array, "*lead T V"], Float[Array, "*lead T"]]:
        """Returns samples and the log-probability of each of their tokens, from one scan."""
        x, log_probs, stuck = self._draw(key, shape)
        _check_tokens_left(stuck)
        return x, log_probs

    def log_prob(self, x):
        return jnp.sum(self.step_log_prob(x), axis=-1)

    def step_log_prob(self, x: Float[Array, "... T V"]) -> Float[Array, "... T"]:
        r"""$\log q(x_t \mid x_1 \dots x_{t-1})$ of each token; 0 after the end. (After a token of
        probability 0 it is undefined, and the number has no meaning.)"""
        _, log_probs, stuck = self._read(x)
        _check_tokens_left(stuck)
        return log_probs

    # Always compiled, because a scan outside `jit` would be compiled at each call.
    score = eqx.filter_jit(FromFunction.score)
    log_ratio = eqx.filter_jit(FromFunction.log_ratio)
    score_change = eqx.filter_jit(FromFunction.score_change)

    def weighted_step_score(
        self, weights: Float[Array, "... T"], x: Float[Array, "... T V"]
    ) -> Any:
        r"""$\sum_k \sum_t w_{k,t} \nabla_\eta \log q_\eta(x_{k,t} \mid x_{k,1} \dots
        x_{k,t-1})$ over all sequences, shaped like the parameters: one vector–Jacobian product."""
        log_probs: Callable[[Any], Array] = lambda q: q.step_log_prob(x.astype(q.dtype))
        return self._pull_back(weights, log_probs)

    def mask(self, x: Float[Array, "... T V"]) -> Float[Array, "... T"]:
        """1 for each token up to the first `end` and for that `end` itself, 0 after it."""
        if self.end is None:
            return jnp.ones(x.shape[:-1], x.dtype)
        ends = self._ends(x).astype(jnp.int32)
        return (jnp.cumsum(ends, axis=-1, dtype=jnp.int32) == ends).astype(x.dtype)

    def lengths(self, x: Float[Array, "... T V"]) -> Int[Array, "..."]:
        """The number of tokens up to and including the first `end`."""
        return jnp.sum(self.mask(x).astype(jnp.int32), axis=-1, dtype=jnp.int32)

    def index(self, x):
        """The index of each token; after the end, `end`."""
        index = jnp.argmax(x, axis=-1).astype(jnp.int32)
        return index if self.end is None else jnp.where(self.mask(x) > 0, index, self.end)

    def state(self, index):
        return jax.nn.one_hot(index, self.vocabulary, dtype=self.dtype)

    def enumerate(self):
        """Every state, of shape `[N, T, V]`, with the last token changing fastest."""
        if self.num_states > MAX_STATES:
            raise ValueError(
                f"Cannot enumerate the {self.num_states} sequences of {self.length} tokens out of "
                f"{self.vocabulary}: at most 2^20 = {MAX_STATES} are allowed. Use a shorter length "
                "or fewer tokens, or an estimator in place of the exact sum."
            )
        index = np.zeros((1, 0), np.int32)
        for _ in range(self.length):
            ended = (index == self.end).any(axis=1)
            children = np.where(ended, 1, self.vocabulary)
            parent = np.repeat(np.arange(len(index)), children)
            first = np.cumsum(children) - children
            token = np.where(ended[parent], self.end or 0, np.arange(len(parent)) - first[parent])
            index = np.column_stack([index[parent], token.astype(np.int32)])
        return self.state(jnp.asarray(index))

    def state_number(self, x):
        # Sequences with a smaller token at a step come before those with a larger one.
        after = np.minimum(self._continuations()[1:], 2**31 - 1).astype(np.int32)
        index = self.index(x)
        below = index * jnp.asarray(after)
        if self.end is not None:
            below = below - (index > self.end).astype(jnp.int32) * jnp.asarray(after - 1)
        return jnp.sum(below * self.mask(x).astype(jnp.int32), axis=-1, dtype=jnp.int32)

    def linear_change(self, gradient, x, values, coordinates=None):
        gradient = take(gradient, coordinates, axis=-2)
        here = take(self.index(x), coordinates)[..., None]
        return take(gradient, values) - take(gradient, here)

    def _log_ratio(self, parameters, condition, x, values, coordinates):
        """For one state, a few neighbours at a time. Derivatives recompute it, to save memory."""

        @jax.checkpoint
        def at_coordinate(slot):
            coordinate, new = slot
            moved = lambda v: x.at[coordinate].set(self.state(v).astype(x.dtype))
            return jax.vmap(lambda v: self._log_prob(parameters, condition, moved(v)))(new)

        at_a_time = max(1, COORDINATES_AT_A_TIME // values.shape[-1])
        log_probs = jax.lax.map(at_coordinate, (coordinates, values), batch_size=at_a_time)
        return log_probs - self._log_prob(parameters, condition, x)

    def _log_prob(self, parameters, condition, x):
        return jnp.sum(self._read_one(parameters, condition, x)[1])

    @eqx.filter_jit
    def _read(self, x):
        return self._for_each(self._read_one, x)

    @eqx.filter_jit
    def _draw(self, key, shape):
        return self._for_each_key(self._draw_one, key, shape)

    def _read_one(self, parameters, condition, x):
        return self._scan(parameters, condition, lambda token, _: token, x)

    def _draw_one(self, parameters, condition, key):
        draw = lambda key, log_probs: self.state(categorical(key, log_probs))
        return self._scan(parameters, condition, draw, jax.random.split(key, self.length))

    def _scan(self, parameters, condition, choose: Callable, inputs):
        """Returns the tokens of one sequence, their log-probabilities, and whether steps were
        stuck.

        `choose` returns a token from a step's input and the log-probabilities of all tokens. A step
        is stuck if it excludes all tokens.
        """

        def advance(state, given):
            carry, token, ended, impossible = state
            carry, logits = self.step(parameters, carry, token)
            # After a token of probability 0, or after the end, all logits may be −∞. They must not
            # reach the softmax or its derivative.
            logits = jnp.where(impossible, 0, logits.astype(compute_dtype(logits)))
            if self.end is not None:
                only_end = jnp.where(jnp.arange(self.vocabulary) == self.end, 0, -jnp.inf)
                logits = jnp.where(ended, only_end.astype(logits.dtype), logits)
            log_probs = log_softmax(logits)
            token = choose(given, log_probs).astype(self.dtype)
            # A token of probability 0 that is not in x must add 0, not 0·(−∞).
            excluded = jnp.isneginf(log_probs)
            terms = token.astype(log_probs.dtype) * jnp.where(excluded, 0, log_probs)
            log_prob = jnp.sum(jnp.where(excluded & (token > 0), -jnp.inf, terms))
            impossible = impossible | jnp.isneginf(log_prob)
            if self.end is not None:
                ended = ended | self._ends(token)
            stuck = jnp.all(jnp.isneginf(logits))
            return (carry, token, ended, impossible), (token, log_prob, stuck)

        token, no = jnp.zeros(self.vocabulary, self.dtype), jnp.zeros((), bool)
        start = (self._first_carry(parameters, condition), token, no, no)
        start = on_each_device(start, like=(parameters, inputs))
        return jax.lax.scan(advance, start, inputs)[1]

    def _first_carry(self, parameters, condition):
        if self._carry_fn is None:
            return self._widened(self.carry)
        conditions = () if self.conditions is None else (self._widened(condition),)
        return self._widened(self._carry_fn(parameters, *conditions))

    def _widened(self, tree):
        """Cast arrays of the parameters' first dtype to their present one, which may be wider."""
        return jax.tree.map(
            lambda leaf: leaf.astype(self.dtype) if leaf.dtype == self._built_dtype else leaf,
            jax.tree.map(jnp.asarray, tree),
        )

    def _ends(self, x: Float[Array, "... V"]) -> Any:
        return jnp.argmax(x, axis=-1) == self.end

    def _continuations(self) -> list[int]:
        """The number of continuations of t tokens that have not ended, for t = 0 … T."""
        counts = [1]
        for _ in range(self.length):
            others = self.vocabulary - (self.end is not None)
            counts.append(others * counts[-1] + (self.end is not None))
        return counts[::-1]


def _check_step(q: Autoregressive) -> None:
    """Raise unless the step returns a carry like the previous one and a logit for each token."""
    drop = lambda leaf: jax.ShapeDtypeStruct(leaf.shape[len(q.batch_shape) :], leaf.dtype)
    dynamic, static = eqx.partition(q._parameters, eqx.is_array)

    def first(dynamic, condition):
        return q._first_carry(eqx.combine(dynamic, static), condition)

    before = jax.eval_shape(first, dynamic, jax.tree.map(drop, q.conditions))
    token = jax.ShapeDtypeStruct((q.vocabulary,), q.dtype)
    try:
        out = jax.eval_shape(
            lambda dynamic, *inputs: q.step(eqx.combine(dynamic, static), *inputs),
            dynamic,
            before,
            token,
        )
    except (TypeError, ValueError) as error:
        raise ValueError(
            "Autoregressive called step(parameters, carry, token) with a token of shape "
            f"{token.shape}, one-hot, and the carry {brief(before)}, but the call failed: {error}"
        ) from error
    if not isinstance(out, tuple) or len(out) != 2:
        raise TypeError(
            "Autoregressive needs a step that returns a pair, the new carry and the logits, but "
            f"this one returned {brief(out)}."
        )
    after, logits = out
    of = lambda tree: (
        jax.tree.structure(tree),
        [(a.shape, a.dtype) for a in jax.tree.leaves(tree)],
    )
    if of(before) != of(after):
        raise ValueError(
            "Autoregressive needs a step that returns a carry like the one it was given, "
            f"{brief(before)}, but this one returned {brief(after)}."
        )
    shape = getattr(logits, "shape", None)
    if shape != (q.vocabulary,):
        raise ValueError(
            f"Autoregressive needs a step that returns logits of shape {(q.vocabulary,)}, one for "
            f"each token of its vocabulary={q.vocabulary}, but this one returned "
            f"{brief(logits)}."
        )
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        raise TypeError(
            f"Autoregressive needs floating-point logits, but this step returned {logits.dtype}."
        )


def _check_tokens_left(stuck: Array) -> None:
    """Raise if a step excluded all tokens. Under `jit` this is not known, and nothing is raised."""
    if is_concrete(stuck) and np.asarray(stuck).any():
        step = int(np.argwhere(np.asarray(stuck))[:, -1].min())
        raise ValueError(
            f"No token is left at step {step} (counted from 0): the step function returned "
            "logits that are all −inf. Leave at least one token finite, such as `end`."
        )
