"""Velocity models: what they are made of, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

import elbowroom as er
from elbowroom.science.seismic import Velocity, layered, marmousi, smooth, velocity


def test_layers_are_faster_the_deeper_they_lie() -> None:
    model = layered(80, 120)
    assert model.m_per_s.shape == (80, 120)
    assert bool((model.m_per_s.diff(dim=0) >= 0).all())
    assert float(model.m_per_s.min()) == 1500 and float(model.m_per_s.max()) == 3500


def test_smoothing_keeps_the_mean_and_loses_the_edges() -> None:
    model = layered(80, 120)
    blurred = smooth(model, over_m=50.0)
    assert blurred.m_per_s.shape == model.m_per_s.shape
    assert float(blurred.m_per_s.mean()) == pytest.approx(float(model.m_per_s.mean()), rel=0.01)
    steepest = float(model.m_per_s.diff(dim=0).max())
    assert float(blurred.m_per_s.diff(dim=0).max()) < 0.3 * steepest
    flat = Velocity(m_per_s=torch.full((9, 9), 2000.0), spacing_m=5.0)
    torch.testing.assert_close(smooth(flat, over_m=20.0).m_per_s, flat.m_per_s)


def test_a_coarser_grid_covers_the_same_section() -> None:
    coarse = layered(80, 120).every(4)
    assert coarse.m_per_s.shape == (20, 30) and coarse.spacing_m == 40.0


@pytest.mark.parametrize(
    ("values", "spacing_m", "said"),
    [
        (torch.ones(3, 9), 1.0, "5 x 5"),
        (torch.zeros(9, 9), 1.0, "positive and finite"),
        (torch.full((9, 9), torch.inf), 1.0, "positive and finite"),
        (torch.ones(9, 9), 0.0, "spacing_m"),
    ],
)
def test_what_is_no_model_is_refused(values: torch.Tensor, spacing_m: float, said: str) -> None:
    with pytest.raises(er.InvalidArgument, match=said):
        Velocity(m_per_s=values, spacing_m=spacing_m)


def test_marmousi_is_turned_and_in_metres(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real file has a checksum and does not ship; one of the same shape stands for it."""
    path = tmp_path / "marmousi.npy"
    monkeypatch.setattr(velocity, "locate", lambda *_: {path.name: path})
    km_per_s = np.linspace(1.5, 4.5, 1601 * 401, dtype=np.float32).reshape(1601, 401)
    np.save(path, km_per_s)
    model = marmousi()
    assert model.m_per_s.shape == (401, 1601) and model.spacing_m == 7.5
    assert float(model.m_per_s[400, 0]) == pytest.approx(1000 * km_per_s[0, 400])
    np.save(path, km_per_s[:-1])
    with pytest.raises(er.CorruptData, match="shape"):
        marmousi()


def test_marmousi_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(er.MissingData, match="marmousi"):
        marmousi(tmp_path)
