"""One forward pass: autograd's saved tensors come through here on their way in and out.

A tensor that is saved is first only noted. When the operation that saved it has returned, its
autograd node tells what backward will read of it; then it is let go, encoded, derived or kept.
Every pass has its own tables: graphs of several passes may be alive at once, and threads do not
meet.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from elbowroom.codec.opaque import opaque
from elbowroom.keep.activations.aliases import Aliases
from elbowroom.keep.activations.balance import ATTENTION, Attentions, balanced, describe
from elbowroom.keep.activations.bands import Banded, limits_of
from elbowroom.keep.activations.budget import Budget
from elbowroom.keep.activations.clock import now_s
from elbowroom.keep.activations.derive import derive, is_bearable, note_values
from elbowroom.keep.activations.entries import (
    UNKNOWN,
    Entry,
    Identity,
    Record,
    Records,
    Use,
    identity_of,
    kept_entry,
)
from elbowroom.keep.activations.faults import Faults, is_ours
from elbowroom.keep.activations.laps import Lap
from elbowroom.keep.activations.masks import pack_sign, pack_two_valued
from elbowroom.keep.activations.memory import Memory
from elbowroom.keep.activations.needs import (
    Need,
    details_of,
    has_step,
    is_accumulator,
    kind_of,
    need_of,
    next_number,
    receiver_of,
    slots_of,
)
from elbowroom.keep.activations.pace import Pace
from elbowroom.keep.activations.partials import part_of
from elbowroom.keep.activations.payloads import (
    Coded,
    Payload,
    Raw,
    Spent,
    dense_form,
)
from elbowroom.keep.activations.policy import Policy, husk
from elbowroom.keep.activations.proofs import is_proven
from elbowroom.keep.activations.readers import Readers
from elbowroom.keep.activations.reasons import (
    CHANGED,
    FAULT,
    ODD,
    ROOM,
    SLOW,
    YOURS,
    reason_of,
    say_small,
)
from elbowroom.keep.activations.repeats import before_repeats, pack_once
from elbowroom.keep.activations.rerun import RERUN, rerun
from elbowroom.keep.activations.returns import Returns
from elbowroom.keep.activations.sites import Calls, Form, Sites
from elbowroom.keep.activations.tally import Tally
from elbowroom.keep.activations.untouched import Untouched, is_plain
from elbowroom.keep.activations.windows import windows_of

SMALL_BYTES = 16384

# Operations to wait for before a tensor of which only signs are wanted is let go: often one of
# them saves it for its values. Where memory is short only the next one, or it is packed twice.
_PATIENCE, _LITTLE_PATIENCE = 2, 1

# Of an operation in place on a part of a tensor, which has what was saved in a node of its own.
_ON_PART = "torch::autograd::CopySlices"
_HIDDEN = Use(0, "CopySlices", "values")

_PARTIAL = frozenset({"sign", "bands", "free", "window"})

Listener = Callable[[Any, Record], None]
"""Told of every node while it is fresh; the record knows its slots already."""


class Pass:
    """The saved tensors of one forward pass, until their graph is gone."""

    def __init__(
        self,
        sites: Sites,
        policy: Policy,
        untouched: Untouched,
        listener: Listener | None,
        tally: Tally,
        small_bytes: int = SMALL_BYTES,
        budget: Budget | None = None,
        memory: Memory | None = None,
        faults: Faults | None = None,
        pace: Pace | None = None,
        lap: Lap | None = None,
    ) -> None:
        self.faults = faults or Faults()
        self.calls = Calls(sites)
        self.records = Records()
        self.pending: list[Entry] = []
        self.tally = tally
        self._first = next_number()
        self.untouched, self.listener = untouched, listener
        self._policy, self._budget, self._memory = policy, budget, memory
        self._small_bytes, self._pace = small_bytes, pace
        self.lap = Lap() if lap is None else lap
        """Times of this pass."""

        self._late: deque[tuple[int, Entry]] = deque()
        self._table: weakref.WeakValueDictionary[Identity, Entry] = weakref.WeakValueDictionary()
        self._aliases = Aliases(policy)
        self._local = threading.local()
        self._lock = threading.RLock()
        self._readers, self._settled = Readers(), 0
        self._returns = Returns(self.faults, is_exact=policy.is_exact)
        self._attentions = Attentions()
        self.leave: Callable[[], bool] | None = None
        """Lets the forward go on plainly, where it does not pay; None where it may not."""

    @property
    def goes_in_pieces(self) -> bool:
        """Whether layers work on parts of their tensors, for a lower peak."""
        is_large = self._budget is not None or (self._memory is not None and self._memory.is_large)
        return is_large and not self._policy.is_exact

    def finish(self) -> None:
        """The forward is over: let go of everything that is still held as it was."""
        start = now_s()
        # What lets go of our hooks holds them, and they this pass.
        self.leave = None
        if self.pending:
            self.settle(())
        self._settle_late(0)
        self._table.clear()
        self._aliases.clear()
        with self.faults.around("the ledger misses a pass, since adding it up"):
            self.tally.close()
        self.lap.spent_s += now_s() - start
        self.lap.end_forward(self.tally.saved_bytes, self.tally.kept_bytes)

    @property
    def is_left(self) -> bool:
        """Whether what is saved from now on comes here no more."""
        return self.lap.is_left

    def weigh(self) -> None:
        """Between two operations: whether the rest of the forward is worth it."""
        if self.leave is None or self._pace is None or self._pace.pays(self.lap):
            return
        self._settle_late(0)
        if self.leave():
            self.lap.is_left, self.listener = True, None

    # On the way in.

    @opaque
    def pack(self, tensor: Tensor) -> Entry:
        """Autograd's hook for a tensor that an operation saves."""
        start = now_s()
        with torch._C.DisableTorchFunction():
            try:
                return self._pack(tensor)
            except Exception as error:
                self.faults.note("a saved tensor was kept as it is, since taking it", error)
            finally:
                self.lap.calls += 1
                self.lap.spent_s += now_s() - start
            return kept_entry(tensor)

    def _pack(self, tensor: Tensor) -> Entry:
        if not is_plain(tensor):
            entry = Entry(tensor, self.calls.site(), is_plain=False)
            entry.keep_as_it_is(owned=False, reason=ODD)
            return entry
        identity = identity_of(tensor)
        known = self._table.get(identity)
        if known is not None and known.is_alive:
            if known.payload is not None and (known.payload.method in _PARTIAL or known.is_near):
                # Saved again, perhaps for its values this time, or to the last bit.
                known.raw, known.producer = tensor.detach(), tensor.grad_fn
            self.tally.again(known)
            self.pending.append(known)
            return known
        entry = Entry(tensor, self.calls.site())
        self._table[identity] = entry
        self.records.note_entry(entry, tensor.output_nr)
        self.tally.add(entry)
        reason = self.untouched.reason_for(tensor, identity[0])
        if reason is None:
            self.lap.records += 1
            self.lap.records_bytes += entry.nbytes_plain
        is_small = entry.nbytes_plain < self._small_bytes
        if reason is not None or is_small:
            entry.leave_alone(reason or say_small(self._small_bytes), owned=reason is None)
        self.pending.append(entry)
        return entry

    def settle(self, outputs: Iterable[Any], eps: float | None = None) -> None:
        """The operation has returned: find out who saved what, and act on it."""
        pending, self.pending = self.pending, []
        try:
            self._settle(pending, outputs, eps)
        except Exception as error:
            for entry in pending:
                self._keep(entry)
            self.faults.note(
                "saved tensors were kept as they are, since asking who reads them", error
            )

    def _settle(self, pending: list[Entry], outputs: Iterable[Any], eps: float | None) -> None:
        known = [(entry, len(entry.uses)) for entry in pending]
        reader = _HIDDEN if _ON_PART in self._note_nodes(outputs, eps) else UNKNOWN
        for entry, count in known:
            entry.note_unknown(count, reader)
        self._settled += 1
        for entry in pending:
            if self.untouched.is_callers(entry, self.tally.storages):
                entry.leave_alone(YOURS, owned=False)
            if entry.raw is None:
                self.tally.settle(entry)
                continue
            if entry.is_near and self._will_do(entry):
                note_values(entry, entry.raw)
                entry.raw = entry.producer = None
            elif entry.needs & {Need.VALUES, Need.EXACT, Need.WINDOW}:
                self._try_to_act(entry, entry.raw)
            else:
                self._late.append((self._settled, entry))
        self._settle_late(_LITTLE_PATIENCE if self.goes_in_pieces else _PATIENCE)

    def _will_do(self, entry: Entry) -> bool:
        """Whether what is held of a tensor, with errors, is good enough for all its readers."""
        if entry.needs & {Need.EXACT, Need.BANDS}:
            return False
        if entry.has_step and getattr(entry.payload, "sides", None) is None:
            return False
        return self._policy.may_err(entry)

    def _settle_late(self, patience: int) -> None:
        while self._late and self._late[0][0] + patience <= self._settled:
            entry = self._late.popleft()[1]
            if entry.raw is not None:
                self._try_to_act(entry, entry.raw)

    def _try_to_act(self, entry: Entry, tensor: Tensor) -> None:
        try:
            self._act(entry, tensor)
        except Exception as error:
            self._keep(entry)
            self.faults.note("a saved tensor was kept as it is, since encoding it", error)

    def _keep(self, entry: Entry) -> None:
        """Hold the tensor itself, whatever has been begun with it."""
        if entry.raw is None:
            return
        self.tally.unsettle(entry)
        entry.bound = 0.0
        entry.keep_as_it_is(owned=True, reason=FAULT)

    def pass_over(self, outputs: Iterable[Any]) -> None:
        """Somebody else's hooks hold what this operation saved: its nodes are left alone."""
        queue = [out.grad_fn for out in outputs if out.grad_fn is not None]
        while queue:
            node = queue.pop()
            number = node._sequence_nr()
            if number < self._first or number in self.records or is_accumulator(node):
                continue
            self.records[number] = Record(number, kind_of(node), is_foreign=True)
            queue.extend(n for n, _ in node.next_functions if n is not None)

    def _note_nodes(self, outputs: Iterable[Any], eps: float | None) -> set[str]:
        """Returns the kinds of those that are new."""
        queue = [out.grad_fn for out in outputs if out.grad_fn is not None]
        kinds: set[str] = set()
        while queue:
            node = queue.pop()
            number = node._sequence_nr()
            if number < self._first or number in self.records or is_accumulator(node):
                continue
            record = self.records[number] = self._record(node, number)
            kinds.add(record.kind)
            following = [n for n, _ in node.next_functions]
            if record.kind == "NativeLayerNorm":
                record.eps = eps
            if self.listener is not None or record.kind in RERUN:
                record.details = details_of(node)
            if not self._policy.is_exact:
                describe(node, record)
            if self.listener is not None:
                record.following = tuple(receiver_of(n) for n in following)
                self.listener(node, record)
            queue.extend(n for n in following if n is not None)
        return kinds

    def _record(self, node: Any, number: int) -> Record:
        record = Record(number, kind_of(node))
        for slot in slots_of(type(node)):
            for entry in self._probe(node, slot):
                record.slots[slot] = weakref.ref(entry)
                entry.uses.append(Use(number, record.kind, slot))
                entry.has_step |= has_step(node, record.kind, slot)
                if need_of(record.kind, slot) is Need.BANDS:
                    entry.bands = limits_of(node)
        index = record.entry("result1")
        if record.kind == "MaxPool2DWithIndices" and index is not None:
            (source,) = self._probe(node, "self")
            index.windows = windows_of(node, source.shape[-1])
        return record

    def _probe(self, node: Any, slot: str) -> list[Entry]:
        """Which entries a slot holds, without making their tensors again."""
        self._local.probed = []
        try:
            getattr(node, "_saved_" + slot)
            return self._local.probed
        except RuntimeError:
            return []
        finally:
            self._local.probed = None

    def _act(self, entry: Entry, tensor: Tensor) -> None:
        if tensor._version != entry.version:
            # Changed in place since it was saved: backward will say so, whatever is held.
            self.tally.unsettle(entry)
            entry.keep_as_it_is(owned=True, reason=CHANGED)
            self.tally.settle(entry)
            return
        if entry.is_counted:
            # It has had another form before.
            self.tally.unsettle(entry)
            entry.bound = 0.0
        start = now_s()
        with torch.no_grad():
            form = self._form_of(entry)
            entry.payload = self._choose(entry, tensor, form)
            if form is Form.OFFLOAD and self._budget is not None:
                entry.payload = self._budget.offload(entry, tensor)
        if isinstance(entry.payload, Coded | Banded) and entry.bound == 0:
            entry.site.like = husk(entry.payload.blob)
        if entry.payload is None:
            planned = None
            if form in (Form.KEEP, Form.PLAIN):
                planned = SLOW if self._budget is None else ROOM
            reason = reason_of(entry, self._policy, planned)
            entry.keep_as_it_is(owned=True, reason=reason)
        else:
            note_values(entry, tensor)
        entry.raw = entry.producer = None
        entry.encode_s = now_s() - start
        self.tally.settle(entry)
        self.lap.hold(entry, form, is_small=entry.site.is_small)
        if self._memory is not None:
            self._memory.note_saved(entry.nbytes_plain)

    def _form_of(self, entry: Entry) -> Form:
        if self._budget is not None:
            return self._budget.form_of(entry.site, entry.nbytes_plain)
        if self._pace is not None:
            return self._pace.form_of(self.lap, entry.site, entry.nbytes_plain)
        return Form.ENCODE

    def _choose(self, entry: Entry, tensor: Tensor, form: Form) -> Payload | None:
        needs = entry.needs
        if UNKNOWN in entry.uses and not torch.ops.aten.is_non_overlapping_and_dense(tensor):
            return None  # Decoded it has no gaps, and nobody knows who asks for strides.
        has_errors = tensor.is_floating_point() or tensor.is_complex()
        exact = self._policy.is_exact
        is_kept = (Need.EXACT in needs and has_errors) or {Need.BANDS, Need.VALUES} <= needs
        if is_kept and not exact:
            return None
        if not needs & {Need.VALUES, Need.EXACT}:
            is_plain = form is Form.PLAIN and needs != {Need.NOTHING}
            return None if is_plain else part_of(entry, tensor)
        if form is Form.PLAIN:
            return None if entry.has_step else self._aliases.find(entry, tensor)
        again = None if form is Form.KEEP else rerun(entry, self.records)
        if again is not None:
            return again
        producer = entry.producer if self.records.is_as_made(entry) else None
        if exact or not entry.has_step:
            # What a mask leaves out needs memory beside its source while backward is there.
            masked = not (self._policy.is_local or self.goes_in_pieces)
            derived = derive(tensor, producer, self.records, exact=exact, masked=masked)
            is_short = self.goes_in_pieces
            if derived is not None and not is_bearable(derived, exact=exact, is_short=is_short):
                derived = None
            if derived is not None and is_proven(entry, tensor, derived, self._policy, self.faults):
                derived.link(entry.uses)
                return derived
            alias = self._aliases.find(entry, tensor)
            if alias is not None:
                return alias
        if tensor.is_floating_point() and entry.producer is None:
            bits = pack_two_valued(tensor)
            if bits is not None:
                return bits
        thin = before_repeats(tensor, producer) if has_errors else None
        if thin is not None:
            coded = None if form is Form.KEEP else self._policy.pack(entry, thin, form, self.lap)
            return pack_once(thin, entry, coded)
        coded = None if form is Form.KEEP else self._policy.pack(entry, tensor, form, self.lap)
        if coded is None or entry.bound == 0:
            return coded
        if not entry.has_step:
            return balanced(coded, entry, self.records)
        return replace(coded, sides=pack_sign(dense_form(tensor)[0]))

    # On the way out.

    @opaque
    def unpack(self, entry: Entry) -> Tensor:
        """Autograd's hook for a tensor that backward wants."""
        probed = getattr(self._local, "probed", None)
        if probed is not None:
            probed.append(entry)
            return torch.empty(0)
        start = now_s()
        entry.check_version()
        try:
            return self._unpack(entry, start)
        except Exception as error:
            if not is_ours(error) or isinstance(entry.payload, Spent):
                raise
            failed = error.with_traceback(None)
        with self._lock:
            found = entry.values_anew()
        self.faults.note("a saved tensor was made again plainly, since handing it back", failed)
        return found

    def _unpack(self, entry: Entry, start: float) -> Tensor:
        self.tally.read(entry)
        node: Any = torch._C._current_autograd_node()
        kind = "" if node is None else kind_of(node)
        is_again = kind == ATTENTION and not self._policy.is_exact
        if isinstance(entry.payload, Raw) and not self.goes_in_pieces and not is_again:
            self._readers.come()
            self.lap.note_read(start)
            return entry.payload.tensor
        with self._lock:
            is_alone = self._readers.is_alone(entry, node)
            in_pieces = self.goes_in_pieces
            tensor = self._attentions.restore(node, entry, self.records) if is_again else None
            if tensor is None:
                tensor = self._returns.restore(entry, kind, is_alone=is_alone, in_pieces=in_pieces)
        self.tally.restore(entry, now_s() - start)
        if self._memory is not None:
            self._memory.within_pass(entry.nbytes_plain)
        self.lap.note_read(start)
        return tensor
