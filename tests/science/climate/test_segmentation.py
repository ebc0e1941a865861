"""Segmentation: turned globes stay whole, overlap is counted right, scales are training's."""

import pytest
import torch
from torch import Tensor, nn

from elbowroom.errors import InvalidArgument
from elbowroom.science.climate.maps import StoredMaps
from elbowroom.science.climate.segmentation import (
    find_quantile,
    mean_overlap,
    measure_channels,
    measure_shares,
    segment,
    turn,
)


def make_maps(seed: int, shift: float = 0.0) -> StoredMaps:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (4, 8, 12), generator=generator)
    maps = torch.randn(4, 2, 8, 12, generator=generator) + shift
    maps[:, 0] = labels.float() + shift
    return StoredMaps(maps=maps, labels=labels, channels=("a", "b"), classes=("x", "y", "z"))


def test_overlap_is_intersection_over_union() -> None:
    said = torch.tensor([True, True, False, False])
    true = torch.tensor([True, False, True, False])
    assert mean_overlap([(said, true)], 1) == pytest.approx(1 / 3)
    assert mean_overlap([(true, true)], 1) == 1.0
    assert mean_overlap([(~true, true)], 1) == 0.0
    # Counts are added up before they are divided, and absent kinds do not count.
    none = torch.zeros(4, dtype=torch.bool)
    assert mean_overlap([(said, true), (none, none), (true, true), (none, none)], 2) == 3 / 5
    assert mean_overlap([(none, none)], 1) == 0.0


def test_turning_keeps_cells_and_labels_together() -> None:
    maps = make_maps(0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        x, y = turn(maps.read(1), None, generator)
        assert torch.equal(x[0], y.float())
        assert any(torch.equal(y.roll(k, -1), maps.labels[1]) for k in range(12))
        x, y = turn(maps.read(1), (3, 5), generator)
        assert x.shape == (2, 3, 5) and torch.equal(x[0], y.float())
    with pytest.raises(InvalidArgument, match="does not fit"):
        turn(maps.read(0), (9, 5), generator)


class Knowing(nn.Module):
    """Reads the class off the first channel, which the task has scaled, and errs on purpose."""

    def __init__(self, mean: Tensor, deviation: Tensor, error: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.stack([deviation[0, 0, 0], mean[0, 0, 0]]))
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        kind = (x[:, 0] * self.scale[0] + self.scale[1]).round().long()
        return nn.functional.one_hot((kind + self.error) % 3, 3).permute(0, 3, 1, 2).float()


@pytest.mark.parametrize(("error", "value"), [(0, 1.0), (1, 0.0)])
def test_a_perfect_network_scores_one(error: int, value: float) -> None:
    maps = make_maps(0)
    task = segment(maps, maps, name="t", weights=(1, 1, 1), baselines={"b": 0.5})
    score = task.score(Knowing(*measure_channels(maps), error))
    assert (score.value, score.baselines) == (value, {"b": 0.5})


def test_scales_come_from_training_maps_alone() -> None:
    train = make_maps(0)
    mean, deviation = measure_channels(train)
    torch.testing.assert_close(mean[:, 0, 0], train.maps.mean(dim=(0, 2, 3)))
    torch.testing.assert_close(
        deviation[:, 0, 0], train.maps.std(dim=(0, 2, 3), correction=0), rtol=1e-4, atol=1e-5
    )

    def draw(held_out: StoredMaps) -> Tensor:
        task = segment(train, held_out, name="t", weights=(1, 1, 1))
        return task.draw(3, torch.Generator().manual_seed(1))[0]

    assert torch.equal(draw(make_maps(1)), draw(make_maps(2, shift=100)))


def test_weights_weigh_classes() -> None:
    maps = make_maps(0)
    labels = torch.tensor([[[0, 1]]])
    logits = torch.zeros(1, 3, 1, 2)
    logits[:, 1] = 2.0
    light = segment(maps, maps, name="t", weights=(1, 1, 1)).loss(logits, labels)
    heavy = segment(maps, maps, name="t", weights=(9, 1, 1)).loss(logits, labels)
    assert heavy > light


def test_shares_and_quantiles() -> None:
    maps = make_maps(0)
    shares = measure_shares(maps)
    assert shares == pytest.approx([float((maps.labels == k).float().mean()) for k in range(3)])
    assert find_quantile(torch.arange(101.0), 0.95) == pytest.approx(95)
    assert find_quantile(torch.rand(2**24 + 1), 0.5) == pytest.approx(0.5, abs=0.01)
