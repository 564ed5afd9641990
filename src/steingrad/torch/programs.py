"""The functions that run in JAX, compiled once for each shape."""

import contextlib
import functools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..arrays import cast, compute_dtype
from ..cv_optimizer import cv_optimizer
from ..estimators import Estimator
from ..estimators.base import learn, prepare, stamp
from ..estimators.checks import check_distribution
from ..objective import Evaluated
from .distributions import Law


class State(NamedTuple):
    """The control variates and the state of their optimiser, as two vectors. They are buffers of a
    module, and each passes between the frameworks in one piece."""

    numbers: Any
    counts: Any
    """The integers of the state; `None` if there are none."""

    def map(self, function: Callable[[Any], Any]) -> "State":
        return State(*(None if part is None else function(part) for part in self))


class Seen(NamedTuple):
    """The evaluations of f at the samples and at further points."""

    x: Any
    fx: Any
    scaled_dfx: Any
    """∇f times `factor`, as the backward pass through the loss computes it."""
    factor: Any
    """The factor of f in the loss, the same for all samples and elements of the batch."""
    context: Any
    fy: Any = None
    """f at the further points that the estimator proposed; `None` if there are none."""
    memo: Any = None
    """The memo that the estimator returned with the further points."""


class Programs:
    """The functions of one estimator, compiled once for all modules with the same settings."""

    @classmethod
    def of(cls, estimator: Estimator, cv_learning_rate: Any) -> "Programs":
        try:
            return _shared(estimator, cv_learning_rate)
        except TypeError:  # settings with arrays, such as a transition matrix, have no hash
            return cls(estimator, cv_learning_rate)

    def __init__(self, estimator: Estimator, cv_learning_rate: Any):
        self.estimator = estimator
        self.cv_learning_rate = cv_learning_rate
        self.optimizer = cv_optimizer(estimator, cv_learning_rate)
        self.objective: Callable[[np.ndarray], np.ndarray] | None = None
        self._lock = threading.RLock()
        self._sizes: dict[tuple, tuple[int, int]] = {}
        self._checked: set[Any] = set()
        self.init = jax.jit(self._init, static_argnums=(0, 1))
        self.sample = jax.jit(self._sample, static_argnums=0)
        self.propose = jax.jit(self._propose, static_argnums=0)
        self.gradient = jax.jit(self._gradient, static_argnums=(0, 1))

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        return Programs.of, (self.estimator, self.cv_learning_rate)

    def check(self, law: Law) -> None:
        """Raise unless the estimator takes this kind of distribution."""
        if law.kind not in self._checked:
            check_distribution(self.estimator, law.kind(jnp.zeros(law.state_shape)))
            self._checked.add(law.kind)

    @property
    def couples_samples(self) -> bool:
        """Whether the estimator draws its samples in its own way."""
        return type(self.estimator).draw is not Estimator.draw

    def tree(self, kind: Any, state_shape: tuple[int, ...], state: State) -> tuple[Any, Any]:
        """The control variates and the state of their optimiser."""
        structs = jax.eval_shape(partial(self._fresh, kind, state_shape), np.zeros(2, np.uint32))
        return unpack(structs, state)

    def sizes(self, kind: Any, state_shape: tuple[int, ...]) -> tuple[int, int]:
        """The lengths of the two vectors of `State`."""
        if (kind, state_shape) not in self._sizes:
            init = partial(self._init, kind, state_shape)
            vectors = jax.eval_shape(init, np.zeros(2, np.uint32))
            size = lambda vector: 0 if vector is None else vector.size
            self._sizes[kind, state_shape] = size(vectors.numbers), size(vectors.counts)
        return self._sizes[kind, state_shape]

    @contextlib.contextmanager
    def evaluating(self, objective: Callable[[np.ndarray], np.ndarray]):
        """Inside this context compiled functions call `objective` for f itself. A lock lets one
        thread in at a time, because modules share the compiled functions."""
        with self._lock:
            outer, self.objective = self.objective, objective
            try:
                yield
            finally:
                self.objective = outer

    def _fresh(self, kind, state_shape, seeds):
        cv = self.estimator.init(key_of(seeds), kind(jnp.zeros(state_shape)))
        return cv, self.optimizer.init(cv)

    def _init(self, kind, state_shape, seeds):
        return pack(self._fresh(kind, state_shape, seeds))

    def _sample(self, kind, seeds, logits):
        # The same keys as in `Estimator.per_element`.
        sample_key, _, _ = jax.random.split(key_of(seeds), 3)
        return self.estimator.draw(sample_key, kind(logits))

    def _propose(self, kind, seeds, logits, seen, state):
        """Returns further points, and the memo that belongs to them."""
        return self.estimator.propose(*self._situation(kind, seeds, logits, seen, state))

    def _gradient(self, kind, adapting, seeds, logits, seen, state, current):
        """Returns the estimate for each element of the batch; the gradient of the logits, which is
        the estimate times the factor of f in the loss; and, if adapting, the state after `current`,
        which may differ from the `state` with which the samples were drawn."""
        cv, dist, at = self._situation(kind, seeds, logits, seen, state)
        with_factor = lambda grad: (grad * (seen.factor * len(seen.x))).astype(logits.dtype)
        if not adapting:
            grad = stamp(self.estimator.gradient(cv, dist, at), dist, at)
            return grad, with_factor(grad), None
        grad, cv_grad = learn(self.estimator, cv, dist, at)
        cv, optimizer = self._unpack(dist, current)
        updates, optimizer = self.optimizer.update(cast(cv_grad, cv), optimizer, cv)
        return grad, with_factor(grad), pack((optax.apply_updates(cv, updates), optimizer))

    def _situation(self, kind, seeds, logits, seen, state):
        dist, dfx = kind(logits), None
        if seen.scaled_dfx is not None:
            dfx = seen.scaled_dfx.astype(compute_dtype(seen.scaled_dfx)) / seen.factor
        _, _, own_key = jax.random.split(key_of(seeds), 3)
        f = partial(self._call_objective, seen.fx.dtype, dist.event_ndim)
        at = Evaluated(seen.x, seen.fx, dfx, seen.fy, f, own_key, seen.context, seen.memo)
        return prepare(self.estimator, self._unpack(dist, state)[0], dist, at)

    def _unpack(self, dist, state) -> Any:
        if state is None:
            return None, None
        shape = (*dist.parameters.shape[len(dist.batch_shape) :],)
        return self.tree(type(dist), shape, state)

    def _call_objective(self, dtype, event_ndim, x):
        struct = jax.ShapeDtypeStruct(x.shape[: x.ndim - event_ndim], dtype)
        call = lambda x: self.objective(np.asarray(x))  # pyright: ignore[reportOptionalCall]
        return jax.pure_callback(call, struct, x, vmap_method="sequential")


@functools.lru_cache(maxsize=256)
def _shared(estimator: Estimator, cv_learning_rate: Any) -> Programs:
    return Programs(estimator, cv_learning_rate)


def key_of(seeds: Any) -> Any:
    """A key from two numbers."""
    return jax.random.wrap_key_data(seeds, impl="threefry2x32")


def pack(tree: Any) -> State:
    """Pack all floating-point numbers into one vector, and all others into a second."""
    leaves = jax.tree.leaves(tree)
    floating = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating)
    # The dtype of what is learned, because some optimisers mix single and double precision.
    dtype = jnp.result_type(float)
    numbers = [jnp.ravel(leaf).astype(dtype) for leaf in leaves if floating(leaf)]
    counts = [jnp.ravel(leaf) for leaf in leaves if not floating(leaf)]
    join = lambda parts: jnp.concatenate(parts) if parts else None
    return State(join(numbers), join(counts))


def unpack(structs: Any, state: State) -> Any:
    """The inverse of `pack`."""
    leaves, structure = jax.tree.flatten(structs)
    start, out = [0, 0], []
    for leaf in leaves:
        which = 0 if jnp.issubdtype(leaf.dtype, jnp.floating) else 1
        part = state[which][start[which] : start[which] + leaf.size]
        start[which] += leaf.size
        out.append(jnp.reshape(part, leaf.shape).astype(leaf.dtype))
    return jax.tree.unflatten(structure, out)
