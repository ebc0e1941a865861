"""How far what a model lets hear is from what was heard, and its derivatives to second order.

The misfit is f(m) = 1/2 ||F(m) - d||^2, where F makes traces of velocities m. A few shots are
worked on at a time, so that memory is that of these.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import forward_ad

from elbowroom.errors import InvalidArgument
from elbowroom.science.seismic.survey import Survey, record, record_change
from elbowroom.science.seismic.velocity import Velocity
from elbowroom.science.seismic.waves import SPONGE_POINTS, Medium


def shots_of_rank(survey: Survey) -> slice:
    """Which shots this process works on when they are divided among all ranks.

    `mine = shots_of_rank(survey)`, then `survey.part(mine)` and `heard[mine]`.
    """
    _require_ranks()
    rank, world = dist.get_rank(), dist.get_world_size()
    if len(survey.sources) < world:
        raise InvalidArgument(
            f"{len(survey.sources)} shots cannot be divided among {world} ranks: each needs one"
        )
    return slice(rank, None, world)


def _require_ranks() -> None:
    if not dist.is_available() or not dist.is_initialized():
        raise InvalidArgument(
            "there are no ranks yet: call torch.distributed.init_process_group first, and start "
            "the script with torchrun"
        )


class Misfit:
    """The misfit of a survey as a function of velocities in metres a second."""

    def __init__(
        self,
        survey: Survey,
        heard: Tensor,
        *,
        spacing_m: float,
        step_s: float,
        sponge_points: int = SPONGE_POINTS,
        shots_at_once: int = 1,
        loop: Callable[..., Any] | None = None,
        across_ranks: bool = False,
    ) -> None:
        """`loop` is that of `record`; `across_ranks` adds up what all ranks make of their shots."""
        expected = [len(survey.sources), len(survey.receivers), survey.steps]
        if list(heard.shape) != expected:
            raise InvalidArgument(
                f"heard must be shots x receivers x steps, {expected}, got {list(heard.shape)}"
            )
        if not bool(heard.isfinite().all()):
            raise InvalidArgument(
                "heard has values that are not finite: leave out such traces, or make them zero"
            )
        if shots_at_once < 1:
            raise InvalidArgument(f"shots_at_once must be at least 1, got {shots_at_once}")
        self._survey, self._heard = survey, heard
        self._spacing_m, self._step_s, self._sponge = spacing_m, step_s, sponge_points
        self._at_once, self._loop, self._across = shots_at_once, loop, across_ranks
        if across_ranks:
            _require_ranks()
        self.evaluations = 0
        """Of the misfit, with or without a gradient."""
        self.products = 0
        """Of a second derivative with a direction."""

    def value(self, m_per_s: Tensor) -> float:
        """The misfit."""
        self.evaluations += 1
        total = m_per_s.new_zeros((), dtype=torch.float64)
        with torch.no_grad():
            for survey, heard in self._parts():
                total += _half_square(self._hear(m_per_s, survey) - heard)
        return float(self._sum(total))

    def gradient(self, m_per_s: Tensor) -> tuple[float, Tensor]:
        """The misfit and its gradient."""
        self.evaluations += 1
        total = m_per_s.new_zeros((), dtype=torch.float64)
        gradient = torch.zeros_like(m_per_s)
        for survey, heard in self._parts():
            values = m_per_s.detach().requires_grad_()
            misfit = _half_square(self._hear(values, survey) - heard)
            gradient += torch.autograd.grad(misfit, values)[0]
            total += misfit.detach()
        return float(self._sum(total)), self._sum(gradient)

    def gauss_newton(self, m_per_s: Tensor, direction: Tensor) -> Tensor:
        """J^T J v, with J the derivative of F: symmetric, and never negative along v.

        J v is the wave of a small change, which needs no history, and J^T of that found in reverse.
        """
        self.products += 1
        found = torch.zeros_like(m_per_s)
        with forward_ad.dual_level():
            dual = self._medium(_make_dual(m_per_s.detach(), direction)).squared
            of_squared = forward_ad.unpack_dual(dual).tangent
        assert of_squared is not None
        medium = self._medium(m_per_s.detach())
        for survey, _ in self._parts():
            change = record_change(medium, of_squared, survey)
            values = m_per_s.detach().requires_grad_()
            traces = self._hear(values, survey)
            found += torch.autograd.grad(traces, values, change)[0]
        return self._sum(found)

    def hessian(self, m_per_s: Tensor, direction: Tensor) -> Tensor:
        """H v, the second derivative in full: the gradient of the gradient along v."""
        self.products += 1
        found = torch.zeros_like(m_per_s)
        for survey, heard in self._parts():
            values = m_per_s.detach().requires_grad_()
            misfit = _half_square(self._hear(values, survey) - heard)
            (gradient,) = torch.autograd.grad(misfit, values, create_graph=True)
            found += torch.autograd.grad(gradient, values, direction)[0]
        return self._sum(found)

    def _hear(self, m_per_s: Tensor, survey: Survey) -> Tensor:
        return record(self._medium(m_per_s), survey, loop=self._loop)

    def _medium(self, m_per_s: Tensor) -> Medium:
        velocity = Velocity(m_per_s=m_per_s, spacing_m=self._spacing_m)
        return Medium.of(velocity, step_s=self._step_s, sponge_points=self._sponge)

    def _parts(self) -> Iterator[tuple[Survey, Tensor]]:
        for first in range(0, len(self._heard), self._at_once):
            some = slice(first, first + self._at_once)
            yield self._survey.part(some), self._heard[some]

    def _sum(self, mine: Tensor) -> Tensor:
        if self._across:
            dist.all_reduce(mine)
        return mine


def _make_dual(values: Tensor, tangent: Tensor) -> Tensor:
    with warnings.catch_warnings():
        # The first use of forward mode imports a part of torch that warns of torch.jit.
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        return forward_ad.make_dual(values, tangent)


def _half_square(difference: Tensor) -> Tensor:
    return 0.5 * difference.double().square().sum()
