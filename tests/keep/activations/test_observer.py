"""Looks at the gradients take what the nodes have decoded, before it is written over."""

import pytest
import torch
from torch import nn

import elbowroom as er
from elbowroom.keep.activations.payloads import Coded
from elbowroom.keep.activations.schedule import is_due


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "rows":
        return nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 8))
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 4, 3, padding=1),
    )


@pytest.mark.parametrize("kind", ["pictures", "rows"])
def test_a_look_decodes_nothing_twice(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: dict[int, int] = {}
    plain = Coded.restore

    def restore(self: Coded) -> torch.Tensor:
        counts[step] = counts.get(step, 0) + 1
        return plain(self)

    monkeypatch.setattr(Coded, "restore", restore)
    model = network(kind)
    room = er.Activations(model, tolerance=0.1, meter=0, refresh=4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    shape = (256, 64) if kind == "rows" else (4, 3, 64, 64)
    for step in range(1, 10):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(step))
        with room:
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    looks = [step for step in counts if is_due(step, 4)]
    others = [step for step in counts if not is_due(step, 4)]
    assert looks
    assert others
    assert max(counts[step] for step in looks) == counts[others[-1]] > 0
    assert room.ledger.gradient_error > 0
