"""A small GPT-2 on the bytes of a text, with the Trainer of Hugging Face, in less memory.

python examples/huggingface_trainer.py [--text FILE] [--steps N] [--tolerance T] [--callback]
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from elbowroom.integrations.huggingface import ActivationsCallback, ActivationsMixin

LENGTH = 64


class RoomyTrainer(ActivationsMixin, Trainer):
    """A Trainer that keeps what backward needs in a room."""


class Windows(Dataset[dict[str, Tensor]]):
    """Overlapping windows of the bytes of a text."""

    def __init__(self, text: bytes) -> None:
        self._values = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def __len__(self) -> int:
        return (len(self._values) - LENGTH) // 16

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        window = self._values[16 * index : 16 * index + LENGTH]
        return {"input_ids": window, "labels": window}


def train(text: Path, steps: int, tolerance: float | None, *, use_callback: bool) -> Trainer:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256,
        n_positions=LENGTH,
        n_embd=64,
        n_layer=2,
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
    )
    config.loss_type = "ForCausalLM"
    model = GPT2LMHeadModel(config)
    arguments = TrainingArguments(
        "runs/huggingface",
        max_steps=steps,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        logging_steps=5,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    data = Windows(text.read_bytes())
    if tolerance is None:
        trainer = Trainer(model, arguments, train_dataset=data)
    elif use_callback:
        room = ActivationsCallback(tolerance=tolerance)
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[room])
    else:
        trainer = RoomyTrainer(
            model, arguments, train_dataset=data, activations={"tolerance": tolerance}
        )
    trainer.train()
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path(__file__).parents[1] / "README.md")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--tolerance", type=float, default=0.1)
    parser.add_argument("--callback", action="store_true", help="A callback instead of the mixin.")
    given = parser.parse_args()
    trainer = train(given.text, given.steps, given.tolerance, use_callback=given.callback)
    for entry in trainer.state.log_history:
        if "loss" in entry:
            ratio, error = entry["activations/ratio"], entry["activations/gradient_error"]
            print(
                f"step {entry['step']:3}: loss {entry['loss']:.3f}, {ratio:.1f} times fewer bytes, "
                f"gradient error {error:.3f} of its variance"
            )


if __name__ == "__main__":
    main()
