"""Compiled parts of a model: while one runs, its graphs encode what they keep for backward.

What the graphs do is in `graphs`; here is what surrounds them in one pass.
"""

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from elbowroom.codec import Blob
from elbowroom.keep.activations import graphs
from elbowroom.keep.activations.entries import Entry
from elbowroom.keep.activations.ledger import Row
from elbowroom.keep.activations.needs import next_number
from elbowroom.keep.activations.passes import Pass
from elbowroom.keep.activations.policy import Policy
from elbowroom.keep.activations.rehearsal import Rehearsal
from elbowroom.keep.activations.trees import tensors_in
from elbowroom.keep.activations.watch import Functions, Modules

Enter = Callable[[Any, Any], Any]
"""Takes arguments and those by name; what it returns lives until the call is over."""


class Regions:
    """Compiled parts of one pass: while they run, hooks and modes of the pass step aside."""

    def __init__(
        self,
        now: Pass,
        modules: Modules,
        functions: Functions,
        policy: Policy,
        seen: Callable[[], None],
        rehearsal: Rehearsal,
        model: nn.Module,
    ) -> None:
        modules.on_compiled = self.enter
        self._now = now
        self._modules = modules
        self._functions = functions
        self._policy = policy
        self._seen = seen
        self._rehearsal = rehearsal
        self._model = model
        self._call: tuple[Any, Any, Any] | None = None
        self._open: list[Callable[[], None]] = []
        _be_quiet()
        graphs.tallies[id(now.tally)] = now.tally
        self._first = 0
        self._labels: Counter[str] = Counter()
        self._counted: dict[Any, int] = {}
        self._held: dict[Any, tuple[StorageWeakRef, Tensor]] = {}

    def join(self, args: Any, kwargs: Any) -> None:
        """The pass begins inside of a call of the model, too late for hooks to tell of it."""
        if graphs.is_compiled(self._model):
            self._begin_call(self._model, args, kwargs)

    def enter(self, module: nn.Module) -> None:
        """What torch.compile has made of a module is about to run."""

        def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self._now.untouched.add(_own(args, kwargs))
            self._call = (module, args, kwargs) if is_whole else self._call
            self.returned(output)
            self._leave()

        is_whole = module is self._model or getattr(module, "_orig_mod", None) is self._model
        if is_whole:
            self._rehearsal.note_start()
        handle = module.register_forward_hook(leave, with_kwargs=True, always_call=True)
        self._begin(handle.remove)

    def returned(self, output: Any) -> None:
        """A compiled module has returned, with None if it was interrupted."""
        if len(self._open) == 1 and output is not None:
            self._note_kept(output)
            if self._call is not None:
                self._rehearsal.note_call(*self._call, output)

    def _leave(self) -> None:
        if self._open:
            self._open.pop()()

    def close(self) -> None:
        """The pass is over, perhaps by an interruption inside of a region."""
        while self._open:
            self._leave()
        self._modules.on_compiled = None
        self._held.clear()
        if self._first and not self._now.tally.is_trial:
            self._rehearsal.totals = self._now.tally.so_far()

    @contextmanager
    def patched(self, model: nn.Module) -> Iterator[None]:
        """While it lasts, modules that were compiled in place tell when they run."""
        with ExitStack() as changed:
            for module in model.modules():
                if graphs.is_compiled_in_place(module):
                    changed.callback(
                        surround(
                            module, partial(self._begin_call, module), self._leave, self.returned
                        )
                    )
            yield

    def _begin_call(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._now.untouched.add(_own(args, kwargs))
        if module is self._model:
            self._call = (module, args, kwargs)
            self._rehearsal.note_start()
        self._begin(lambda: None)

    def _begin(self, last: Callable[[], None]) -> None:
        if self._open:
            # A compiled module inside of another one.
            self._open.append(last)
            return
        self._seen()
        self._rehearsal.note_compiled(is_exact=self._policy.is_exact)
        now = self._now
        if now.pending:
            now.settle(())
        self._first = next_number()
        now.calls.start(self._modules.current, "compiled")
        core: Any = torch._C
        stack = torch.overrides._get_current_function_mode_stack()
        aside = bool(stack) and stack[-1] is self._functions
        if aside:
            core._pop_torch_function_stack()
        self._modules.pause()
        hooks = torch.autograd.graph.saved_tensors_hooks(*graphs.hooks_for(self._policy.is_exact))
        hooks.__enter__()
        graphs.local.encoder = self
        self._labels.clear()
        self._counted.clear()

        def end() -> None:
            self._held.clear()
            graphs.local.encoder = None
            hooks.__exit__()
            self._modules.resume()
            if aside:
                core._push_on_torch_function_stack(self._functions)
            last()

        self._open.append(end)

    def known(self, x: Tensor, tag: str) -> Tensor | None:
        """What is held of the same memory already, under another view."""
        found = self._held.get(_key_of(x, tag))
        return None if found is None else found[1]

    def note(self, x: Tensor, tag: str, full: Tensor) -> None:
        """That is what is held of it now."""
        # While a weak reference is held, no other storage gets the address.
        self._held[_key_of(x, tag)] = StorageWeakRef(x.untyped_storage()), full

    def encode(self, x: Tensor, tag: str) -> tuple[Blob, float, int]:
        """Within the bound of its site; with the bound, and a number to report the decoding to."""
        start = time.perf_counter()
        label, _, *readers = tag.split()
        turn = self._labels[label]
        self._labels[label] += 1
        site = self._now.calls.site_of(label, turn)
        entry = Entry(x, site)
        decided, site.bound = site.bound, self._rehearsal.bound_of(site)
        with torch.no_grad():
            coded = None if graphs.is_mask(tag) else self._policy.pack(entry, x)
        site.bound = decided
        saved_bytes = self._count(_key_of(x, tag)[:2], x)
        share = 0.0
        if entry.bound > 0:
            self._rehearsal.note_place(site, readers, x.numel(), saved_bytes)
            share = site.share * (entry.bound / decided) ** 2 if decided else 0.0
        blob = graphs.encode_exactly(x, tag) if coded is None else coded.blob
        self._now.tally.hold(
            Row(
                name=site.name,
                readers=("compiled", *readers),
                error_class="P" if entry.bound > 0 else "M" if graphs.is_mask(tag) else "E",
                method="encode",
                shape=tuple(x.shape),
                saved_bytes=saved_bytes,
                kept_bytes=blob.nbytes + graphs.HEAD,
                bound=entry.bound,
                gradient_error=share,
                encode_s=time.perf_counter() - start,
                decode_s=0.0,
            )
        )
        return blob, entry.bound, id(self._now.tally)

    def _note_kept(self, output: Any) -> None:
        """What the graphs behind the outputs keep as it is, as plain training does."""
        queue = [t.grad_fn for t in tensors_in(output) if t.grad_fn is not None]
        seen: set[Any] = set()
        while queue:
            node: Any = queue.pop()
            if node in seen or node._sequence_nr() < self._first:
                continue
            seen.add(node)
            queue.extend(n for n, _ in node.next_functions if n is not None)
            if hasattr(node, "_tensors_no_vc_check"):
                for tensor in (*node.saved_tensors, *node._tensors_no_vc_check):
                    self._note_plain(tensor)

    def _note_plain(self, tensor: Tensor) -> None:
        is_held = tensor.dtype == torch.uint8 and tensor.shape == (graphs.HEAD,)
        storage = tensor.untyped_storage()
        if is_held or storage._cdata in self._now.untouched.storages:
            return
        nbytes = self._count(storage._cdata, tensor)
        # It is there in any case: whoever saves it again need not encode it.
        self._now.untouched.add([tensor])
        if nbytes:
            self._now.tally.hold(
                Row(
                    name=f"{self._modules.current or 'model'}: compiled",
                    readers=("compiled",),
                    error_class="E",
                    method="keep",
                    shape=tuple(tensor.shape),
                    saved_bytes=nbytes,
                    kept_bytes=nbytes,
                    bound=0.0,
                    gradient_error=0.0,
                    encode_s=0.0,
                    decode_s=0.0,
                )
            )

    def _count(self, key: Any, tensor: Tensor) -> int:
        """Bytes of a memory that plain training would hold for several tensors, once.

        Graphs use memory again: a storage tells nothing while they run.
        """
        storage_bytes = tensor.untyped_storage().nbytes()
        left = self._counted.get(key, storage_bytes)
        is_held = isinstance(key, tuple)
        found = min(left, tensor.numel() * tensor.element_size() if is_held else storage_bytes)
        self._counted[key] = left - found
        return found


def _key_of(x: Tensor, tag: str) -> tuple[Any, ...]:
    """Of the values in a part of a memory, in whatever order they are called."""
    # Graphs use a storage again for other values: the node that has made them tells them apart.
    storage, source = x.untyped_storage()._cdata, tag.split()[1]
    is_dense = torch.ops.aten.is_non_overlapping_and_dense(x)
    order = () if is_dense else (tuple(x.shape), x.stride())
    is_mask = graphs.is_mask(tag)
    return storage, source, is_mask, x.dtype, x.storage_offset(), x.numel(), order


def tell(local: Any, output: Any) -> None:
    """The pass of this thread, if there is one, that its model has returned."""
    regions: Regions | None = getattr(local, "regions", lambda: None)()
    if regions is not None:
        regions.returned(output)


# Calls of models, also of those that were compiled in place, which call no hooks.


def attend(
    model: nn.Module,
    enter: Enter,
    leave: Callable[[], None],
    returned: Callable[[Any], None] | None = None,
) -> Callable[[], None]:
    """Do something before and after every call of a model; returns the way back."""
    if graphs.is_compiled_in_place(model):
        return surround(model, enter, leave, returned)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        if returned is not None:
            returned(output)
        leave()

    handles = [
        model.register_forward_pre_hook(
            lambda _, args, kwargs: enter(args, kwargs), prepend=True, with_kwargs=True
        ),
        model.register_forward_hook(after, always_call=True),
    ]

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


def surround(
    module: nn.Module,
    enter: Enter,
    leave: Callable[[], None],
    returned: Callable[[Any], None] | None = None,
) -> Callable[[], None]:
    """Do the same where `module.compile()` was called."""
    call: Callable[..., Any] = module.__dict__["_compiled_call_impl"]

    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            # A part of a larger graph.
            return call(*args, **kwargs)
        marked = enter(args, kwargs)
        try:
            output = call(*args, **kwargs)
            if returned is not None:
                returned(output)
            return output
        finally:
            leave()
            del marked

    object.__setattr__(module, "_compiled_call_impl", run)
    return lambda: object.__setattr__(module, "_compiled_call_impl", call)


def _own(args: Any, kwargs: Any) -> list[Tensor]:
    """Arguments that no operation of this pass has made: they are the caller's."""
    return [t for t in tensors_in((args, kwargs)) if t.grad_fn is None]


def _be_quiet() -> None:
    """Torch warns of hooks on all modules beside compiled ones; ours step aside for these."""
    text = r"Using `torch\.compile\(module\)` when there are global hooks on modules"
    known = any(f[1] is not None and f[1].pattern == text for f in warnings.filters)
    if "torch._dynamo" in sys.modules and not known:
        warnings.filterwarnings("ignore", text, UserWarning)
