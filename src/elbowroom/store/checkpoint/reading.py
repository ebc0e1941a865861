"""Contents out of packs, every leaf compared with its digest."""

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elbowroom.codec import Blob, decode
from elbowroom.errors import CorruptData, IncompatibleFormat
from elbowroom.host import available_bytes
from elbowroom.store.checkpoint.coding import (
    FRAME_BYTES,
    MOST_RATIO,
    decode_frame,
    frames_of,
    room_for_frame,
)
from elbowroom.store.checkpoint.contents import BLOB
from elbowroom.store.checkpoint.digests import HASHES, HashTree
from elbowroom.store.checkpoint.layout import Layout, check_layout, place_over
from elbowroom.store.checkpoint.manifest import Content, Extent, Manifest, Part
from elbowroom.store.checkpoint.naming import PACKS

_LARGE_BYTES = 1 << 28
_SMALL_BYTES = 256  # such as the step that Adam has for every parameter: one content for all
_Bytes = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Damage:
    """What is wrong with a tensor of a checkpoint."""

    where: str
    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} ({self.file})"


class Files(Protocol):
    """What is read from: a place, or its files while they are held open."""

    def read_into(self, name: str, offset: int, out: memoryview) -> None:
        """Fill a buffer from a place in a file."""
        ...

    def size(self, name: str) -> int:
        """Of a file, in bytes."""
        ...


class PartReader:
    """Reads what one rank has saved."""

    def __init__(self, place: Files, manifest: Manifest, part: Part) -> None:
        self._place, self._manifest, self._part = place, manifest, part
        self._sizes: dict[int, int] = {}
        self._tables: dict[int, tuple[int, bytes]] = {}
        self._small: dict[int, _Bytes] = {}
        named = Counter(entry.content for entry in part.entries)
        self._locks = {number: threading.Lock() for number, n in named.items() if n > 1}
        self._whole: dict[int, _Bytes] = {}  # those of several names that are read already

    def tensor(self, number: int) -> Tensor:
        """A tensor of the state, verified."""
        if not isinstance(number, int) or not 0 <= number < len(self._part.entries):
            raise CorruptData(f"the checkpoint's state asks for a tensor {str(number)[:20]}")
        entry = self._part.entries[number]
        content = self._part.contents[entry.content]
        layout = Layout(dtype=entry.dtype, shape=entry.shape, stride=entry.stride)
        check_layout(layout, content.nbytes, entry.where)
        self._check_sizes(content)
        if content.nbytes > _LARGE_BYTES and content.nbytes > available_bytes():
            raise CorruptData(
                f"{entry.where} says that it has {content.nbytes:,} bytes, more than the "
                f"{available_bytes():,} of memory that are free"
            )
        raw = torch.empty(content.nbytes, dtype=torch.uint8)
        self._read_once(entry.content, entry.where, raw.numpy())
        return place_over(raw, layout)

    def _read_once(self, number: int, where: str, out: _Bytes) -> None:
        """A content that has several names is read and compared once, and copied from then on."""
        if number not in self._locks or len(out) <= _SMALL_BYTES:
            self.read(number, where, out)
            return
        with self._locks[number]:
            if number in self._whole:
                out[:] = self._whole[number]
                return
            self.read(number, where, out)
            # Tensors belong to whoever asks: this copy is for those who ask later.
            self._whole[number] = out.copy()

    def held_bytes(self) -> int:
        """What reading all tensors takes at most: a blob's values are made beside their place."""
        part, counted = self._part, set[int]()
        total = 0
        for entry in part.entries:
            content = part.contents[entry.content]
            is_shared = entry.content in self._locks and entry.content not in counted
            total += content.nbytes * (1 + (content.coding == BLOB or is_shared))
            counted.add(entry.content)
        return total

    def files(self, number: int) -> list[str]:
        """The packs that a tensor of the state lies in."""
        content = self._part.contents[self._part.entries[number].content]
        extents = [*self._extents_of(content), *([content.leaves] if content.leaves else [])]
        return sorted({self._file_of(extent) for extent in extents})

    def read(self, number: int, where: str, out: _Bytes) -> None:
        """Fill memory with a content, and compare it with its digests."""
        if number in self._small:
            out[:] = self._small[number]
            return
        self._fill(number, where, out)
        broken = self._broken_leaves(number, out)
        if len(broken):
            raise CorruptData(self._blame(number, where, broken))
        if len(out) <= _SMALL_BYTES:
            self._small[number] = out.copy()

    def leaves(self, number: int) -> HashTree:
        """The tree of a content as it was written; refuses digests that are damaged themselves."""
        content = self._part.contents[number]
        size = HASHES[self._manifest.hash][0]
        try:
            if content.leaves is None:
                digests = bytes.fromhex(content.root.partition("-")[2])
            else:
                digests = self.digests_at(content.leaves)
            leaves = np.frombuffer(digests, np.uint8).reshape(-1, size)
        except ValueError as error:
            raise CorruptData(f"a content has digests of the wrong size: {error}") from error
        tree = HashTree(
            hash=self._manifest.hash,
            nbytes=content.nbytes,
            leaves=leaves,
            leaf_bytes=self._manifest.leaf_bytes,
        )
        count = -(-content.nbytes // self._manifest.leaf_bytes)
        if len(leaves) != count or tree.root != content.root:
            name = self._file_of(content.leaves) if content.leaves else "the manifest"
            raise CorruptData(f"the digests of a content are damaged in {name}")
        return tree

    def digests_at(self, extent: Extent) -> bytes:
        """Digests of leaves. Those of all contents lie together: they are read at once."""
        if extent.pack not in self._tables:
            start, end = self._digests_in(extent.pack)
            whole = Extent(pack=extent.pack, offset=start, nbytes=end - start)
            try:
                self._tables[extent.pack] = start, self.bytes_of(whole)
            except (OSError, CorruptData):  # whose digests are lost shows when each is read alone
                self._tables[extent.pack] = start, b""
        start, table = self._tables[extent.pack]
        at = extent.offset - start
        return table[at : at + extent.nbytes] if table else self.bytes_of(extent)

    def _digests_in(self, pack: int) -> tuple[int, int]:
        """From where to where the digests in a pack lie; no place if they lie far apart."""
        found = [c.leaves for c in self._part.contents if c.leaves and c.leaves.pack == pack]
        start = min(extent.offset for extent in found)
        end = max(extent.offset + extent.nbytes for extent in found)
        is_run = end - start <= 2 * sum(extent.nbytes for extent in found) <= _LARGE_BYTES
        return (start, end) if is_run else (start, start)

    def bytes_of(self, extent: Extent) -> bytes:
        """Some bytes of a pack."""
        self._check_extent(extent)
        out = bytearray(extent.nbytes)
        self._place.read_into(self._file_of(extent), extent.offset, memoryview(out))
        return bytes(out)

    def _fill(self, number: int, where: str, out: _Bytes) -> None:
        """Fill memory with a content: what it begins with, then every difference frame by frame.

        All differences of a frame are added while it is in the processor's caches.
        """
        first, *later = self._chain_of(self._part.contents[number], where)
        if not first.coding:
            self._fill_raw(first, out)
        elif first.coding == BLOB:
            self._fill_blob(first, where, out)
        else:
            later.insert(0, first)
        if any(content.coding == BLOB for content in later):
            raise CorruptData(f"{where} has a blob that builds on something")
        frames = list(frames_of(len(out))) if later else []
        for content in later:
            if len(frames) != len(content.extents):
                raise CorruptData(
                    f"{where} has {len(content.extents)} frames in place of {len(frames)}"
                )
        for at, frame in enumerate(frames):
            for content in later:
                self._add_frame(content, at, where, out[frame])

    def _chain_of(self, content: Content, where: str) -> list[Content]:
        """All that a content is made of, in the order in which it is."""
        chain = [content]
        while (base := chain[-1].base) is not None:
            chain.append(self._part.contents[base])
            if chain[-1].nbytes != content.nbytes:
                raise CorruptData(f"{where} builds on a content of another size")
        return chain[::-1]

    def _fill_raw(self, content: Content, out: _Bytes) -> None:
        done = 0
        for extent in content.extents:
            end = done + extent.nbytes
            self._check_extent(extent)
            if extent.nbytes == 0:
                continue
            self._place.read_into(self._file_of(extent), extent.offset, out[done:end].data)
            rest = out[end : end + (extent.repeat - 1) * extent.nbytes]
            rest.reshape(-1, extent.nbytes)[:] = out[done:end]
            done += extent.total_bytes

    def _add_frame(self, content: Content, at: int, where: str, out: _Bytes) -> None:
        extent = content.extents[at]
        self._check_extent(extent)
        file = self._file_of(extent)
        try:
            coded = room_for_frame(content.item_bytes, extent.nbytes, len(out))
            self._place.read_into(file, extent.offset, coded)
            decode_frame(content.coding, content.item_bytes, coded, out)
        except CorruptData as error:
            raise CorruptData(f"{where}: {error} ({file})") from error

    def _fill_blob(self, content: Content, where: str, out: _Bytes) -> None:
        coded = b"".join(self.bytes_of(extent) for extent in content.extents)
        try:
            blob = Blob.frombytes(coded)
            if blob.raw_nbytes != content.nbytes:
                raise CorruptData(f"a blob of {blob.raw_nbytes} bytes, not {content.nbytes}")
            values = decode(blob)
        except (CorruptData, IncompatibleFormat) as error:
            files = ", ".join(sorted({self._file_of(extent) for extent in content.extents}))
            raise CorruptData(f"{where}: {error} ({files})") from error
        if not isinstance(values, Tensor):
            raise CorruptData(f"{where} is a blob of an array in place of a tensor")
        flat = torch.empty(0, dtype=values.dtype).set_(values.untyped_storage())
        out[:] = flat.view(torch.uint8).numpy()[: content.nbytes]

    def _check_sizes(self, content: Content) -> None:
        """Refuse sizes that the packs cannot hold before memory is taken for them."""
        for extent in content.extents:
            self._check_extent(extent)
        held = sum(extent.nbytes for extent in content.extents)
        if content.coding and (held * MOST_RATIO + FRAME_BYTES) < content.nbytes:
            raise CorruptData(f"{held} coded bytes claim to be {content.nbytes}")

    def _check_extent(self, extent: Extent) -> None:
        pack = self._part.packs[extent.pack]
        if extent.pack not in self._sizes:
            name = f"{PACKS}/{pack.name}"
            try:
                self._sizes[extent.pack] = self._place.size(name)
            except FileNotFoundError:
                raise CorruptData(f"{name} is missing") from None
        if self._sizes[extent.pack] != pack.nbytes:
            raise CorruptData(
                f"{PACKS}/{pack.name} has {self._sizes[extent.pack]} bytes in place of "
                f"{pack.nbytes}: it was cut short or replaced"
            )

    def _file_of(self, extent: Extent) -> str:
        return f"{PACKS}/{self._part.packs[extent.pack].name}"

    def _broken_leaves(self, number: int, out: _Bytes) -> NDArray[np.int64]:
        tree = self.leaves(number)
        found = HashTree.of(out.data, tree.hash, tree.leaf_bytes) if len(out) else tree
        return found.changed(tree)

    def _blame(self, number: int, where: str, broken: NDArray[np.int64]) -> str:
        content, leaf_bytes = self._part.contents[number], self._manifest.leaf_bytes
        files = sorted({self._file_of(e) for e in self._broken_link(number, where).extents})
        if not content.coding:
            files = sorted(
                {
                    name
                    for name, start, end in self._files_of(content)
                    if ((broken * leaf_bytes < end) & ((broken + 1) * leaf_bytes > start)).any()
                }
            )
        first = int(broken[0]) * leaf_bytes
        return (
            f"{where} is damaged: {len(broken)} of {-(-content.nbytes // leaf_bytes)} pieces do "
            f"not match their digests, the first at byte {first}, in {', '.join(files)}"
        )

    def _broken_link(self, number: int, where: str) -> Content:
        """The first of those that a content is made of which is not what it was."""
        numbers = [number]
        while (base := self._part.contents[numbers[-1]].base) is not None:
            numbers.append(base)
        room = np.empty(self._part.contents[number].nbytes, np.uint8)
        for one in reversed(numbers[1:]):
            try:
                self._fill(one, where, room)
                if not len(self._broken_leaves(one, room)):
                    continue
            except (CorruptData, OSError):
                pass
            return self._part.contents[one]
        return self._part.contents[number]

    def _extents_of(self, content: Content) -> Iterator[Extent]:
        yield from content.extents
        if content.base is not None:
            yield from self._extents_of(self._part.contents[content.base])

    def _files_of(self, content: Content) -> Iterator[tuple[str, int, int]]:
        start = 0
        for extent in content.extents:
            yield self._file_of(extent), start, start + extent.total_bytes
            start += extent.total_bytes
