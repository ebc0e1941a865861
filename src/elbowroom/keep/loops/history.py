"""Going back over a loop by its tape, of which all that is large is encoded."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from elbowroom.codec.opaque import opaque
from elbowroom.host import Trimmer
from elbowroom.keep.activations.entries import Identity, identity_of
from elbowroom.keep.activations.untouched import is_plain
from elbowroom.keep.loops.body import Body, Grads, Stack, Tensors
from elbowroom.keep.loops.coders import Coder, PlainCoder
from elbowroom.keep.loops.parameters import Edges, edges_of
from elbowroom.keep.loops.plans import Plan
from elbowroom.keep.loops.replay import Until
from elbowroom.keep.loops.series import Frame, Series
from elbowroom.keep.loops.turn import STRETCH, Stretch, Turn, slices_of
from elbowroom.keep.versions import Watch

# What is smaller takes less than what is known about it.
LEAST_BYTES = 8192

# Steps between looks at where the bytes will end.
_LOOKED_AHEAD = 32


class Overflow(Exception):
    """The history takes more than it may."""


class _Kept:
    """A tensor that is left as it is: a parameter, a constant, a small or a complex one."""

    __slots__ = ("__weakref__", "_tensor", "_watch")

    def __init__(self, tensor: Tensor, *, is_made: bool = False) -> None:
        """`is_made`: by the step, so that nobody else holds what it may be a part of."""
        self._tensor = _without_rest(tensor.detach()) if is_made else tensor.detach()
        self._watch = Watch(tensor) if is_plain(tensor) else None

    def tensor(self) -> Tensor:
        if self._watch is not None:
            self._watch.check()
        return self._tensor


class Recorder:
    """Hooks on what autograd saves in the steps of a loop."""

    is_apart = True

    def __init__(
        self,
        relative: float,
        every: int | None,
        most_bytes: float,
        constants: Iterable[Tensor],
        make_coder: Callable[[], Coder] = PlainCoder,
        sites: int = 1,
        length: int | None = None,
    ) -> None:
        """`sites` is how many tensors a step saves, `length` how many steps there will be."""
        self._sites, self._length = max(1, sites), length
        self._before = 0, 0
        self._relative, self._every, self._most = relative, every, most_bytes
        self._make_coder = make_coder
        self.held_bytes = self.peak_bytes = self.plain_bytes = 0
        self._series: dict[Any, Series] = {}
        self._recent: dict[Identity, tuple[StorageWeakRef, weakref.ref[Frame | _Kept]]] = {}
        storages = [t.untyped_storage() for t in constants if is_plain(t)]
        self._constants = {storage._cdata for storage in storages}
        # While these are held, nothing else gets their addresses.
        self._alive = [StorageWeakRef(storage) for storage in storages]
        self._kept: dict[Identity, _Kept] = {}
        self._passing: set[int] = set()
        self._step = 0
        self._place = 0
        # Where a frame was, small things come to lie that stay, and the next frame does not fit.
        self._trimmer, self._seen_bytes = Trimmer(), 0

    @property
    def series(self) -> list[Series]:
        """All there are."""
        return list(self._series.values())

    def hold(self, tensors: Tensors) -> None:
        """Keep what is saved of these as it is: they stay anyway."""
        storages = [t.untyped_storage() for t in tensors if is_plain(t)]
        self._constants.update(storage._cdata for storage in storages)
        self._alive += [StorageWeakRef(storage) for storage in storages]

    def pass_on(self, leaves: Tensors) -> None:
        """States where a graph begins anew are saved like all others."""
        self._passing = {t.untyped_storage()._cdata for t in leaves if is_plain(t)}

    def hooks(self) -> AbstractContextManager[object]:
        """Inside of which everything that autograd saves comes here."""
        return torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)

    def begin(self, number: int) -> None:
        """A step begins."""
        self._step, self._place = number, 0
        if number and number % _LOOKED_AHEAD == 0:
            self._look_ahead(number)
        self._trimmer.passed(self.plain_bytes - self._seen_bytes)
        self._seen_bytes = self.plain_bytes
        if len(self._recent) > 64:
            alive = {k: v for k, v in self._recent.items() if not v[0].expired() and v[1]()}
            self._recent = alive

    @opaque
    def pack(self, tensor: Tensor) -> "Frame | _Kept":
        """Called by autograd with a tensor that backward will need."""
        if not is_plain(tensor) or isinstance(tensor, nn.Parameter):
            return _Kept(tensor)
        nbytes = tensor.numel() * tensor.element_size()
        storage = tensor.untyped_storage()._cdata
        if tensor.requires_grad and tensor.grad_fn is None and storage not in self._passing:
            return _Kept(tensor)
        key = identity_of(tensor)
        if storage in self._constants:
            return self._kept.setdefault(key, _Kept(tensor))
        known = self._recent.get(key)
        if known is not None and not known[0].expired() and (held := known[1]()) is not None:
            return held
        self.plain_bytes += nbytes
        if nbytes < LEAST_BYTES or tensor.is_complex():
            kept = _Kept(tensor, is_made=True)
            self._recent[key] = StorageWeakRef(tensor.untyped_storage()), weakref.ref(kept)
            self._spend(nbytes)
            return kept
        place = self._place, tuple(tensor.shape), tensor.dtype, tensor.device
        self._place += 1
        if place not in self._series:
            # All sites together leave most of it to what is encoded.
            waiting = self._most / 3 / self._sites
            self._series[place] = Series(
                self._make_coder(), self._relative, self._every, self._spend, waiting
            )
        frame = Frame(tensor, self._step, self._series[place])
        self._recent[key] = StorageWeakRef(tensor.untyped_storage()), weakref.ref(frame)
        self._series[place].add(frame)
        return frame

    def _look_ahead(self, number: int) -> None:
        """Tighten in time: what is encoded already stays as large as it is."""
        then, held = self._before
        self._before = number, self.held_bytes
        rest = (self._length or 2 * number) - number
        rate = max(0, self.held_bytes - held) / (number - then)
        # A field that spreads takes more with every step: less so when most of them are made.
        end = self.held_bytes + (1 + 0.3 * rest / (number + rest)) * rate * rest
        by = 1 if end > self._most else -1 if end < 0.5 * self._most else 0
        if by:
            for series in self._series.values():
                series.tighten(by)

    @staticmethod
    @opaque
    def unpack(held: "Frame | _Kept") -> Tensor:
        """Called by autograd when backward needs it."""
        return held.tensor()

    def flush(self) -> None:
        """The loop has ended."""
        for series in self._series.values():
            series.flush()
        self._recent.clear()

    def _spend(self, nbytes: int) -> None:
        self.held_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        if self.held_bytes > self._most:
            raise Overflow


class Tape:
    """Keeps what autograd saves as it is."""

    held_bytes = 0
    series: Sequence[Series] = ()
    is_apart = False

    def hold(self, tensors: Tensors) -> None:
        """Nothing is encoded anyway."""

    def pass_on(self, leaves: Tensors) -> None:
        """Nor are these."""

    def hooks(self) -> AbstractContextManager[object]:
        """None."""
        return nullcontext()

    def begin(self, number: int) -> None:
        """A step begins."""

    def flush(self) -> None:
        """The loop has ended."""


class History:
    """A loop whose tape is kept, encoded or as it is."""

    def __init__(
        self,
        body: Body,
        plan: Plan,
        length: int | None,
        until: Until | None,
        *,
        make_recorder: Callable[[], Recorder | Tape],
        look: Callable[[int, Tensors], None] = lambda number, state: None,
        ended: Callable[[Tensors, Grads, Tensors], None] = lambda inputs, grads, parameters: None,
    ) -> None:
        """`look` sees the taped state before each step, `ended` is called after a backward."""
        self._look, self._ended = look, ended
        self._body, self._plan, self._limit, self._until = body, plan, length, until
        self._make_recorder = make_recorder
        self.length = length
        self.made = 0
        self.recorder: Recorder | Tape | None = None
        self._stretches: list[Stretch] = []

    @property
    def held_bytes(self) -> int:
        """Of memory, encoded."""
        return 0 if self.recorder is None else self.recorder.held_bytes

    def forward(
        self, state: Tensors, inputs: Tensors, parameters: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Run the loop; return its last state and the outputs of all steps."""
        stack = Stack(self._limit if self._until is None else None)
        try:
            return self._record(state, inputs, edges_of(parameters), stack), stack.tensors()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give memory back."""
        while self._stretches:  # the graph of one leads to no other
            self._stretches.pop()
        if self.recorder is not None:
            self.recorder.held_bytes = 0
            for series in self.recorder.series:
                series.clear()

    def backward(
        self,
        state: Tensors,
        inputs: Tensors,
        parameters: Tensors,
        grads: Grads,
        output_grads: Grads,
    ) -> tuple[Grads, Grads, Grads]:
        """Gradients of the first state, the inputs and the parameters."""
        turn = Turn(self._body, inputs, parameters, grads, output_grads)
        with self._body.conditions.put_back():
            try:
                if not self._stretches:  # a second backward: nothing is left of the first
                    self._until, self._limit = None, self.length
                    self._body.conditions.rewind()
                    self._record(state, inputs, edges_of(parameters), None)
                while self._stretches:
                    turn.take(self._stretches.pop())
                self._ended(inputs, output_grads, parameters)
                return turn.results()
            finally:
                self.close()

    def _record(
        self, state: Tensors, inputs: Tensors, known: Edges, stack: Stack | None
    ) -> Tensors:
        self.recorder = recorder = self._make_recorder()
        recorder.hold(state)
        number, is_over = 0, self._limit == 0
        with torch.enable_grad():
            while not is_over:
                stretch = Stretch(self._body, state, number)
                recorder.pass_on(stretch.leaves if number else [])
                with recorder.hooks():
                    for _ in range(STRETCH):
                        recorder.begin(number)
                        self._look(number, stretch.after)
                        outputs = stretch.step(slices_of(inputs, number))
                        if stack is not None:
                            stack.add(outputs)
                        self.made += 1
                        number += 1
                        is_over = number == self._limit or (
                            self._until is not None and self._is_over(stretch.after)
                        )
                        if is_over:
                            break
                if is_over:
                    self._look(number, stretch.after)
                is_first = not self._stretches
                self._stretches.append(stretch)
                is_emptied = recorder.is_apart and not is_first
                state = stretch.end(known, is_emptied=is_emptied)
            recorder.flush()
        self.length = number
        return state

    def _is_over(self, state: Tensors) -> bool:
        assert self._until is not None
        with torch.no_grad():
            return bool(self._until(self._body.structure.build(state)))


def _without_rest(tensor: Tensor) -> Tensor:
    """A view of a part would hold the whole field until the end."""
    is_part = is_plain(tensor) and tensor.untyped_storage().nbytes() > 2 * tensor.nbytes
    return tensor.clone() if is_part else tensor
