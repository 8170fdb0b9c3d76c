"""DPM-Solver++(2M): one evaluation a step, second order by remembering the step before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgrpo_core import Sampler

from .straight import widened

if TYPE_CHECKING:
    from torch import Tensor

    from vgrpo_core import Schedule
    from vgrpo_core.plugin import Predict


class DPMSolver(Sampler):
    """One evaluation a step, second order: DPM-Solver++(2M) (Lu et al., arXiv 2211.01095, algorithm 2)."""

    name = "dpmsolver++"

    def sample(self, predict: Predict, noise: Tensor, schedule: Schedule) -> Tensor:
        """Extrapolate the predicted data over log-SNR from this step and the one before.

        z' = ratio z + (alpha' - ratio alpha) data, ratio = sigma' / sigma, is finite where alpha or sigma is 0.
        """
        z, process = widened(noise), schedule.process
        times = schedule.times.to(z)
        alpha, sigma = process.coefficients(times)
        ratio, ahead = sigma[1:] / sigma[:-1], _extrapolation(alpha, sigma)
        before = None
        for i in range(len(ratio)):
            data = process.data_from(predict(z, times[i]).to(z.dtype), z, times[i])
            target = data if before is None else data + ahead[i] * (data - before)
            z, before = ratio[i] * z + (alpha[i + 1] - ratio[i] * alpha[i]) * target, data
        return z


def _extrapolation(alpha: Tensor, sigma: Tensor) -> Tensor:
    """Return how far each step extrapolates, in steps before: half the quotient of log-SNR steps, [steps].

    It is 0, which is first order, in the first step, where the log-SNR is infinite, and where the log-SNR leaps to more than
    twice the step before. Such a leap is the last but one step of pipelines whose schedule stops just short of clean data
    (SD 3: sigma 0.003; SD 1: timestep 1); extrapolated, it makes more error than Euler's whole trajectory.
    """
    length = (alpha.log() - sigma.log()).diff()
    ahead = length.new_zeros(len(length))
    ahead[1:] = length[1:] / (2 * length[:-1])
    return ahead.where(ahead <= 1, 0)
