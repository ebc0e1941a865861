"""The area under the curve: perfect, chance, ties, and the definition itself."""

import math

import pytest
import torch

from elbowroom.errors import InvalidArgument
from elbowroom.science.particles.scores import measure_auc


@pytest.mark.parametrize(
    ("scores", "labels", "auc"),
    [
        ([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1], 1.0),
        ([0.9, 0.8, 0.2, 0.1], [0, 0, 1, 1], 0.0),
        ([0.5, 0.5, 0.5, 0.5], [0, 1, 0, 1], 0.5),
        ([1.0, 2.0, 2.0, 3.0], [0, 0, 1, 1], 0.875),
        ([2.0, 1.0, 3.0], [1, 0, 0], 0.5),
        ([-math.inf, 0.0, math.inf], [0, 0, 1], 1.0),
    ],
)
def test_known_cases(scores: list[float], labels: list[int], auc: float) -> None:
    assert measure_auc(torch.tensor(scores), torch.tensor(labels)) == pytest.approx(auc)


def test_it_is_the_share_of_pairs_in_the_right_order() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(20, (300,), generator=generator).float()
    labels = torch.rand(300, generator=generator) < 0.3
    signal, background = scores[labels][:, None], scores[~labels][None]
    pairs = (signal > background).double() + 0.5 * (signal == background).double()
    assert measure_auc(scores, labels) == pytest.approx(float(pairs.mean()))
    assert measure_auc(-scores, labels) == pytest.approx(1 - float(pairs.mean()))
    assert measure_auc(scores.exp(), labels) == pytest.approx(float(pairs.mean()))


def test_large_sets_are_counted_exactly() -> None:
    labels = torch.arange(200_000) >= 100_000
    assert measure_auc(torch.arange(200_000), labels) == 1.0


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="both signal and background"):
        measure_auc(torch.zeros(3), torch.ones(3))
    with pytest.raises(InvalidArgument, match="3 scores do not go with 2 labels"):
        measure_auc(torch.zeros(3), torch.ones(2))
    assert math.isnan(measure_auc(torch.tensor([0.0, math.nan]), torch.tensor([0, 1])))
