"""Shots divided among processes: their sum is what one process finds."""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import elbowroom as er
from elbowroom.science.seismic import Misfit, invert, shots_of_rank

from .scene import SPONGE, WATER, off, scene

SHOTS = 3


def work(rank: int, folder: str, world: int) -> None:
    """One rank: the gradient of all shots, a product, and an inversion in step with the others."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world
    )
    here = scene(shots=SHOTS, steps=60, dtype=torch.float64)
    mine = shots_of_rank(here.survey)
    survey, heard = here.survey.part(mine), here.heard[mine]
    assert len(heard) < SHOTS
    with pytest.raises(er.InvalidArgument, match="1 shots cannot be divided among 2 ranks"):
        shots_of_rank(here.survey.part(slice(1)))
    misfit = Misfit(
        survey,
        heard,
        spacing_m=here.start.spacing_m,
        step_s=here.step_s,
        sponge_points=SPONGE,
        loop=partial(er.loop, slots=8),
        across_ranks=True,
    )
    value, gradient = misfit.gradient(here.start.m_per_s)
    product = misfit.gauss_newton(here.start.m_per_s, here.start.m_per_s)
    found = invert(
        survey,
        heard,
        here.start,
        step_s=here.step_s,
        sponge_points=SPONGE,
        water_rows=WATER,
        iterations=1,
        across_ranks=True,
    )
    np.savez(
        Path(folder) / f"rank{rank}.npz",
        value=value,
        gradient=gradient.numpy(),
        product=product.numpy(),
        model=found.velocity.m_per_s.numpy(),
        misfits=found.misfits,
    )
    dist.barrier()
    dist.destroy_process_group()


def test_two_ranks_are_one_process(tmp_path: Path) -> None:
    mp.spawn(work, (str(tmp_path), 2), nprocs=2)
    first, second = (dict(np.load(tmp_path / f"rank{rank}.npz")) for rank in range(2))
    for name, values in first.items():
        assert np.array_equal(values, second[name]), name
    here = scene(shots=SHOTS, steps=60, dtype=torch.float64)
    misfit = here.misfit()
    value, gradient = misfit.gradient(here.start.m_per_s)
    assert float(first["value"]) == pytest.approx(value, rel=1e-12)
    assert off(torch.from_numpy(first["gradient"]), gradient) < 1e-12
    product = misfit.gauss_newton(here.start.m_per_s, here.start.m_per_s)
    assert off(torch.from_numpy(first["product"]), product) < 1e-12
    alone = invert(
        here.survey,
        here.heard,
        here.start,
        step_s=here.step_s,
        sponge_points=SPONGE,
        water_rows=WATER,
        iterations=1,
    )
    assert first["misfits"].tolist() == pytest.approx(alone.misfits, rel=1e-9)
    assert off(torch.from_numpy(first["model"]), alone.velocity.m_per_s) < 1e-10
