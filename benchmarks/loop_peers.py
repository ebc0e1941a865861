"""One way to go back over a loop, in its own process: a line asks for a run, a line says its cost.

The gradient of a shot's misfit by full storage, by torch's checkpoints, by pyrevolve, by a history
that zfp encodes, and by `er.loop`. Errors are left to the parent: gradients are saved to a file.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from loop_waves import KERNELS, Shot, make_shot, traces_of
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import elbowroom as er
from elbowroom.errors import BudgetUnreachable
from elbowroom.host import trim_heap
from elbowroom.keep.activations.gauge import Process

# Of a frame's range: the bounds that zfp is tried with, whose own are powers of two.
_ZFP_BOUNDS = [2.0**-power for power in range(-2, 13)]
_ZFP_SAMPLE = 10

Answer = dict[str, Any]


def full(shot: Shot, share: float, tolerance: float) -> tuple[Tensor, Answer]:
    """A for-loop, of which autograd keeps everything."""
    return _gradient(shot, traces_of(shot)), {"held_bytes": shot.history_bytes}


def segments(shot: Shot, share: float, tolerance: float) -> tuple[Tensor, Answer]:
    """Torch's checkpoints, of about as many stretches as each has steps."""
    length = math.isqrt(shot.steps)

    def stretch(now: Tensor, before: Tensor, start: int) -> Any:
        state, heard = (now, before), []
        for strength in shot.wavelet[start : start + length]:
            state, trace = shot.step(state, strength)
            heard.append(trace)
        return *state, torch.stack(heard)

    now, before = shot.quiet()
    heard: list[Tensor] = []
    for start in range(0, shot.steps, length):
        result: Any = checkpoint(stretch, now, before, start, use_reentrant=False)
        now, before, traces = result
        heard.append(traces)
    # States at the ends of stretches, and the tape of one.
    held = (2 * len(heard) + length) * shot.field_bytes
    return _gradient(shot, torch.cat(heard)), {"held_bytes": held}


def looped(shot: Shot, **options: Any) -> tuple[Tensor, Answer]:
    """`er.loop`, and what it says of itself."""
    made = er.Loop(shot.step, outputs=True, parameters=(shot.squared,), probe_every=0, **options)
    _, traces = made(shot.quiet(), shot.steps, inputs=shot.wavelet)
    answer: Answer = {"plan": None if made.plan is None else made.plan.kind}
    held = getattr(made.engine, "held_bytes", None)
    if held is not None:
        answer["held_bytes"] = held
    return _gradient(shot, traces), answer


def everything(shot: Shot, share: float, tolerance: float) -> tuple[Tensor, Answer]:
    """`er.loop` without a bound."""
    return looped(shot)


def revolve(shot: Shot, share: float, tolerance: float) -> tuple[Tensor, Answer]:
    """Slots that take the same memory; a state has two fields."""
    return looped(shot, slots=slots_of(shot, share))


def planned(shot: Shot, share: float, tolerance: float) -> tuple[Tensor, Answer]:
    """Exact, and what is kept is left to the planner."""
    return looped(shot, memory=int(share * shot.history_bytes))


def encoded(shot: Shot, share: float, tolerance: float) -> tuple[Tensor, Answer]:
    """As a user asks: so much memory, and so much error."""
    return looped(shot, memory=int(share * shot.history_bytes), tolerance=tolerance)


def bounded(shot: Shot, share: float, tolerance: float) -> tuple[Tensor, Answer]:
    """An encoded history that may take what it takes."""
    return looped(shot, store="encoded", tolerance=tolerance)


class Binomial:
    """What pyrevolve calls: the state's arrays, steps forward, and steps back."""

    dtype = "float32"

    def __init__(self, shot: Shot) -> None:
        self._shot = shot
        self._state: list[Tensor] = list(shot.quiet())
        self._taped: tuple[list[Tensor], list[Tensor], Tensor] | None = None
        self.size = sum(t.numel() for t in self._state)
        self.heard: list[Tensor] = []
        self._grads: list[Tensor] = [torch.zeros_like(t) for t in self._state]
        self.total = torch.zeros_like(shot.squared)
        self.weights: Tensor | None = None

    def get_data(self, timestep: int) -> list[Any]:
        """The state, to be copied."""
        return [t.detach().numpy() for t in self._state]

    def get_data_location(self, timestep: int) -> list[Any]:
        """Where a state is to be put."""
        self._state = [torch.empty_like(t) for t in self._state]
        return self.get_data(timestep)

    def advance(self, t_start: int, t_end: int) -> None:
        """Steps, of which the last is taped: it may be gone back over next."""
        for number in range(t_start, t_end):
            is_last = number == t_end - 1
            with torch.set_grad_enabled(is_last):
                start = [t.detach().requires_grad_(is_last) for t in self._state]
                state, trace = self._shot.step((start[0], start[1]), self._shot.wavelet[number])
            if is_last:
                self._taped = start, list(state), trace
            if self.weights is None:
                self.heard.append(trace.detach())
            self._state = [t.detach() for t in state]

    def reverse(self, t_start: int, t_end: int) -> None:
        """Back over the step that was taped."""
        assert self._taped is not None
        if self.weights is None:
            traces = torch.stack(self.heard)
            self.weights, self.heard = traces - self._shot.observed, []
        start, state, trace = self._taped
        ends, grads = [*state, trace], [*self._grads, self.weights[t_start]]
        first, second, mine = torch.autograd.grad(ends, [*start, self._shot.squared], grads)
        self._grads = [first, second]
        self.total += mine
        self._taped = None


class _Operator:
    def __init__(self, apply: Callable[..., None]) -> None:
        self.apply = apply


def pyrevolve(shot: Shot, share: float, tolerance: float) -> tuple[Tensor, Answer]:
    """The same slots as `revolve`; each step back tapes one step, as ours does."""
    from pyrevolve import MemoryRevolver  # pyright: ignore[reportMissingImports]

    work = Binomial(shot)
    slots = slots_of(shot, share)
    operators = _Operator(work.advance), _Operator(work.reverse)
    made = MemoryRevolver(work, *operators, slots, shot.steps)
    made.apply_forward()
    made.apply_reverse()
    return work.total, {"held_bytes": 4 * work.size * slots}


class Zfp:
    """Hooks that encode each saved field by zfp, at a bound relative to its range."""

    def __init__(self, shot: Shot, relative: float) -> None:
        self._relative = relative
        self._constants = {
            t.untyped_storage()._cdata for t in (shot.squared, shot.damping, shot.source)
        }
        self._bytes = shot.field_bytes
        self.held_bytes = 0

    def pack(self, tensor: Tensor) -> Any:
        """Encode a field, and leave all else alone."""
        is_constant = tensor.untyped_storage()._cdata in self._constants
        if is_constant or tensor.nbytes != self._bytes:
            return tensor
        coded = _zfp_encode(tensor, self._relative)
        self.held_bytes += len(coded)
        return coded

    @staticmethod
    def unpack(held: Any) -> Tensor:
        """Decode it."""
        import zfpy

        return held if isinstance(held, Tensor) else torch.from_numpy(zfpy.decompress_numpy(held))


def _zfp_encode(tensor: Tensor, relative: float) -> bytes:
    import zfpy

    low, high = (float(v) for v in tensor.detach().aminmax())
    bound = max(relative * (high - low), 1e-30)
    return zfpy.compress_numpy(tensor.detach().contiguous().numpy(), tolerance=bound)


def zfp_bound(shot: Shot, share: float) -> float:
    """The least bound by which a sample of the frames takes no more than its share."""
    sizes, fields, seen = [0] * len(_ZFP_BOUNDS), 0, 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal fields, seen
        if tensor.nbytes == shot.field_bytes and tensor.grad_fn is not None:
            seen += 1
            if seen % _ZFP_SAMPLE == 0:
                fields += 1
                for place, relative in enumerate(_ZFP_BOUNDS):
                    sizes[place] += len(_zfp_encode(tensor, relative))
        return tensor.new_empty(())

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        traces_of(shot)
    fitting = [
        relative
        for relative, size in zip(_ZFP_BOUNDS, sizes, strict=True)
        if size <= share * fields * shot.field_bytes
    ]
    return min(fitting, default=max(_ZFP_BOUNDS))


def zfp(shot: Shot, share: float, tolerance: float) -> tuple[Tensor, Answer]:
    """A history that zfp encodes; its bound, in place of the tolerance, is found before."""
    hooks = Zfp(shot, tolerance)
    with torch.autograd.graph.saved_tensors_hooks(hooks.pack, hooks.unpack):
        traces = traces_of(shot)
    return _gradient(shot, traces), {"held_bytes": hooks.held_bytes, "bound": tolerance}


def slots_of(shot: Shot, share: float) -> int:
    """States that fit into a share of the history."""
    return max(1, int(share * shot.steps) // 2)


def _gradient(shot: Shot, traces: Tensor) -> Tensor:
    return torch.autograd.grad(shot.misfit(traces), shot.squared)[0]


CONTENDERS: dict[str, Callable[[Shot, float, float], tuple[Tensor, Answer]]] = {
    "full": full,
    "everything": everything,
    "segments": segments,
    "revolve": revolve,
    "planned": planned,
    "encoded": encoded,
    "bounded": bounded,
    "pyrevolve": pyrevolve,
    "zfp": zfp,
}


def main() -> None:
    """Take gradients as told by standard input; a line names a file for the gradient, or none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--points", type=int, default=None)
    parser.add_argument("--kernel", choices=KERNELS, required=True)
    parser.add_argument("--share", type=float, default=1.0, help="of the history's memory")
    parser.add_argument("--tolerance", type=float, default=0.0)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    # Before a wave lies a front of numbers that are nearly zero, on which arithmetic is slow.
    torch.set_flush_denormal(True)
    shape = {"every": options.every, "kernel": options.kernel, "points": options.points}
    run = CONTENDERS[options.contender]
    tolerance = options.tolerance
    # All code is there before anything counts.
    little = make_shot(steps=64, **shape)
    run(little, max(options.share, 0.5), tolerance or 0.01)
    shot = make_shot(steps=options.steps, **shape)
    if options.contender == "zfp":
        tolerance = zfp_bound(shot, options.share)
    shot.squared.grad = None
    trim_heap()
    gauge = Process()
    base_bytes = gauge.now()
    for line in sys.stdin:
        gauge.reset()
        shot.calls = 0
        start, start_cpu = time.perf_counter(), time.process_time()
        try:
            found, answer = run(shot, options.share, tolerance)
        except BudgetUnreachable as error:
            print(json.dumps({"refused": str(error)}), flush=True)
            continue
        answer["seconds"] = time.perf_counter() - start
        answer["cpu_s"] = time.process_time() - start_cpu
        answer["peak_bytes"] = gauge.peak() - base_bytes
        answer |= {"history_bytes": shot.history_bytes, "sweeps": shot.calls / shot.steps}
        if line.strip():
            torch.save({"gradient": found, "muted": shot.muted()}, line.strip())
        del found
        trim_heap()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
