"""Bytes, time and error of training steps: plain, compressed, checkpointed, and 4-bit groups.

All contenders take turns on the same batches; the least time of each counts. Every one trains its
own copy of the network, so that the compressed one sees gradients of its own making.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er
from elbowroom.keep.activations.recompute import candidates, recomputed
from elbowroom.science.climate.models import UNet
from elbowroom.science.language.models import LSTM, gpt_mini
from elbowroom.science.vision import resnet18, resnet50, vit_small

GROUP = 256
Data = Callable[[torch.Generator], tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network and batches for it."""

    name: str
    network: nn.Module
    draw: Data


@dataclass(frozen=True, kw_only=True)
class Line:
    """What was measured of one contender."""

    network: str
    contender: str
    saved_mb: float
    kept_mb: float
    ratio: float
    seconds: float
    times_plain: float
    gradient_error: float


def pictures(batch: int, size: int, classes: int = 1000) -> Data:
    """Coloured noise around a pattern for each class."""

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        labels = torch.randint(0, classes, (batch,), generator=generator)
        x = torch.randn(batch, 3, size // 4, size // 4, generator=generator)
        x = functional.interpolate(x, size=(size, size), mode="bilinear")
        return x + labels.view(-1, 1, 1, 1) / classes, labels

    return draw


def maps(batch: int, size: int) -> Data:
    """Smooth fields and where they are high."""

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, 3, size // 8, size // 8, generator=generator)
        x = functional.interpolate(x, size=(size, size), mode="bilinear")
        return x, (x[:, 0] > 1).long()

    return draw


def sentences(batch: int, length: int, symbols: int) -> Data:
    """Random walks over symbols."""

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        steps = torch.randint(0, 7, (batch, length + 1), generator=generator)
        x = steps.cumsum(1) % symbols
        return x[:, :-1], x[:, 1:]

    return draw


def cases(names: list[str]) -> list[Case]:
    """The networks of the benchmark."""
    torch.manual_seed(0)
    makers: dict[str, Callable[[], tuple[nn.Module, Data]]] = {
        "resnet18": lambda: (resnet18(), pictures(8, 224)),
        "resnet50": lambda: (resnet50(), pictures(4, 224)),
        "unet": lambda: (UNet(channels=3, outputs=2), maps(4, 256)),
        "vit_small": lambda: (vit_small(dropout=0.1), pictures(8, 224)),
        "gpt_mini": lambda: (gpt_mini(), sentences(8, 256, 8192)),
        "lstm": lambda: (LSTM(symbols=256, width=256), sentences(32, 128, 256)),
    }
    chosen = names or list(makers)
    found: list[Case] = []
    for name in chosen:
        network, draw = makers[name]()
        found.append(Case(name=name, network=network, draw=draw))
    return found


def loss_of(output: Any, target: Tensor) -> Tensor:
    """Cross entropy over the axis of classes."""
    output = output[0] if isinstance(output, tuple) else output
    if output.dim() == 3 and output.shape[1] == target.shape[1]:
        output = output.transpose(1, 2)
    return functional.cross_entropy(output, target)


class Groups:
    """Four bits a value with a scale for each 256, as hooks of saved tensors do it."""

    def __init__(self, network: nn.Module) -> None:
        self._parameters = {p.untyped_storage()._cdata for p in network.parameters()}
        self.kept_bytes = 0

    def pack(self, tensor: Tensor) -> Any:
        """Quantise what is large, floating and not a parameter."""
        small = tensor.numel() < 4096 or not tensor.is_floating_point()
        if small or tensor.untyped_storage()._cdata in self._parameters:
            return tensor
        flat = functional.pad(tensor.reshape(-1), (0, -tensor.numel() % GROUP)).view(-1, GROUP)
        low, high = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)
        scale = (high - low).clamp_min(1e-12) / 15
        codes = ((flat - low) / scale + torch.rand_like(flat)).floor_().clamp_(0, 15)
        codes = codes.to(torch.uint8)
        packed = codes[:, ::2] | (codes[:, 1::2] << 4)
        self.kept_bytes += packed.numel() + 4 * low.numel()
        return packed, low, scale, tensor.shape

    def unpack(self, packed: Any) -> Tensor:
        """Undo it."""
        if isinstance(packed, Tensor):
            return packed
        codes, low, scale, shape = packed
        values = torch.stack((codes & 15, codes >> 4), 2).view(codes.shape[0], GROUP)
        count = shape.numel()
        return (values.to(low.dtype) * scale + low).view(-1)[:count].view(shape)


def measure(case: Case, *, warm: int, rounds: int) -> list[Line]:
    """All contenders in turns."""
    contenders: dict[str, tuple[nn.Module, Any, Callable[[], AbstractContextManager[Any]]]] = {}

    def add(name: str, make: Callable[[nn.Module], tuple[Any, Any]]) -> None:
        network = copy.deepcopy(case.network)
        state, context = make(network)
        contenders[name] = (network, state, context)

    def room(tolerance: float) -> Callable[[nn.Module], tuple[Any, Any]]:
        def make(network: nn.Module) -> tuple[Any, Any]:
            made = er.Activations(network, tolerance=tolerance, meter=0)
            return made, lambda: made

        return make

    def groups(network: nn.Module) -> tuple[Any, Any]:
        made = Groups(network)
        return made, lambda: torch.autograd.graph.saved_tensors_hooks(made.pack, made.unpack)

    add("plain", lambda network: (None, nullcontext))
    add("elbowroom 0.1", room(0.1))
    add("elbowroom exact", room(0.0))
    add("checkpoint", lambda n: (None, lambda: recomputed(candidates(n).values())))
    add("4-bit groups", groups)
    optimizers = {k: torch.optim.SGD(v[0].parameters(), 0.01) for k, v in contenders.items()}
    best = dict.fromkeys(contenders, float("inf"))
    for step in range(warm + rounds):
        for name, (network, state, context) in contenders.items():
            x, y = case.draw(torch.Generator().manual_seed(step))
            if isinstance(state, Groups):
                state.kept_bytes = 0
            start = time.perf_counter()
            with context():
                loss = loss_of(network(x), y)
            loss.backward()
            optimizers[name].step()
            optimizers[name].zero_grad()
            # A look at the gradients is not a usual step.
            if step >= warm and not _is_refresh(step + 1):
                best[name] = min(best[name], time.perf_counter() - start)
    ledger = contenders["elbowroom 0.1"][1].ledger
    lines: list[Line] = []
    for name, (_, state, _) in contenders.items():
        kept = ledger.saved_bytes
        if isinstance(state, er.Activations):
            kept = state.ledger.kept_bytes
        elif isinstance(state, Groups):
            kept = state.kept_bytes
        elif name == "checkpoint":
            kept = 0
        lines.append(
            Line(
                network=case.name,
                contender=name,
                saved_mb=ledger.saved_bytes / 1e6,
                kept_mb=kept / 1e6,
                ratio=ledger.saved_bytes / kept if kept else 0.0,
                seconds=best[name],
                times_plain=best[name] / best["plain"],
                gradient_error=ledger.gradient_error if name == "elbowroom 0.1" else 0.0,
            )
        )
    return lines


def _is_refresh(step: int) -> bool:
    return step & (step - 1) == 0 or step % 100 == 0


def main() -> None:
    """Run the cases that were named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--warm", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.json:
        print("| network | contender | saved MB | kept MB | ratio | s | times plain | error |")
        print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for case in cases(options.networks):
        for line in measure(case, warm=options.warm, rounds=options.rounds):
            if options.json:
                print(json.dumps(asdict(line)), flush=True)
                continue
            ratio = f"{line.ratio:.1f}" if line.ratio else "-"
            print(
                f"| {line.network} | {line.contender} | {line.saved_mb:.0f} | {line.kept_mb:.1f} | "
                f"{ratio} | {line.seconds:.2f} | {line.times_plain:.2f} | "
                f"{line.gradient_error:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
