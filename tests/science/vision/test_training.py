"""Image classification: varied batches, scales from training images, and that it learns."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from elbowroom.errors import InvalidArgument
from elbowroom.science.task import Schedule
from elbowroom.science.training import seeded, train
from elbowroom.science.vision.data import StoredImages
from elbowroom.science.vision.training import Images, classify, measure, vary

TINY = Images(
    data="digits",
    pixels=8,
    widths=(16, 32),
    blocks=1,
    width=64,
    layers=2,
    patch=4,
    schedule=Schedule(steps=40, batch=32, learning_rate=1e-2),
)


@pytest.mark.parametrize(("network", "steps", "rate"), [("resnet", 40, 1e-2), ("vit", 160, 5e-3)])
def test_digits_are_learnt(network: str, steps: int, rate: float) -> None:
    schedule = replace(TINY.schedule, steps=steps, learning_rate=rate)
    result = train(replace(TINY, network=network, schedule=schedule))  # type: ignore[arg-type]
    assert sum(result.losses[-10:]) < 0.85 * sum(result.losses[:10])
    assert result.score.value > 0.3 > 2 * result.score.baselines["commonest class"]


def test_a_seed_decides_everything() -> None:
    short = replace(TINY, network="vit", dropout=0.2, schedule=replace(TINY.schedule, steps=4))
    assert train(short, seed=1).losses == train(short, seed=1).losses
    assert train(short, seed=1).losses != train(short, seed=2).losses


def test_varying_moves_and_mirrors() -> None:
    x = torch.zeros(64, 1, 9, 9)
    x[:, 0, 4, 3] = 1
    generator = torch.Generator().manual_seed(0)
    moved = vary(x, generator, margin=2, mirror=False)
    places = moved[:, 0].nonzero()[:, 1:]
    assert len(places) == 64
    assert (places - torch.tensor([4, 3])).abs().max() == 2
    assert len({tuple(place.tolist()) for place in places}) > 15
    mirrored = vary(x, generator, margin=0, mirror=True)
    assert set(mirrored[:, 0].nonzero()[:, 2].tolist()) == {3, 5}
    assert torch.equal(vary(x, generator, margin=0, mirror=False), x)


def make_images(seed: int, shift: int = 0) -> StoredImages:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 200, (12, 3, 8, 8), generator=generator).byte() + shift
    return StoredImages(pixels=pixels, labels=torch.arange(12) % 3, classes=("a", "b", "c"))


def test_scales_come_from_training_images_alone() -> None:
    images = make_images(0)
    mean, deviation = measure(images)
    torch.testing.assert_close(mean[:, 0, 0], images.pixels.float().mean(dim=(0, 2, 3)))
    assert (deviation > 50).all()

    def draw(held_out: StoredImages) -> torch.Tensor:
        task = classify(images, held_out, margin=1, mirror=True)
        return task.draw(4, torch.Generator().manual_seed(1))[0]

    assert torch.equal(draw(make_images(1)), draw(make_images(2, shift=50)))


class Telling(nn.Module):
    """Says a class that is the image's first pixel, plus an error."""

    def __init__(self, mean: float, deviation: float, error: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([deviation, mean]))
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kind = (x[:, 0, 0, 0] * self.scale[0] + self.scale[1]).round().long()
        return nn.functional.one_hot((kind + self.error) % 3, 3).float()


@pytest.mark.parametrize(("error", "accuracy"), [(0, 1.0), (1, 0.0)])
def test_a_perfect_network_scores_one(error: int, accuracy: float) -> None:
    images = make_images(0)
    images.pixels[:, 0, 0, 0] = images.labels.byte()
    mean, deviation = measure(images)
    task = classify(images, images, margin=1, mirror=False)
    score = task.score(Telling(float(mean[0]), float(deviation[0]), error))
    assert score.value == accuracy
    assert score.baselines == {"commonest class": pytest.approx(1 / 3)}


def test_a_folder_of_images_is_learnt_from(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for part in ("train", "val"):
        for name, channel in (("warm", 0), ("cold", 2)):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(4):
                pixels = rng.integers(0, 80, (20, 16, 3), dtype=np.uint8)
                pixels[..., channel] += 150
                Image.fromarray(pixels).save(tmp_path / part / name / f"{number}.png")
    recipe = replace(
        TINY, data="folder", pixels=16, schedule=replace(TINY.schedule, steps=8, batch=8)
    )
    assert train(recipe, folder=tmp_path).score.value == 1.0
    with pytest.raises(InvalidArgument, match="subfolders train and val must be given"):
        recipe.make_task()


@pytest.mark.parametrize("network", ["resnet18", "resnet50", "vit_small"])
def test_large_networks_fit_the_task(network: str) -> None:
    task = classify(make_images(0), make_images(1), margin=1, mirror=False)
    with seeded(0), torch.device("meta"):
        made = replace(TINY, network=network, pixels=32).make_network(task)  # type: ignore[arg-type]
    assert made(torch.zeros(2, 3, 32, 32, device="meta")).shape == (2, 3)
