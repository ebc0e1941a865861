"""Places for states of a loop: in memory or on a disk."""

import mmap
import os
import tempfile
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from elbowroom.codec.checksum import checksum
from elbowroom.errors import CorruptData

Tensors = list[Tensor]


class LoopWarning(UserWarning):
    """Something about a loop that a user should know; its gradients are right."""


class Held(Protocol):
    """A state that waits."""

    @property
    def nbytes(self) -> int:
        """Of memory."""
        ...

    def load(self) -> Tensors:
        """The tensors; they are the caller's own."""
        ...


class Copied:
    """The tensors themselves: copies, since a step may change its state in place."""

    def __init__(self, tensors: Tensors, pool: "Pool | None" = None) -> None:
        """Take copies, in memory of the pool where that is possible."""
        self.nbytes = sum(tensor.nbytes for tensor in tensors)
        plain = [t.detach() for t in tensors]
        if pool is None or self.nbytes < _POOLED_BYTES or not all(_is_dense(t) for t in plain):
            self.tensors = [tensor.clone() for tensor in plain]
            return
        self.tensors = pool.copy(plain, self)

    def load(self) -> Tensors:
        """Copies of them."""
        return [tensor.clone() for tensor in self.tensors]


class Pool:
    """Memory for slots beside the heap, used again and again.

    In the heap, states that stay a while leave holes between what comes and goes with every step,
    and it would grow by as much as they take.
    """

    def __init__(self) -> None:
        self._free: list[tuple[int, mmap.mmap]] = []

    def clear(self) -> None:
        """Give back what is free."""
        self._free.clear()

    def copy(self, tensors: Tensors, holder: object) -> Tensors:
        """Copies of dense tensors, whose place is free again when the holder is gone."""
        sizes = [-(-t.nbytes // _ALIGNED) * _ALIGNED for t in tensors]
        total = sum(sizes)
        place = next((one for one in self._free if one[0] == total), None)
        if place is None:
            self.clear()  # of another size than states have now: they would stay for ever
            place = total, mmap.mmap(-1, total)
        else:
            self._free.remove(place)
        weakref.finalize(holder, self._free.append, place).atexit = False
        made, start = [], 0
        for tensor, size in zip(tensors, sizes, strict=True):
            flat = torch.frombuffer(
                place[1], dtype=tensor.dtype, count=tensor.numel(), offset=start
            )
            copy = flat.as_strided(tensor.shape, tensor.stride())
            made.append(copy.copy_(tensor))
            start += size
        return made


_POOLED_BYTES = 1 << 20
_ALIGNED = 64


def _is_dense(tensor: Tensor) -> bool:
    is_plain = tensor.device.type == "cpu" and tensor.layout == torch.strided
    return (
        is_plain
        and tensor.numel() > 0
        and bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))
    )


class Disk:
    """States in a file without a name, that goes with the process, however that ends."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._file: int | None = None
        self._free: list[tuple[int, int]] = []
        self._end = 0

    def put(self, tensors: Tensors) -> Held:
        """Write a state; where the disk does not take it, memory does, and the user is told."""
        nbytes = sum(tensor.nbytes for tensor in tensors)
        try:
            offset = self._take(nbytes)
            sums, at = [], offset
            looks = []
            for tensor in tensors:
                plain = tensor.detach().cpu().resolve_conj().resolve_neg()
                # In the order in which they lie: sums over them are to have the same bits.
                plain = plain if _is_dense(plain) else plain.contiguous()
                looks.append((plain.dtype, plain.shape, plain.stride(), tensor.device))
                data = _bytes_of(plain)
                sums.append(checksum(data))
                at = _write(self._open(), data, at)
        except OSError as error:
            warnings.warn(
                f"a state of a loop is held in memory, since the disk does not take it: {error}",
                LoopWarning,
                stacklevel=2,
            )
            return Copied(tensors)
        return _OnDisk(self, offset, nbytes, looks, sums)

    def read(self, offset: int, out: memoryview) -> None:
        """Fill memory from a place in the file."""
        done = 0
        while done < len(out):
            count = os.preadv(self._open(), [out[done:]], offset + done)
            if count == 0:
                raise CorruptData("a state of a loop was put on disk, and the file was cut since")
            done += count

    def give_back(self, offset: int, nbytes: int) -> None:
        """The place can be used again."""
        self._free.append((offset, nbytes))

    def _take(self, nbytes: int) -> int:
        for number, (offset, size) in enumerate(self._free):
            if size == nbytes:
                del self._free[number]
                return offset
        offset, self._end = self._end, self._end + nbytes
        return offset

    def _open(self) -> int:
        if self._file is None:
            self._file, name = tempfile.mkstemp(prefix="elbowroom-loop-", dir=self._folder)
            os.unlink(name)
            weakref.finalize(self, os.close, self._file)
        return self._file


class _OnDisk:
    def __init__(
        self, disk: Disk, offset: int, nbytes: int, looks: list[Any], sums: list[int]
    ) -> None:
        self.nbytes = 0  # of memory
        self._disk, self._offset, self._looks, self._sums = disk, offset, looks, sums
        weakref.finalize(self, disk.give_back, offset, nbytes).atexit = False

    def load(self) -> Tensors:
        """Read it, and compare it with its checksums."""
        found, at = [], self._offset
        for (dtype, shape, stride, device), expected in zip(self._looks, self._sums, strict=True):
            tensor = torch.empty_strided(shape, stride, dtype=dtype)
            data = _bytes_of(tensor)
            self._disk.read(at, data)
            at += len(data)
            if checksum(data) != expected:
                raise CorruptData("a state of a loop came back from the disk with other bytes")
            found.append(tensor.to(device))
        return found


def _bytes_of(tensor: Tensor) -> memoryview:
    """Of a dense tensor, as they lie in memory."""
    if tensor.numel() == 0:
        return memoryview(b"")
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return memoryview(flat.view(torch.uint8).numpy())  # pyright: ignore[reportArgumentType]


def _write(file: int, data: memoryview, offset: int) -> int:
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], offset + done)
    return offset + done


class Slots:
    """States by the number of the step that they precede, with what else that step finds."""

    def __init__(self, put: Callable[[Tensors, int], Held]) -> None:
        """`put` is given a state and how many are held already."""
        self._put = put
        self._held: dict[int, tuple[Held, Any]] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._held

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """Of memory."""
        return sum(held.nbytes for held, _ in self._held.values())

    def keep(self, number: int, state: Tensors, moment: Any) -> None:
        """Hold a state."""
        self._held[number] = self._put(state, len(self._held)), moment

    def load(self, number: int) -> tuple[Tensors, Any]:
        """A state, and what else its step finds."""
        held, moment = self._held[number]
        return held.load(), moment

    def free(self, number: int) -> None:
        """Hold it no longer."""
        self._held.pop(number, None)

    def clear(self) -> None:
        """Hold nothing."""
        self._held.clear()
