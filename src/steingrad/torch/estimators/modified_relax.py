"""The modified RELAX of the RODEO paper: RELAX with RODEO's surrogate as its control variate."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import estimators as sg
from .. import surrogates
from ..arrays import inner, leave_one_out, others
from ..module import Estimator
from ..optimizers import Adam
from ..relaxations import initial_log_temperature, relaxed_estimate


class ModifiedRelax(Estimator):
    """`steingrad.ModifiedRelax(num_samples=2, surrogate=MLPSurrogate())`.

    >>> import torch, steingrad.torch as sgt
    >>> logits, estimator = torch.zeros(3, requires_grad=True), sgt.ModifiedRelax(2)
    >>> estimator(lambda x: (x - 0.45).square().sum(-1), logits).backward()
    >>> estimator.cv.scale.shape
    torch.Size([])
    """

    class CV(NamedTuple):
        """The learned parameters of the control variate."""

        log_temperature: Tensor
        scale: Tensor
        surrogate: Any

    kind = sg.ModifiedRelax

    def init(self, dist, seed):
        surrogate = surrogates.init(self.estimator.surrogate, seed)
        return self.CV(initial_log_temperature(), torch.zeros(()), surrogate)

    def cv_optimizer(self, cv):
        return Adam(cv, self.cv_learning_rate, b1=0.999)

    def noise(self, dist, generator):
        return torch.stack([dist.noise(self.num_samples, generator) for _ in range(2)])

    def gradient(self, cv, dist, at):
        x_j, f_j, df_j = others(dist.one_hot(at.x)), others(at.fx), others(at.dfx)
        slope = self.estimator.surrogate.slope

        def control(z):
            y = dist.relax(z, cv.log_temperature.exp())
            # H(f_j, t_j(y_k)) for each pair of samples, as in MLPSurrogate.
            t = inner(df_j, y - x_j, dist.state_axes)
            return cv.scale * surrogates.network(cv.surrogate, f_j, t, slope)[0].mean(0)

        return relaxed_estimate(control, dist, at, leave_one_out(at.fx))
