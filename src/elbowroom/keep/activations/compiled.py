"""Compiled regions: what their forward keeps for their backward is encoded inside the graphs.

torch.compile takes hooks for saved tensors that are graph modules, and puts them into the graphs of
forward and backward. Ours are two operators. `hold` returns sixteen bytes whatever the tensor is,
so that shapes do not depend on data; behind them, in the same storage, lies the blob, which lives
and dies with them. `give` makes the tensor again.

Torch appends all packing to the end of the forward graph and puts all unpacking at the start of
the backward graph, where it would free nothing. Both are moved to where the tensor is used last,
and first again.
"""

import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elbowroom.codec import Blob, Bound, decode, encode
from elbowroom.codec.opaque import opaque
from elbowroom.errors import CorruptData
from elbowroom.keep.activations.entries import Entry
from elbowroom.keep.activations.ledger import Row
from elbowroom.keep.activations.passes import SMALL_BYTES, Pass
from elbowroom.keep.activations.policy import Policy
from elbowroom.keep.activations.reads import must_be_exact
from elbowroom.keep.activations.reasons import ODD
from elbowroom.keep.activations.tally import Tally
from elbowroom.keep.activations.untouched import is_plain
from elbowroom.keep.activations.watch import Functions, Modules

HEAD = 16
# Part of what torch's caches of compiled graphs look at: to be raised when the graphs change.
SCHEME = 1

Enter = Callable[[Any, Any], Any]
"""Takes arguments and those by name; what it returns lives until the call is over."""

_local = threading.local()
_tallies: "weakref.WeakValueDictionary[int, Tally]" = weakref.WeakValueDictionary()


class Regions:
    """Compiled parts of one pass: while they run, hooks and modes of the pass step aside."""

    def __init__(
        self,
        now: Pass,
        modules: Modules,
        functions: Functions,
        policy: Policy,
        seen: Callable[[], None],
    ) -> None:
        modules.on_compiled = self.enter
        self._now = now
        self._modules = modules
        self._functions = functions
        self._policy = policy
        self._seen = seen
        self._open: list[Callable[[], None]] = []
        _be_quiet()
        _tallies[id(now.tally)] = now.tally

    def join(self, model: nn.Module) -> None:
        """The pass begins inside of a call of the model, too late for hooks to tell of it."""
        # By name, since importing the class takes as long as torch itself; a proxy tells its class.
        is_wrapped = model.__class__.__name__ == "OptimizedModule"
        if is_wrapped or is_compiled_in_place(model):
            self._begin(lambda: None)

    def enter(self, module: nn.Module) -> None:
        """What torch.compile has made of a module is about to run."""
        handle = module.register_forward_hook(lambda *_: self._leave(), always_call=True)
        self._begin(handle.remove)

    def _leave(self) -> None:
        if self._open:
            self._open.pop()()

    def close(self) -> None:
        """The pass is over, perhaps by an interruption inside of a region."""
        while self._open:
            self._leave()
        self._modules.on_compiled = None

    @contextmanager
    def patched(self, model: nn.Module) -> Iterator[None]:
        """While it lasts, modules that were compiled in place tell when they run."""
        with ExitStack() as changed:
            for module in model.modules():
                if is_compiled_in_place(module):
                    changed.callback(surround(module, self._begin_call, self._leave))
            yield

    def _begin_call(self, args: Any, kwargs: Any) -> None:
        self._begin(lambda: None)

    def _begin(self, last: Callable[[], None]) -> None:
        if self._open:
            # A compiled module inside of another one.
            self._open.append(last)
            return
        self._seen()
        now = self._now
        if now.pending:
            now.settle(())
        now.calls.start(self._modules.current, "compiled")
        core: Any = torch._C
        stack = torch.overrides._get_current_function_mode_stack()
        aside = bool(stack) and stack[-1] is self._functions
        if aside:
            core._pop_torch_function_stack()
        self._modules.pause()
        hooks = torch.autograd.graph.saved_tensors_hooks(*_hooks(self._policy.is_exact))
        hooks.__enter__()
        _local.region = self

        def end() -> None:
            _local.region = None
            hooks.__exit__()
            self._modules.resume()
            if aside:
                core._push_on_torch_function_stack(self._functions)
            last()

        self._open.append(end)

    def encode(self, x: Tensor) -> tuple[Blob, float, int]:
        """Within the bound of its site; with the bound, and a number to report the decoding to."""
        start = time.perf_counter()
        site = self._now.calls.site()
        entry = Entry(x, site)
        with torch.no_grad():
            coded = self._policy.pack(entry, x)
        blob = encode(x, Bound.lossless()) if coded is None else coded.blob
        spent = time.perf_counter() - start
        self._now.tally.hold(
            Row(
                name=site.name,
                readers=("compiled",),
                error_class="P" if entry.bound > 0 else "E",
                method="encode",
                shape=tuple(x.shape),
                saved_bytes=entry.nbytes_plain,
                kept_bytes=blob.nbytes + HEAD,
                bound=entry.bound,
                gradient_error=0.0,
                encode_s=spent,
                decode_s=0.0,
            )
        )
        return blob, entry.bound, id(self._now.tally)


# Calls of models, also of those that were compiled in place, which call no hooks.


def attend(model: nn.Module, enter: Enter, leave: Callable[[], None]) -> Callable[[], None]:
    """Do something before and after every call of a model; returns the way back."""
    if is_compiled_in_place(model):
        return surround(model, enter, leave)
    handles = [
        model.register_forward_pre_hook(
            lambda _, args, kwargs: enter(args, kwargs), prepend=True, with_kwargs=True
        ),
        model.register_forward_hook(lambda *_: leave(), always_call=True),
    ]

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether `module.compile()` was called."""
    return module.__dict__.get("_compiled_call_impl") is not None


def surround(module: nn.Module, enter: Enter, leave: Callable[[], None]) -> Callable[[], None]:
    """Do the same where `module.compile()` was called."""
    call: Callable[..., Any] = module.__dict__["_compiled_call_impl"]

    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            # A part of a larger graph.
            return call(*args, **kwargs)
        marked = enter(args, kwargs)
        try:
            return call(*args, **kwargs)
        finally:
            leave()
            del marked

    object.__setattr__(module, "_compiled_call_impl", run)
    return lambda: object.__setattr__(module, "_compiled_call_impl", call)


# The operators.


def _hold(x: Tensor, tag: str) -> Tensor:
    region: Regions | None = getattr(_local, "region", None)
    if region is None:
        blob, bound, number = encode(x, Bound.lossless()), 0.0, 0
    else:
        blob, bound, number = region.encode(x)
    full = torch.empty(HEAD + blob.nbytes, dtype=torch.uint8)
    target = full.numpy()
    # What has no negative values gets none: a mask made of them later is then exact.
    is_positive = bound > 0 and bool(x.min() >= 0)
    target[:8].view(np.uint64)[0] = number
    target[8:16].view(np.uint64)[0] = blob.nbytes << 1 | is_positive
    end = HEAD
    for piece in blob.pieces():
        target[end : end + len(piece)] = np.frombuffer(piece, np.uint8)
        end += len(piece)
    full = full.to(x.device)
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(
        full.untyped_storage(), 0, (HEAD,), (1,)
    )


def _give(held: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    start = time.perf_counter()
    full = torch.empty(0, dtype=torch.uint8, device=held.device).set_(held.untyped_storage())
    head = full[:HEAD].cpu().numpy()
    number, word = int(head[:8].view(np.uint64)[0]), int(head[8:].view(np.uint64)[0])
    if held.storage_offset() != 0 or full.numel() != HEAD + (word >> 1):
        raise CorruptData(
            f"a held tensor of {word >> 1} bytes was expected, its storage has {full.numel()}: it "
            "was copied on its way to backward, which no operation of torch should do"
        )
    tensor = decode(Blob.frombytes(full[HEAD:].cpu().numpy())).to(held.device)
    if word & 1:
        tensor.abs_()
    if tuple(tensor.shape) != tuple(size) or tensor.stride() != tuple(stride):
        out = torch.empty_strided(size, stride, dtype=dtype, device=held.device)
        tensor = out.copy_(tensor.view(size))
    tally = _tallies.get(number)
    if tally is not None:
        tally.decode_s += time.perf_counter() - start
    return tensor


def _register() -> torch.library.Library:
    library = torch.library.Library("elbowroom", "FRAGMENT")
    tags = (torch.Tag.pt2_compliant_tag,)
    library.define("hold(Tensor x, str tag) -> Tensor", tags=tags)
    library.define(
        "give(Tensor held, SymInt[] size, SymInt[] stride, ScalarType dtype) -> Tensor", tags=tags
    )
    for device in ("CPU", "CUDA"):
        library.impl("hold", _hold, device)
        library.impl("give", _give, device)
    torch.library.register_fake(
        "elbowroom::hold", lambda x, tag: x.new_empty(HEAD, dtype=torch.uint8), lib=library
    )
    torch.library.register_fake(
        "elbowroom::give",
        lambda held, size, stride, dtype: torch.empty_strided(
            size, stride, dtype=dtype, device=held.device
        ),
        lib=library,
    )
    return library


_LIBRARY = _register()


# The hooks.


@lru_cache(maxsize=2)
def _hooks(is_exact: bool) -> tuple[Any, Any]:
    """The same two for all rooms: compiled graphs are guarded by their identity."""
    tag = f"elbowroom {SCHEME} {'exact' if is_exact else 'lossy'} {SMALL_BYTES}"

    @opaque
    def pack(x: Tensor) -> Any:
        return _pack(x, tag, is_exact)

    return _module(tag, pack), _module(tag, _unpack)


def _module(tag: str, function: Callable[[Any], Any]) -> Any:
    """A graph module for torch's caches to look at, which does what the function does."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.ops.elbowroom.hold.default, (x, tag)))
    module = torch.fx.GraphModule(nn.Module(), graph)
    object.__setattr__(module, "forward", function)
    return module


def _pack(x: Tensor, tag: str, is_exact: bool) -> Any:
    state = _tracing()
    if state is None:
        # An operation between two graphs, which nobody watches: kept, and checked for changes.
        entry = Entry(x, _no_site(), is_plain=is_plain(x))
        entry.keep_as_it_is(owned=False, reason=ODD)
        return entry
    _place(state["_fw_graph"], state["_bw_graph"])
    if not _is_worth_it(x) or (x.dtype.is_floating_point and is_exact):
        return x
    if x.dtype.is_floating_point and must_be_exact(state["_node"], state["_bw_graph"]):
        return x
    return torch.ops.elbowroom.hold(x, tag), tuple(x.shape), tuple(x.stride()), x.dtype


@opaque
def _unpack(held: Any) -> Tensor:
    if isinstance(held, Tensor):
        return held
    if isinstance(held, Entry):
        held.check_version()
        return held.values()
    return torch.ops.elbowroom.give(*held)


def _is_worth_it(x: Tensor) -> bool:
    if x.layout != torch.strided or x.is_complex() or x.dtype.itemsize > 8 or x.dim() == 0:
        return False
    if x.dtype.is_floating_point and x.dtype.itemsize < 2:
        return False
    if not bool(x.numel() * x.element_size() >= SMALL_BYTES):
        return False
    # Of memory without gaps and repeats.
    return bool(sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1 == x.numel())


def _place(forward: Any, backward: Any) -> None:
    """Move what torch has put in so far: encode after the last use, decode before the first."""
    ops: Any = torch.ops.elbowroom
    hold, give = ops.hold.default, ops.give.default
    fresh = [n for g in (forward, backward) for n in g.nodes if n.target in (hold, give)]
    fresh = [n for n in fresh if "elbowroom_placed" not in n.meta]
    if not fresh:
        return
    order = {node: i for g in (forward, backward) for i, node in enumerate(g.nodes)}
    for node in fresh:
        node.meta["elbowroom_placed"] = True
        if node.target is hold:
            source = node.args[0]
            uses = [u for u in source.users if u.op != "output" and u.target is not hold]
            max((source, *uses), key=order.__getitem__).append(node)
        elif node.users:
            min(node.users, key=order.__getitem__).prepend(node)


def _tracing() -> dict[str, Any] | None:
    """The graphs that are being made, and the node whose tensor is saved; None in eager mode."""
    from torch._functorch._aot_autograd import graph_compile

    return graph_compile._get_saved_tensor_hook_context()


def _be_quiet() -> None:
    """Torch warns of hooks on all modules beside compiled ones; ours step aside for these."""
    text = r"Using `torch\.compile\(module\)` when there are global hooks on modules"
    known = any(f[1] is not None and f[1].pattern == text for f in warnings.filters)
    if "torch._dynamo" in sys.modules and not known:
        warnings.filterwarnings("ignore", text, UserWarning)


@lru_cache(maxsize=1)
def _no_site() -> Any:
    from elbowroom.keep.activations.sites import Site

    return Site(("", "between graphs", 0, 0), -1)
