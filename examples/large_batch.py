"""A plain training script with a batch that is too large for small machines.

Nothing of Elbowroom is in it: `elbowroom run --memory 600MB examples/large_batch.py` trains it all
the same where memory is short.
"""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.line = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + functional.gelu(self.line(self.norm(x)))


def main(steps: int) -> None:
    torch.manual_seed(0)
    images = torch.randn(49152, 64)
    labels = (images[:, :8] + images[:, 8:16] * images[:, 16:24]).argmax(1)
    model = nn.Sequential(*[Block(64) for _ in range(12)], nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for step in range(steps):
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 6)
