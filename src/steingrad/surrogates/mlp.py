"""The paper's surrogate: a small network of the other samples' values and gradients."""

from ..arrays import others
from ..fast import sum_of_events
from .network import NetworkSurrogate


class MLPSurrogate(NetworkSurrogate):
    r"""$h_k(y) = \frac1{K-1} \sum_{j \ne k} H(f_j, t_j(y))$ with $t_j(y) = \nabla f_j^\top
    (y - x_j)$.

    $H$ and $H^*$ are the two outputs of one network of `hidden` LeakyReLU units (of the given
    `slope` below zero, in `layers` = 1 or 2 layers) with inputs $f_j$ and $t_j(y)$. A neighbour $y$
    of $x_k$ differs from $x_k$ in one coordinate, so $t_j(y) = \nabla f_j^\top (x_k - x_j) +
    \partial_i f_j \, (y_i - x_{k,i})$: one dot product for each pair of samples.

    Reference: Shi et al. 2022, section 4.

    >>> import jax, jax.numpy as jnp
    >>> surrogate = MLPSurrogate(hidden=100)
    >>> cv = surrogate.init(jax.random.key(0))
    >>> h, h_star = surrogate.network(cv, value=jnp.zeros(5), linear=jnp.ones(5))
    >>> h.shape
    (5,)
    """

    def evaluate(self, cv, row, at):
        assert at.dfx is not None
        x_j, f_j, df_j = others(at.x), others(at.fx), others(at.dfx)
        # t_j(x_k), then t_j at the neighbours of x_k.
        t_self = sum_of_events(df_j * (at.x - x_j), df_j.ndim - f_j.ndim)
        t = t_self[..., None, None] + row.neighbours.linear_change(df_j)
        return self.values(cv, f_j, t_self, t)
