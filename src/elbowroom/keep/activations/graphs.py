"""Operators in compiled graphs that encode what forward keeps for backward.

torch.compile takes hooks for saved tensors that are graph modules, and puts them into the graphs of
forward and backward. Ours are two operators. `hold` returns sixteen bytes whatever the tensor is,
so that shapes do not depend on data; behind them, in the same storage, lies the blob, which lives
and dies with them. `give` makes the tensor again.

Torch appends all packing to the end of the forward graph and puts all unpacking at the start of
the backward graph, where it would free nothing. Both are moved to where the tensor is used last,
and first again.
"""

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from elbowroom.codec import Blob, Bound, decode, encode
from elbowroom.codec.opaque import opaque
from elbowroom.errors import CorruptData
from elbowroom.keep.activations.entries import Entry
from elbowroom.keep.activations.passes import SMALL_BYTES
from elbowroom.keep.activations.payloads import dense_form
from elbowroom.keep.activations.reads import must_be_exact, readers_of, reads_sides, source_of
from elbowroom.keep.activations.reasons import ODD
from elbowroom.keep.activations.sites import Site
from elbowroom.keep.activations.tally import Tally
from elbowroom.keep.activations.untouched import is_plain

HEAD = 16
# In place of readers: only the side of zero is read.
MASK = "mask"
# Queries are one part in three of what they are split from: that much memory is filled in backward.
MOST_GAPS = 4
# Part of what torch's caches of compiled graphs look at: to be raised when the graphs change.
SCHEME = 2


class Encoder(Protocol):
    """What encodes in the present thread."""

    def encode(self, x: Tensor, tag: str) -> tuple[Blob, float, int]:
        """The tensor that the tag tells of; with its bound, and the number of a tally."""
        ...

    def known(self, x: Tensor, tag: str) -> Tensor | None:
        """What is held of the same memory already."""
        ...

    def note(self, x: Tensor, tag: str, full: Tensor) -> None:
        """That is what is held of it now."""
        ...


class Local(threading.local):
    """Of each thread."""

    encoder: Encoder | None = None


local = Local()
tallies: "weakref.WeakValueDictionary[int, Tally]" = weakref.WeakValueDictionary()


# The operators.


def _hold(x: Tensor, tag: str) -> Tensor:
    encoder = local.encoder
    full = None if encoder is None else encoder.known(x, tag)
    if full is None:
        full = _filled(x, tag)
        if encoder is not None:
            encoder.note(x, tag, full)
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(
        full.untyped_storage(), 0, (HEAD,), (1,)
    )


def encode_exactly(x: Tensor, tag: str) -> Blob:
    """All of it, or which values are above zero where nothing else is read."""
    return encode(dense_form(x > 0 if is_mask(tag) else x)[0], Bound.lossless())


def is_mask(tag: str) -> bool:
    """Whether only the side of zero is read of what has this tag."""
    return tag.endswith(f" {MASK}")


def _filled(x: Tensor, tag: str) -> Tensor:
    if local.encoder is None:
        blob, bound, number = encode_exactly(x, tag), 0.0, 0
    else:
        blob, bound, number = local.encoder.encode(x, tag)
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
    return full.to(x.device)


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
    if tensor.dtype != dtype:
        # Ones and zeros stand for what was above zero.
        tensor = tensor.to(dtype)
    if tuple(tensor.shape) != tuple(size) or tensor.stride() != tuple(stride):
        tensor = _laid_out(tensor, size, stride)
    tally = tallies.get(number)
    if tally is not None:
        tally.decode_s += time.perf_counter() - start
    return tensor


def _laid_out(tensor: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """The same values, in order of memory, under other strides."""
    order = sorted(range(len(size)), key=lambda axis: -stride[axis])
    flat = tensor.as_strided((tensor.numel(),), (1,))
    if _extent(size, stride) == tensor.numel():
        return flat.as_strided(size, stride)
    # With gaps, as one of several parts of a memory.
    out = torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device)
    out.permute(order).copy_(flat.view([size[axis] for axis in order]))
    return out


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
def hooks_for(is_exact: bool) -> tuple[Any, Any]:
    """The same two for all rooms: compiled graphs are guarded by their identity."""
    tag = f"elbowroom {SCHEME} {'exact' if is_exact else 'lossy'} {SMALL_BYTES}"

    @opaque
    def pack(x: Tensor) -> Any:
        return _pack(x, is_exact=is_exact)

    return _module(tag, pack), _module(tag, _unpack)


def _module(tag: str, function: Callable[[Any], Any]) -> Any:
    """A graph module for torch's caches to look at, which does what the function does."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.ops.elbowroom.hold.default, (x, tag)))
    module = torch.fx.GraphModule(nn.Module(), graph)
    object.__setattr__(module, "forward", function)
    return module


def _pack(x: Tensor, *, is_exact: bool) -> Any:
    state = _tracing()
    if state is None:
        # An operation between two graphs, which nobody watches: kept, and checked for changes.
        entry = Entry(x, _no_site(), is_plain=is_plain(x))
        entry.keep_as_it_is(owned=False, reason=ODD)
        return entry
    node, backward = state["_node"], state["_bw_graph"]
    _place(state["_fw_graph"], backward)
    if not _is_worth_it(x):
        return x
    is_float = x.dtype.is_floating_point
    sides = is_float and reads_sides(node, backward)
    if is_float and not sides and (is_exact or must_be_exact(node, backward)):
        return x
    readers = (MASK,) if sides else readers_of(node, backward)
    label = " ".join((node.name, source_of(node).name, *readers))
    return torch.ops.elbowroom.hold(x, label), tuple(x.shape), tuple(x.stride()), x.dtype


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
    # Without repeats; gaps are other parts of the same memory.
    pairs = sorted(zip(x.stride(), x.shape, strict=True))
    apart = all(bool(s * n <= t) for (s, n), (t, _) in pairwise(pairs))
    return apart and bool(_extent(x.shape, x.stride()) <= MOST_GAPS * x.numel())


def _extent(size: Sequence[int], stride: Sequence[int]) -> int:
    """Places of memory from the first element to the last."""
    return sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + 1


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


def is_compiled(module: nn.Module) -> bool:
    """Whether a call of the module runs what torch.compile has made of it."""
    # By name, since importing the class takes as long as torch itself; a proxy tells its class.
    return module.__class__.__name__ == "OptimizedModule" or is_compiled_in_place(module)


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether `module.compile()` was called."""
    return module.__dict__.get("_compiled_call_impl") is not None


@lru_cache(maxsize=1)
def _no_site() -> Any:
    return Site(("", "between graphs", 0, 0), -1)
