"""The base class of surrogates: cheap approximations of f at the neighbours of each sample."""

import abc
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray

from ..objective import Evaluated
from ..operators import Row


class Values(NamedTuple):
    """A surrogate at the `neighbours` of each sample, and at the sample itself (`self`)."""

    neighbours: Float[Array, "samples ... c n"]
    self: Float[Array, "samples ..."]


class Surrogate(eqx.Module):
    r"""Two functions of a state, $h_k$ (local) and $h^*_k$ (global), that approximate $f$.

    They may depend on every sample but $x_k$, which keeps the estimate unbiased.
    """

    needs_gradient: ClassVar[bool] = True
    r"""Whether $\nabla f$ at the samples is needed."""
    needs_objective: ClassVar[bool] = False
    """Whether f itself must be evaluated at the neighbours."""

    def init(self, key: PRNGKeyArray) -> Any:
        """The initial value of what is learned; `None` if nothing is learned."""
        return None

    @abc.abstractmethod
    def evaluate(self, cv: Any, row: Row, at: Evaluated) -> tuple[Values, Values]:
        r"""$h_k$ and $h^*_k$ at $x_k$ and at its neighbours, for every sample $k$."""
