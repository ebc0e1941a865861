"""One way to train, in its own process: a line asks for a step, a line says what it took."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from activation_cases import CASES, loss_of
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er
from elbowroom.host import trim_heap
from elbowroom.keep.activations.gauge import Process
from elbowroom.keep.activations.recompute import candidates, recomputed

GROUP = 256


class Groups:
    """A few bits a value with a scale for each 256, as hooks of saved tensors do it."""

    def __init__(self, network: nn.Module, bits: int) -> None:
        self._parameters = {p.untyped_storage()._cdata for p in network.parameters()}
        self._bits = bits
        self.kept_bytes = 0

    def pack(self, tensor: Tensor) -> Any:
        """Quantise what is large, floating and not a parameter."""
        small = tensor.numel() < 4096 or not tensor.is_floating_point()
        if tensor.untyped_storage()._cdata in self._parameters:
            return tensor
        if small:
            self.kept_bytes += tensor.numel() * tensor.element_size()
            return tensor
        flat = functional.pad(tensor.reshape(-1), (0, -tensor.numel() % GROUP)).view(-1, GROUP)
        low, high = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)
        most = (1 << self._bits) - 1
        scale = (high - low).clamp_min(1e-12) / most
        codes = ((flat - low) / scale + torch.rand_like(flat)).floor_().clamp_(0, most)
        codes = codes.to(torch.uint8).view(codes.shape[0], -1, 8 // self._bits)
        packed = codes[..., 0].clone()
        for place in range(1, codes.shape[2]):
            packed |= codes[..., place] << (self._bits * place)
        self.kept_bytes += packed.numel() + 8 * low.numel()
        return packed, low, scale, tensor.shape

    def unpack(self, packed: Any) -> Tensor:
        """Undo it."""
        if isinstance(packed, Tensor):
            return packed
        codes, low, scale, shape = packed
        most = (1 << self._bits) - 1
        parts = [(codes >> (self._bits * i)) & most for i in range(8 // self._bits)]
        values = torch.stack(parts, 2).view(codes.shape[0], GROUP)
        count = shape.numel()
        return (values.to(low.dtype) * scale + low).view(-1)[:count].view(shape)

    def around(self) -> AbstractContextManager[Any]:
        """For one forward."""
        self.kept_bytes = 0
        return torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)


Around = Callable[[], AbstractContextManager[Any]]


def contender(name: str, network: nn.Module) -> tuple[Any, Around]:
    """What tells its bytes, and the context around a forward."""
    if name in ("elbowroom", "exact", "comet"):
        room = er.Activations(
            network,
            tolerance=0.0 if name == "exact" else 0.1,
            rule="comet" if name == "comet" else "variance",
            meter=0,
            overhead=None,
        )
        return room, lambda: room
    if name.endswith("-bit groups"):
        groups = Groups(network, int(name[0]))
        return groups, groups.around
    if name == "checkpoint":
        blocks = list(candidates(network).values())
        # Where nothing is repeated: the recurrent layers, which are most of such a network.
        blocks = blocks or [m for m in network.modules() if isinstance(m, nn.RNNBase)]
        return None, lambda: recomputed(blocks)
    return None, nullcontext


def main() -> None:
    """Take steps as told by standard input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network")
    parser.add_argument("contender")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    case = CASES[options.network]
    torch.manual_seed(0)
    network = case.make()
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)
    gauge = Process()

    def step(number: int, batch: int, around: Around) -> float:
        x, y = case.draw(torch.Generator().manual_seed(number), batch)
        start = time.perf_counter()
        with around():
            loss = loss_of(network(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start

    # Code, parameters, gradients and momentum are there before the first step that counts.
    for number in range(2):
        step(number, 1, nullcontext)
    trim_heap()
    base_bytes = gauge.now() + sum(4 * p.numel() for p in network.parameters())
    state, around = contender(options.contender, network)
    for line in sys.stdin:
        gauge.reset()
        seconds = step(int(line), options.batch, around)
        answer: dict[str, Any] = {"seconds": seconds, "peak_bytes": gauge.peak() - base_bytes}
        if isinstance(state, er.Activations):
            ledger = state.ledger
            answer |= {
                "saved_bytes": ledger.saved_bytes,
                "kept_bytes": ledger.kept_bytes,
                "encode_s": ledger.encode_s,
                "decode_s": ledger.decode_s,
                "gradient_error": ledger.gradient_error,
            }
        elif isinstance(state, Groups):
            answer["kept_bytes"] = state.kept_bytes
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
