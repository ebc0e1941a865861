"""Vision models of timm, torchvision, segmentation-models-pytorch and MONAI."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.entry import Subject, entry, pictures, regions
from benchmarks.zoo.stand_ins import LIBRARY

# Timm and others import torchvision, whose operators must have names while they are used.
OPERATORS = LIBRARY


def _classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, target = batch
    return functional.cross_entropy(model(x), target)


def _timm(name: str, batch: int, size: int, *, channels_last: bool = False, **how: Any) -> Subject:
    import timm

    model = timm.create_model(name, num_classes=16, **how)
    draw = pictures(batch, 3, (size, size), 16)
    if not channels_last:
        return Subject(model=model.train(), batch=draw, loss=_classify)

    def drawn(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x, target = draw(generator)
        return x.contiguous(memory_format=torch.channels_last), target

    model: Any = model.to(memory_format=torch.channels_last)
    return Subject(model=model.train(), batch=drawn, loss=_classify)


@entry("resnet18", "timm")
def resnet18() -> Subject:
    return _timm("resnet18", 24, 112)


@entry("resnet50", "timm")
def resnet50() -> Subject:
    return _timm("resnet50", 8, 112)


@entry("resnet50 channels_last", "timm")
def resnet50_last() -> Subject:
    return _timm("resnet50", 8, 112, channels_last=True)


@entry("efficientnet", "timm")
def efficientnet() -> Subject:
    return _timm("efficientnet_b0", 16, 96)


@entry("convnext", "timm")
def convnext() -> Subject:
    return _timm("convnext_atto", 16, 128, drop_path_rate=0.1)


@entry("mobilenetv3", "timm")
def mobilenet() -> Subject:
    return _timm("mobilenetv3_small_100", 32, 128)


@entry("regnet", "timm")
def regnet() -> Subject:
    return _timm("regnety_002", 24, 112)


@entry("vit", "timm")
def vit() -> Subject:
    return _timm("vit_tiny_patch16_224", 16, 112, img_size=112)


@entry("swin", "timm")
def swin() -> Subject:
    return _timm("swin_tiny_patch4_window7_224", 4, 112, img_size=112)


@entry("mixer", "timm")
def mixer() -> Subject:
    return _timm("mixer_s32_224", 24, 224)


@entry("densenet", "torchvision")
def densenet() -> Subject:
    from torchvision import models

    model = models.densenet121(num_classes=16)
    return Subject(model=model.train(), batch=pictures(8, 3, (96, 96), 16), loss=_classify)


@entry("unet resnet18, Dice", "segmentation-models-pytorch")
def unet_dice() -> Subject:
    import segmentation_models_pytorch as smp

    model = smp.Unet("resnet18", encoder_weights=None, classes=4)
    dice: Any = smp.losses.DiceLoss("multiclass")

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, target = batch
        return dice(model(x), target)

    return Subject(model=model.train(), batch=regions(8, 3, (128, 128), 4), loss=loss)


def _voxels(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, target = batch
    return functional.cross_entropy(model(x), target)


@entry("monai unet", "monai")
def monai_unet() -> Subject:
    from monai.networks.nets import UNet

    model = UNet(
        spatial_dims=3,
        in_channels=1,
        out_channels=3,
        channels=(16, 32, 64),
        strides=(2, 2),
        num_res_units=2,
    )
    return Subject(model=model.train(), batch=regions(2, 1, (64, 64, 64), 3), loss=_voxels)


@entry("dynunet", "monai")
def dynunet() -> Subject:
    from monai.networks.nets import DynUNet

    model = DynUNet(
        spatial_dims=3,
        in_channels=1,
        out_channels=3,
        kernel_size=[3, 3, 3],
        strides=[1, 2, 2],
        upsample_kernel_size=[2, 2],
        filters=[16, 32, 64],
    )
    return Subject(model=model.train(), batch=regions(2, 1, (48, 48, 48), 3), loss=_voxels)


@entry("swinunetr", "monai")
def swinunetr() -> Subject:
    from monai.networks.nets import SwinUNETR

    model = SwinUNETR(in_channels=1, out_channels=3, feature_size=12)
    return Subject(model=model.train(), batch=regions(1, 1, (64, 64, 64), 3), loss=_voxels)
