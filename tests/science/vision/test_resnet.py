"""Residual networks: the published sizes and names, and the resolution of every stage."""

import pytest
import torch
from torch import nn

from elbowroom.science.vision.resnet import resnet18, resnet50, resnet_small


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_the_standard_networks_have_the_published_sizes() -> None:
    assert count(resnet18()) == 11_689_512
    assert count(resnet50()) == 25_557_032


def test_names_are_those_of_published_weights() -> None:
    names = resnet50().state_dict()
    assert {
        "conv1.weight",
        "bn1.running_mean",
        "layer1.0.downsample.0.weight",
        "layer2.0.conv2.weight",
        "layer4.2.bn3.bias",
        "fc.weight",
    } <= set(names)
    assert names["layer4.2.conv3.weight"].shape == (2048, 512, 1, 1)


def test_a_small_network_ends_at_an_eighth() -> None:
    network = resnet_small(widths=(4, 8, 16), blocks=2, classes=5, channels=1)
    shapes: list[tuple[int, ...]] = []

    def note(_module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        shapes.append(tuple(output.shape[1:]))

    for name in ("layer1", "layer2", "layer3"):
        network.get_submodule(name).register_forward_hook(note)
    assert network(torch.zeros(2, 1, 32, 32)).shape == (2, 5)
    assert shapes == [(4, 32, 32), (8, 16, 16), (16, 8, 8)]


@pytest.mark.parametrize("make", [resnet18, resnet50])
def test_large_networks_take_224_pixels_and_others(make: type[nn.Module]) -> None:
    network = make(classes=7).eval()
    with torch.no_grad():
        assert network(torch.zeros(1, 3, 96, 64)).shape == (1, 7)


def test_every_parameter_gets_a_gradient() -> None:
    network = resnet_small(widths=(4, 8), blocks=1)
    network(torch.randn(4, 3, 16, 16)).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
