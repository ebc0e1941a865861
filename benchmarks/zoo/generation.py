"""Generative models of diffusers, and small ones of the kind that tutorials build by hand."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.entry import Subject, entry, pictures


def _noisy(batch: int, channels: int, size: int) -> "_Noisy":
    return _Noisy(batch, channels, size)


class _Noisy:
    """Pictures with noise of a random level on them, the noise, and the level's number."""

    def __init__(self, batch: int, channels: int, size: int) -> None:
        self._draw = pictures(batch, channels, (size, size), 10)

    def __call__(self, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        x, _ = self._draw(generator)
        noise = torch.randn(x.shape, generator=generator)
        level = torch.randint(1000, (x.shape[0],), generator=generator)
        share = (1 - level / 1000).view(-1, 1, 1, 1)
        return share.sqrt() * x + (1 - share).sqrt() * noise, level, noise


@entry("ddpm unet", "diffusers")
def unet2d() -> Subject:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=32,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(32, 64, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    )

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        x, level, noise = batch
        return functional.mse_loss(model(x, level).sample, noise)

    return Subject(model=model.train(), batch=_noisy(12, 3, 32), loss=loss, rate=2e-4)


@entry("dit", "diffusers")
def dit() -> Subject:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=32,
        in_channels=4,
        out_channels=4,
        num_layers=4,
        sample_size=32,
        patch_size=2,
        norm_num_groups=8,
    )

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        x, level, noise = batch
        labels = level % 10
        found = model(x, timestep=level, class_labels=labels).sample
        return functional.mse_loss(found, noise)

    return Subject(model=model.train(), batch=_noisy(16, 4, 32), loss=loss, rate=2e-4)


@entry("autoencoder kl", "diffusers")
def autoencoder() -> Subject:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(32, 64),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
        norm_num_groups=8,
    )
    draw = pictures(4, 3, (64, 64), 10)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return functional.mse_loss(model(x).sample, x)

    return Subject(model=model.train(), batch=lambda g: draw(g)[0], loss=loss, rate=2e-4)
