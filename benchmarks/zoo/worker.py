"""One model, one way to train it, in a process of its own; prints one line of JSON.

Ways: plain, zero (tolerance 0), default, memory (with --budget), truth (errors against the exact
gradient, at the default tolerance).
"""

import argparse
import contextlib
import hashlib
import json
import sys
import time
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.entry import Subject, load
from benchmarks.zoo.peaks import Peak

SEED = 7


def main() -> None:
    """Train as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("way", choices=("plain", "zero", "default", "memory", "truth"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    warnings.filterwarnings("ignore")
    torch.manual_seed(SEED)
    out: dict[str, Any] = {"name": given.name, "way": given.way}
    try:
        subject = load()[given.name].make()
        if given.way == "truth":
            from benchmarks.zoo.truth import compare

            out |= compare(subject, given.steps)
        else:
            out |= train(subject, given.way, given.steps, given.budget)
    except Exception as error:
        out |= {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(out))


def room_of(subject: Subject, way: str, optimizer: Any, budget: int) -> Any:
    """The room of a way to train, or None."""
    if way == "plain":
        return None
    import elbowroom as er

    if way == "zero":
        return er.Activations(subject.model, tolerance=0)
    if way == "memory":
        return er.Activations(subject.model, memory=budget, optimizer=optimizer)
    return er.Activations(subject.model, optimizer=optimizer)


def train(subject: Subject, way: str, steps: int, budget: int) -> dict[str, Any]:
    """Time and peak of each step, what came of it, and what the ledger says."""
    model = subject.model
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], subject.rate, foreach=False
    )
    generator = torch.Generator().manual_seed(SEED)
    peak = Peak()
    base = peak.now()
    room = room_of(subject, way, optimizer, budget)
    times: list[float] = []
    peaks: list[int] = []
    losses: list[float] = []
    for _ in range(steps):
        batch = subject.batch(generator)
        peak.reset()
        start = time.perf_counter()
        with room or contextlib.nullcontext():
            loss = subject.loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
        peaks.append(peak.read() - base)
        losses.append(float(loss.detach()))
        del loss
    found: dict[str, Any] = {
        "base": base,
        "times": times,
        "peaks": peaks,
        "losses": losses,
        "weights": _digest(model),
    }
    if room is not None:
        ledger = room.ledger
        found |= {
            "saved": ledger.saved_bytes,
            "kept": ledger.kept_bytes,
            "ratio": ledger.ratio,
            "events": list(ledger.events),
        }
        room.close()
        found["storages"] = _plain_bytes(subject, generator)
    return found


def _digest(model: nn.Module) -> str:
    total = hashlib.sha256()
    for tensor in model.state_dict().values():
        if isinstance(tensor, Tensor):
            total.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]


def _plain_bytes(subject: Subject, generator: torch.Generator) -> int:
    """What plain autograd holds of a step: storages that nobody else has."""
    batch = subject.batch(generator)
    own = {_place(t) for t in (*subject.model.parameters(), *subject.model.buffers())}
    own |= {_place(t) for t in _tensors(batch)}
    held: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.layout == torch.strided and _place(tensor) not in own:
            held[_place(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = subject.loss(subject.model, batch)
    found = sum(held.values())
    del loss
    return found


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for part in value for t in _tensors(part)] if isinstance(value, tuple | list) else []


if __name__ == "__main__":
    sys.exit(main())
