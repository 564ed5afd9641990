"""A surrogate whose inputs are the means over the other samples."""

from jaxtyping import Array, Float

from ..fast import mean_of_others, sum_of_events
from ..objective import Evaluated
from ..operators import Row
from .network import NetworkSurrogate


class PooledSurrogate(NetworkSurrogate):
    r"""$h_k(y) = H(\bar f_k, \bar t_k(y))$, the network of the means $\bar f_k = \frac1{K-1}
    \sum_{j \ne k} f_j$ and $\bar t_k(y) = \frac1{K-1} \sum_{j \ne k} t_j(y)$.

    The network is evaluated once for each sample and not for each pair of samples, so the cost
    grows with $K$, not $K^2$. With $K = 2$ this is `MLPSurrogate`. The settings `hidden`, `layers`
    and `slope` are the same.

    >>> PooledSurrogate(hidden=32, layers=2).layers
    2
    """

    def evaluate(self, cv, row, at):
        return self.values(cv, *(pooled[None] for pooled in pool(row, at)))


def pool(
    row: Row, at: Evaluated
) -> tuple[
    Float[Array, "samples ..."], Float[Array, "samples ..."], Float[Array, "samples ... c n"]
]:
    """The means over j ≠ k of f_j, of t_j(x_k) and of t_j at the neighbours of x_k."""
    assert at.dfx is not None
    mean_df = mean_of_others(at.dfx)
    inner = lambda a, b: sum_of_events(a * b, at.event_ndim)
    t_self = inner(mean_df, at.x) - mean_of_others(inner(at.dfx, at.x))
    t = t_self[..., None, None] + row.neighbours.linear_change(mean_df)
    return mean_of_others(at.fx), t_self, t
