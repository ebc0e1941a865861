"""The vision transformer: its published size, and patches that must fit."""

import pytest
import torch

from elbowroom.errors import InvalidArgument
from elbowroom.science.training import seeded
from elbowroom.science.transformer import SelfAttention
from elbowroom.science.vision.vit import vit_cifar, vit_small


def test_the_standard_network_has_the_published_size() -> None:
    assert sum(p.numel() for p in vit_small().parameters()) == 22_050_664


def test_a_small_one_classifies_small_images() -> None:
    network = vit_cifar(width=64, layers=2, classes=4, dropout=0.1)
    heads = [m.heads for m in network.modules() if isinstance(m, SelfAttention)]
    assert heads == [2, 2]
    assert network(torch.randn(3, 3, 32, 32)).shape == (3, 4)


def test_places_matter() -> None:
    with seeded(0):
        network = vit_cifar(width=32, layers=1).eval()
        image = torch.randn(1, 3, 32, 32)
    assert not torch.allclose(network(image), network(image.flip(-1)), atol=1e-5)


def test_patches_fill_the_image() -> None:
    with pytest.raises(InvalidArgument, match="patches of 5 do not fill 32 pixels"):
        vit_cifar(patch=5)
