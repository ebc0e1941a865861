"""How saved tensors come back to backward: decoded, to be written over, or in outline only.

Of a node it is known what it does with a tensor; of a tensor, who else will read it. What was made
for one reader alone is lent to it as memory for its result.
"""

import weakref
from collections.abc import Callable

from torch import Tensor

from elbowroom.keep.activations.derive import Derived
from elbowroom.keep.activations.entries import Entry
from elbowroom.keep.activations.faults import Faults
from elbowroom.keep.activations.masks import Bits, pack_sign
from elbowroom.keep.activations.needs import Need, need_of
from elbowroom.keep.activations.payloads import Coded, Offloaded, Payload
from elbowroom.keep.activations.readers import ALONE, count_holders
from elbowroom.keep.activations.scratch import Scratch, Shown, suits
from elbowroom.keep.activations.windows import ASK_FOR_SHAPES, Windowed

_MADE_AGAIN = (Bits, Coded, Derived, Offloaded)  # nobody else's

# What was decoded is held for its next readers up to so many times its largest tensor.
_WARM = 4


class Returns:
    """The way back of one pass; asked by one thread at a time."""

    def __init__(self, faults: Faults, *, is_exact: bool) -> None:
        self._faults, self._is_exact = faults, is_exact
        self._is_alone = self._in_pieces = False
        self._warm: list[weakref.ref[Entry]] = []

    def restore(self, entry: Entry, kind: str, *, is_alone: bool, in_pieces: bool) -> Tensor:
        """For a node of this kind, which may write over what is made for it alone.

        Args:
            entry: What autograd held in place of the tensor.
            kind: Of the node that wants it.
            is_alone: Whether nobody else can be reading it now.
            in_pieces: Whether layers work on parts of their tensors.
        """
        self._is_alone, self._in_pieces = is_alone, in_pieces
        payload = entry.payload
        wants_signs = need_of(kind, "result") is Need.SIGN
        if wants_signs and entry.signs is not None:
            entry.reads += 1
            signs, entry.signs = entry.signs, None
            return self._lend(signs.restore(), kind, signs.restore)
        if isinstance(payload, Derived):
            if wants_signs and payload.signs is not None:
                return self._lend(payload.signs.restore(), kind, payload.signs.restore)
            self._prepare(payload)
        if isinstance(payload, Windowed):
            return payload.defer(self._faults) if is_alone and in_pieces else payload.restore()
        is_there = payload is not None and payload.method == "keep"
        # Their indices they do read.
        asks = kind in ASK_FOR_SHAPES and is_alone and entry.dtype.is_floating_point
        if asks and entry.is_row_major and not is_there:
            entry.reads += 1
            return entry.outline()
        tensor = entry.values()
        if isinstance(payload, Coded | Offloaded) or self._is_worth_holding(payload):
            self._keep_warm(entry)
        if entry.is_near and wants_signs:
            # Zeros come back as zeros and nothing else does: that is the mask. The values
            # themselves may have crossed zero. Of a view others have the values.
            is_last = entry.bound > 0 and entry.reads >= len(entry.uses) and self._is_free(tensor)
            if is_last:
                entry.recent = entry.warm = None
            mask = tensor.abs_() if is_last else tensor.abs()
            return self._lend(mask, kind, lambda: entry.values_anew().abs())
        if not isinstance(payload, _MADE_AGAIN) or not self._suits(tensor, kind):
            return self._show(tensor, kind, entry)
        if isinstance(payload, Derived) and not payload.has_made(tensor):
            return self._show(tensor, kind, entry)
        if self._is_worth_holding(payload) and entry.reads < len(entry.uses):
            return tensor
        if isinstance(payload, Coded | Offloaded) and entry.reads < len(entry.uses):
            left = len(entry.uses) - entry.reads
            if left > sum(need_of(use.kind, use.slot) is Need.SIGN for use in entry.uses):
                return self._show(tensor, kind, entry)
            # The function that made it comes last, and wants a bit of each value.
            entry.signs = pack_sign(tensor, of_size=True)
        entry.recent = entry.warm = None
        return Scratch.over(tensor, entry.values_anew, self._faults)

    def _is_worth_holding(self, payload: Payload | None) -> bool:
        """Normalising again takes longer than decoding, and exact rooms are not short of memory."""
        return isinstance(payload, Derived) and self._is_exact

    def _lend(self, tensor: Tensor, kind: str, again: Callable[[], Tensor]) -> Tensor:
        return Scratch.over(tensor, again, self._faults) if self._suits(tensor, kind) else tensor

    def _show(self, tensor: Tensor, kind: str, entry: Entry) -> Tensor:
        """For reading only, in pieces where that helps."""
        if not (self._is_alone and self._in_pieces and kind == "Convolution"):
            return tensor
        if not suits(kind, tensor, in_pieces=True):
            return tensor
        return Shown.over(tensor, entry.values_anew, self._faults)

    def _suits(self, tensor: Tensor, kind: str) -> bool:
        return self._is_free(tensor) and suits(kind, tensor, in_pieces=self._in_pieces)

    def _is_free(self, tensor: Tensor) -> bool:
        return self._is_alone and count_holders(tensor) == ALONE

    def _prepare(self, payload: Derived) -> None:
        """Make what it follows from, which others read soon.

        The backward of an operation reads the operands of the next one: what those follow from is
        held as well, where a pass is not short of memory.
        """
        if payload.derivation.expression is None or self._in_pieces:
            self._keep_warm(payload.derivation.source)
            return
        self._warm_up(payload, 4)
        self._keep_warm(*payload.sources)

    def _warm_up(self, payload: Derived, depth: int) -> None:
        for source in payload.sources:
            if not source.is_at_hand and isinstance(source.payload, Coded | Derived):
                if depth and isinstance(source.payload, Derived):
                    self._warm_up(source.payload, depth - 1)
                source.warm = source.values()
                self._warm.append(weakref.ref(source))

    def _keep_warm(self, *entries: Entry) -> None:
        """Hold on to what was decoded while its next reader is likely to be near."""
        for entry in entries:
            tensor = entry.values()
            entry.reads += 1
            entry.warm = tensor if entry.reads < len(entry.uses) else None
            self._warm.append(weakref.ref(entry))
        found = dict.fromkeys(e for e in (known() for known in self._warm) if e is not None)
        held = [entry for entry in found if entry.warm is not None]
        left_bytes = _WARM * max((entry.nbytes_plain for entry in held), default=0)
        if self._in_pieces:
            held, old = held[-1 - len(entries) :], held[: -1 - len(entries)]
            for entry in old:
                entry.warm = None
        for entry in reversed(held):
            left_bytes -= entry.nbytes_plain
            if left_bytes < 0:
                entry.warm = None
        self._warm = [weakref.ref(entry) for entry in held if entry.warm is not None]
