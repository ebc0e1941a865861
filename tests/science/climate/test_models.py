"""The U-Net and the DeepLab: shapes, bridges, biases, and batches of one."""

import pytest
import torch
from torch import nn

from elbowroom.errors import InvalidArgument
from elbowroom.science.climate.models import DeepLab, UNet
from elbowroom.science.training import seeded

MAKERS = {
    "unet": lambda: UNet(channels=5, outputs=3, widths=(4, 8, 12)),
    "deeplab": lambda: DeepLab(channels=5, outputs=3, widths=(4, 8, 12), dilations=(2, 3)),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_every_cell_gets_its_logits_and_every_parameter_a_gradient(kind: str) -> None:
    # Seeded: of eight units behind a ReLU all may be dead by chance.
    with seeded(0):
        network = MAKERS[kind]()
        said = network(torch.randn(1, 5, 24, 32))
    assert said.shape == (1, 3, 24, 32)
    said.square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def test_a_unet_rises_by_biased_transposed_convolutions() -> None:
    network = UNet(channels=2, outputs=1, widths=(4, 8, 12))
    rises = [m for m in network.modules() if isinstance(m, nn.ConvTranspose2d)]
    assert len(rises) == 2 and all(rise.bias is not None for rise in rises)
    assert sum(isinstance(m, nn.BatchNorm2d) for m in network.modules()) == 10


@pytest.mark.parametrize("kind", MAKERS)
def test_far_cells_are_seen(kind: str) -> None:
    with seeded(0):
        network = MAKERS[kind]().eval()
        x = torch.randn(1, 5, 32, 32)
    changed = x.clone()
    changed[..., 10, 10] += 5
    moved = (network(x) - network(changed)).abs().sum(dim=1)[0] > 1e-6
    assert moved[10, 10] and moved[10, 17]


def test_a_unet_says_which_sizes_fit() -> None:
    network = UNet(channels=1, outputs=1, widths=(2, 2, 2))
    with pytest.raises(InvalidArgument, match=r"multiples of 4, got \(30, 32\)"):
        network(torch.zeros(1, 1, 30, 32))


def test_a_deeplab_takes_any_size() -> None:
    assert MAKERS["deeplab"]()(torch.zeros(2, 5, 19, 23)).shape == (2, 3, 19, 23)
