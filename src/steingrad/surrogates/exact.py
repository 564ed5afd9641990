"""f itself, for an objective that is cheap to evaluate."""

from typing import ClassVar

from .base import Surrogate, Values


class ExactSurrogate(Surrogate):
    r"""$h_k = h^*_k = f$: it evaluates $f$ at every neighbour, so it is for a cheap $f$.

    With the global control variate alone and $\beta = 1$ each $f(x) s(x)$ is replaced by its
    average over one step of the operator's chain, $P(f s)(x)$: Rao–Blackwellisation.

    >>> import steingrad as sg
    >>> sg.Rodeo(num_samples=2, surrogate=ExactSurrogate()).needs_gradient
    False
    """

    needs_gradient: ClassVar = False
    needs_objective: ClassVar = True

    def evaluate(self, cv, row, at):
        if at.f is None:
            raise ValueError(
                "ExactSurrogate evaluates the objective at neighbours, but f was not given: pass "
                "f=... to `estimate`, or use `value_and_grad` or `expectation`."
            )
        values = Values(row.evaluate(at.f), at.fx)
        return values, values
