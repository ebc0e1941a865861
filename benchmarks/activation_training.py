"""Trains the benchmark networks on real data and measures them on held-out data."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import torch
from activation_models import ResNet, Transformer, UNet
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

PROGRESS_INTERVAL_S = 5.0
CONTEXT_CHARS = 128
HELD_OUT_DAYS = 12
MM_PER_DAY_PER_M_PER_S = 86_400e3


class MissingDataError(RuntimeError):
    """A file of the data folder is absent."""


class UndertrainedError(RuntimeError):
    """A network did not clear its bar, so its activations would not be representative."""


@dataclass(frozen=True)
class Metric:
    """A held-out score beside the score of a predictor that learned nothing."""

    name: str
    value: float
    chance: float
    chance_note: str
    bar: float
    higher_is_better: bool

    def clears_bar(self) -> bool:
        return self.value > self.bar if self.higher_is_better else self.value < self.bar


@dataclass(frozen=True)
class Task:
    """One network with its data, its training recipe and its held-out score."""

    network: str
    seed: int
    steps: int
    peak_learning_rate: float
    weight_decay: float
    build: Callable[[], nn.Module]
    draw_training_batch: Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
    batch_samples: int
    compute_loss: Callable[[Tensor, Tensor], Tensor]
    held_out_inputs: Tensor
    evaluate: Callable[[nn.Module], Metric]


def require_file(path: Path) -> Path:
    if not path.is_file():
        raise MissingDataError(
            f"The data file {path} is missing; point --data or ELBOWROOM_DATA at the data folder."
        )
    return path


def load_cifar_task(data_dir: Path) -> Task:
    """Image classification: 10,000 training and 5,000 test images of CIFAR-10."""
    images_dir = data_dir / "images"
    labels = json.loads(require_file(images_dir / "cifar10_labels.json").read_text())
    train_images = _read_image_strip(images_dir / "cifar10_data_batch_1.png")
    test_images = _read_image_strip(images_dir / "cifar10_test_first5000.png")
    train_labels = torch.tensor(labels["train_batch_1"])
    test_labels = torch.tensor(labels["test_first5000"])
    mean = train_images.mean(dim=(0, 2, 3), keepdim=True)
    std = train_images.std(dim=(0, 2, 3), keepdim=True)
    padded = functional.pad((train_images - mean) / std, (4, 4, 4, 4))
    test_inputs = (test_images - mean) / std

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        picks = torch.randint(len(padded), (samples,), generator=generator)
        offsets = torch.randint(9, (samples, 2), generator=generator)
        rows = offsets[:, :1] + torch.arange(32)
        columns = offsets[:, 1:] + torch.arange(32)
        mirrored = torch.rand(samples, 1, generator=generator) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
        crops = padded[picks[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        return crops.permute(0, 3, 1, 2).contiguous(), train_labels[picks]

    def evaluate(model: nn.Module) -> Metric:
        predictions = predict_in_batches(model, test_inputs, batch_samples=250).argmax(dim=1)
        accuracy = (predictions == test_labels).float().mean().item()
        return Metric("accuracy", accuracy, 0.1, "uniform guess of ten classes", 0.55, True)

    return Task(
        network="resnet",
        seed=11,
        steps=1600,
        peak_learning_rate=3e-3,
        weight_decay=5e-2,
        build=ResNet,
        draw_training_batch=draw,
        batch_samples=64,
        compute_loss=functional.cross_entropy,
        held_out_inputs=test_inputs,
        evaluate=evaluate,
    )


def load_climate_task(data_dir: Path) -> Task:
    """Segmentation of extreme precipitation on the CESM globe from the days before."""
    path = require_file(data_dir / "climate" / "cesm_le_cam5.h5")
    with h5py.File(path) as file:
        surface_k = _read_field(file, "TS")
        rain_mm_per_day = _read_field(file, "PRECT") * MM_PER_DAY_PER_M_PER_S
        latitude_deg = _read_field(file, "lat")
    first_held_out = len(surface_k) - HELD_OUT_DAYS
    extreme_mm_per_day = float(np.quantile(rain_mm_per_day[:first_held_out].numpy(), 0.95))
    extreme = (rain_mm_per_day > extreme_mm_per_day).float()
    surface = _standardise(surface_k, first_held_out)
    rain = _standardise(rain_mm_per_day.clamp(min=0).log1p(), first_held_out)
    sine_latitude = torch.sin(torch.deg2rad(latitude_deg))[:, None].expand(surface.shape[1:])

    def stack_inputs(days: Tensor) -> Tensor:
        fields = [surface[days], surface[days - 1], rain[days - 1], rain[days - 2]]
        return torch.stack([*fields, sine_latitude.expand_as(fields[0])], dim=1)

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        # Longitude is periodic, so turning the globe is an exact augmentation.
        days = torch.randint(2, first_held_out, (samples,), generator=generator)
        turn = int(torch.randint(surface.shape[-1], (1,), generator=generator))
        return stack_inputs(days).roll(turn, -1), extreme[days].roll(turn, -1)

    held_out_days = torch.arange(first_held_out, len(surface_k))
    held_out_inputs = stack_inputs(held_out_days)

    def evaluate(model: nn.Module) -> Metric:
        predicted = predict_in_batches(model, held_out_inputs, batch_samples=2) > 0
        truth = extreme[held_out_days].bool()
        persisted = extreme[held_out_days - 1].bool()
        return Metric(
            "intersection over union of extreme precipitation",
            _intersect_over_union(predicted, truth),
            _intersect_over_union(persisted, truth),
            "persistence of the previous day",
            0.29,
            True,
        )

    def weighted_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
        # Only one cell in twenty is extreme; unweighted training settles below the 0.5 cut.
        weight = torch.tensor(3.0)
        return functional.binary_cross_entropy_with_logits(logits, targets, pos_weight=weight)

    return Task(
        network="unet",
        seed=13,
        steps=260,
        peak_learning_rate=4e-3,
        weight_decay=1e-2,
        build=lambda: UNet(in_channels=5),
        draw_training_batch=draw,
        batch_samples=2,
        compute_loss=weighted_cross_entropy,
        held_out_inputs=held_out_inputs,
        evaluate=evaluate,
    )


def load_text_task(data_dir: Path) -> Task:
    """Next-character prediction on the first 90% of Shakespeare, scored on the last 10%."""
    text = require_file(data_dir / "text" / "tinyshakespeare.txt").read_text()
    symbols = sorted(set(text))
    code_of = {symbol: code for code, symbol in enumerate(symbols)}
    codes = torch.tensor([code_of[symbol] for symbol in text])
    split = len(codes) * 9 // 10
    train_codes, held_out_codes = codes[:split], codes[split:]
    windows = (len(held_out_codes) - 1) // CONTEXT_CHARS
    held_out_inputs = held_out_codes[: windows * CONTEXT_CHARS].view(windows, CONTEXT_CHARS)
    held_out_targets = held_out_codes[1 : windows * CONTEXT_CHARS + 1].view(windows, CONTEXT_CHARS)

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        starts = torch.randint(split - CONTEXT_CHARS, (samples, 1), generator=generator)
        positions = starts + torch.arange(CONTEXT_CHARS)
        return train_codes[positions], train_codes[positions + 1]

    def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def evaluate(model: nn.Module) -> Metric:
        logits = predict_in_batches(model, held_out_inputs, batch_samples=32)
        loss = cross_entropy(logits, held_out_targets).item()
        chance = math.log(len(symbols))
        return Metric("nats per character", loss, chance, "uniform guess of a symbol", 2.0, False)

    return Task(
        network="transformer",
        seed=7,
        steps=2000,
        peak_learning_rate=2e-3,
        weight_decay=1e-1,
        build=lambda: Transformer(len(symbols), CONTEXT_CHARS),
        draw_training_batch=draw,
        batch_samples=6,
        compute_loss=cross_entropy,
        held_out_inputs=held_out_inputs,
        evaluate=evaluate,
    )


def train_network(task: Task) -> tuple[nn.Module, torch.optim.AdamW, Metric]:
    """Train by a fixed number of steps, so that a seed gives one network whatever the load."""
    torch.manual_seed(task.seed)
    generator = torch.Generator().manual_seed(task.seed)
    # oneDNN convolves channels-last data faster on a CPU; the dumps are made contiguous again.
    model = task.build()
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=task.peak_learning_rate, weight_decay=task.weight_decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, task.peak_learning_rate, total_steps=task.steps, pct_start=0.15,
        cycle_momentum=False,
    )  # fmt: skip
    started_s = shown_s = time.monotonic()
    for step in range(1, task.steps + 1):
        inputs, targets = task.draw_training_batch(task.batch_samples, generator)
        loss = task.compute_loss(model(inputs), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        now_s = time.monotonic()
        if now_s - shown_s > PROGRESS_INTERVAL_S or step == task.steps:
            shown_s = now_s
            elapsed_s = now_s - started_s
            print(
                f"{task.network}: step {step}/{task.steps}, loss {loss.item():.4f}, "
                f"{elapsed_s:.0f} s, {elapsed_s / step * (task.steps - step):.0f} s left",
                flush=True,
            )
    metric = task.evaluate(model)
    print(
        f"{task.network}: held-out {metric.name} {metric.value:.4f} "
        f"({metric.chance_note}: {metric.chance:.4f})",
        flush=True,
    )
    if not metric.clears_bar():
        raise UndertrainedError(
            f"The {task.network} reached {metric.name} {metric.value:.4f}, short of {metric.bar}."
        )
    return model, optimizer, metric


@torch.no_grad()
def predict_in_batches(model: nn.Module, inputs: Tensor, batch_samples: int) -> Tensor:
    model.eval()
    outputs = torch.cat([model(batch) for batch in inputs.split(batch_samples)])
    model.train()
    return outputs


def _read_image_strip(path: Path) -> Tensor:
    with Image.open(require_file(path)) as image:
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 32, 32, 3)
    return torch.from_numpy(pixels.copy()).permute(0, 3, 1, 2).float() / 255


def _read_field(file: h5py.File, name: str) -> Tensor:
    return torch.from_numpy(np.asarray(file[name], dtype=np.float32))


def _standardise(field: Tensor, training_days: int) -> Tensor:
    training = field[:training_days]
    return (field - training.mean()) / training.std()


def _intersect_over_union(predicted: Tensor, truth: Tensor) -> float:
    return ((predicted & truth).sum() / (predicted | truth).sum()).item()
