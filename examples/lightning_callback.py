"""A small network for handwritten digits, with Lightning and a room as a callback.

python examples/lightning_callback.py [--epochs N] [--tolerance T]
"""

import argparse
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from elbowroom.integrations.lightning import ActivationsCallback


class Digits(LightningModule):
    """Two convolutions and a line."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(512, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)

    def training_step(self, batch: Any, _: int) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(self(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 3e-3)


def data() -> tuple[TensorDataset, TensorDataset]:
    digits: Any = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).div(16).unsqueeze(1)
    labels = torch.tensor(digits.target)
    return TensorDataset(images[:1500], labels[:1500]), TensorDataset(images[1500:], labels[1500:])


def train(epochs: int, *callbacks: Any) -> tuple[Digits, float]:
    """The trained network and its accuracy on digits that it has not seen."""
    seed_everything(0, verbose=False)
    training, rest = data()
    model = Digits()
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(training, 100, shuffle=True))
    with torch.no_grad():
        images, labels = rest.tensors
        guesses = model.eval()(images).argmax(1)
    return model, float((guesses == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--tolerance", type=float, default=0.1)
    given = parser.parse_args()
    room = ActivationsCallback(tolerance=given.tolerance)
    _, accuracy = train(given.epochs, room)
    print(
        f"accuracy {accuracy:.3f}, {room.ledger.ratio:.1f} times fewer bytes, gradient error "
        f"{room.ledger.gradient_error:.3f} of its variance"
    )


if __name__ == "__main__":
    main()
