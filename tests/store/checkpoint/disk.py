"""A disk in memory that loses its power, and keeps only what it has promised to keep.

`Disk` is a file system of the least that POSIX promises. What was fsynced is there after a power
cut. Bytes that were not may be there, be missing, be zeros, or be there in part; every change of a
folder that was not fsynced has happened or not, each by itself.
"""

import errno
import fcntl
import itertools
import math
import os
import random
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from elbowroom.store.checkpoint.system import System


class Killed(BaseException):
    """The process is no more: nothing of it may catch this, and nothing it does counts."""


@dataclass(frozen=True)
class Make:
    """A file or folder appears."""

    folder: int
    name: str
    node: int
    is_folder: bool


@dataclass(frozen=True)
class Write:
    """Bytes go to a place in a file."""

    node: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class Sync:
    """A file's bytes, or a folder's names, are on the disk from here on."""

    node: int


@dataclass(frozen=True)
class Rename:
    """A file gets another name in its folder."""

    folder: int
    old: str
    new: str


@dataclass(frozen=True)
class Remove:
    """A name goes."""

    folder: int
    name: str


@dataclass(frozen=True)
class Mark:
    """What the program under test had reached: it does nothing to the disk."""

    text: str


Operation = Make | Write | Sync | Rename | Remove | Mark


@dataclass
class File:
    """Bytes as programs see them, as the disk has them, and what came between."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[Write] = field(default_factory=list[Write])

    def fates(self) -> list[bytes]:
        """What may be found after a power cut."""
        whole = bytes(self.data)
        if not self.pending:
            return [self.durable]
        first, last = self.pending[0], self.pending[-1]
        half = (len(self.durable) + len(whole)) // 2
        zeros = bytes(len(whole) - len(self.durable))
        found = [
            self.durable,
            whole,
            self.durable + zeros,  # the length was written, the bytes were not
            whole[:half] + bytes(len(whole) - half),
            whole[: half | 1],
            whole[: first.offset + len(first.data)],
            (self.durable + zeros)[: last.offset] + last.data,  # the later block came first
            whole[:-1],
        ]
        return list(dict.fromkeys(found))


@dataclass
class Folder:
    """Names as programs see them, as the disk has them, and the changes that came between."""

    names: dict[str, int] = field(default_factory=dict[str, int])
    durable: dict[str, int] = field(default_factory=dict[str, int])
    pending: list[tuple[str | None, str | None, int]] = field(
        default_factory=list[tuple[str | None, str | None, int]]
    )

    def change(self, old: str | None, new: str | None, node: int) -> None:
        """A name goes, one comes, or both in one."""
        _change(self.names, old, new, node)
        self.pending.append((old, new, node))

    def fate(self, happened: int) -> dict[str, int]:
        """The names if only those changes came to the disk whose bits are set."""
        names = dict(self.durable)
        for number, change in enumerate(self.pending):
            if happened >> number & 1:
                _change(names, *change)
        return names


def _change(names: dict[str, int], old: str | None, new: str | None, node: int) -> None:
    if old is not None:
        names.pop(old, None)
    if new is not None:
        names[new] = node


@dataclass
class _Handle:
    node: int
    position: int = 0


class Disk(System):
    """A file system in memory. Every change is in `log`, and can be done again on another disk."""

    def __init__(self) -> None:
        self.nodes: dict[int, File | Folder] = {0: Folder()}
        self.log: list[Operation] = []
        self.kill_at: int | None = None  # so many changes happen, then the process is dead
        self._handles: dict[int, _Handle] = {}
        self._locks: dict[int, dict[int, int]] = {}
        self._numbers = itertools.count(1 << 20)
        self._is_dead = False

    def do(self, operation: Operation) -> None:
        """Change what programs see."""
        match operation:
            case Make(folder, name, node, is_folder):
                self.nodes[node] = Folder() if is_folder else File()
                self._folder(folder).change(None, name, node)
            case Write(node, offset, data):
                file = self._file(node)
                file.data[offset : offset + len(data)] = data
                file.pending.append(operation)
            case Sync(node):
                found = self.nodes[node]
                if isinstance(found, File):
                    found.durable = bytes(found.data)
                else:
                    found.durable = dict(found.names)
                found.pending.clear()
            case Rename(folder, old, new):
                parent = self._folder(folder)
                parent.change(old, new, parent.names[old])
            case Remove(folder, name):
                self._folder(folder).change(name, None, -1)
            case Mark():
                pass

    def mark(self, text: str) -> None:
        """Note in the log what the program has reached."""
        self.log.append(Mark(text))

    def kill(self) -> None:
        """The process is gone, the machine runs on: open files and locks are let go."""
        self._handles.clear()
        self._locks.clear()
        self._is_dead, self.kill_at = False, None

    def _act(self, operation: Operation) -> None:
        if self._is_dead or (self.kill_at is not None and len(self.log) >= self.kill_at):
            self._is_dead = True
            raise Killed
        self.do(operation)
        self.log.append(operation)

    # What is left after a power cut.

    def survivors(self, draw: random.Random, most: int) -> Iterator["Disk"]:
        """Disks that may be found: all of them when they are few, else some, drawn by chance."""
        folders = {n: f for n, f in self.nodes.items() if isinstance(f, Folder) and f.pending}
        files = {n: f.fates() for n, f in self.nodes.items() if isinstance(f, File) and f.pending}
        sizes = [1 << len(folder.pending) for folder in folders.values()]
        sizes += [len(fates) for fates in files.values()]
        if math.prod(sizes) <= most:
            choices: Iterable[tuple[int, ...]] = itertools.product(*map(range, sizes))
        else:
            # Nothing of it and all of it come always.
            all_of_it = [s - 1 for s in sizes[: len(folders)]] + [1] * len(files)
            drawn = [tuple(map(draw.randrange, sizes)) for _ in range(most - 2)]
            choices = dict.fromkeys([(0,) * len(sizes), tuple(all_of_it), *drawn])
        for choice in choices:
            picks = iter(choice)
            names = {n: folder.fate(next(picks)) for n, folder in folders.items()}
            bodies = {n: fates[next(picks)] for n, fates in files.items()}
            yield self._settled(names, bodies)

    def _settled(self, names: dict[int, dict[str, int]], bodies: dict[int, bytes]) -> "Disk":
        """A disk with these names and bytes, as a machine finds it when it starts."""
        other = Disk()
        for number, node in self.nodes.items():
            if isinstance(node, File):
                body = bodies.get(number, node.durable)
                other.nodes[number] = File(bytearray(body), body)
            else:
                held = names.get(number, node.durable)
                other.nodes[number] = Folder(dict(held), dict(held))
        other._numbers = itertools.count(max(self.nodes) + (1 << 20))
        return other

    def copy(self) -> "Disk":
        """The same files as programs see them, all of it durable."""
        names = {n: dict(f.names) for n, f in self.nodes.items() if isinstance(f, Folder)}
        bodies = {n: bytes(f.data) for n, f in self.nodes.items() if isinstance(f, File)}
        return self._settled(names, bodies)

    def files(self, below: str = "/") -> dict[str, bytes]:
        """All files by their paths, relative to a folder."""
        try:
            start = self.find(below)
        except FileNotFoundError:
            return {}
        return dict(self._walk(self._folder(start), ""))

    def folders(self, below: str = "/") -> set[str]:
        """The folders inside of a folder."""
        try:
            names = self._folder(self.find(below)).names
        except FileNotFoundError:
            return set()
        return {name for name, n in names.items() if isinstance(self.nodes[n], Folder)}

    def put(self, path: str, data: bytes | None) -> None:
        """Replace a file behind every program's back; None removes it."""
        parent, name = self._parent(path)
        if data is None:
            del parent.names[name]
        else:
            number = next(self._numbers)
            self.nodes[number] = File(bytearray(data), data)
            parent.names[name] = number
        parent.durable = dict(parent.names)

    def pour(self, below: str, folder: Path) -> None:
        """Write all files into a real folder."""
        folder.mkdir(parents=True)
        for name in self.folders(below):
            (folder / name).mkdir()
        for path, data in self.files(below).items():
            (folder / path).write_bytes(data)

    def _walk(self, folder: Folder, above: str) -> Iterator[tuple[str, bytes]]:
        for name, number in sorted(folder.names.items()):
            node = self.nodes[number]
            if isinstance(node, File):
                yield above + name, bytes(node.data)
            else:
                yield from self._walk(node, f"{above}{name}/")

    def node_of(self, handle: int) -> File | Folder:
        """What an open file is."""
        return self.nodes[self._handles[handle].node]

    def _file(self, node: int) -> File:
        found = self.nodes[node]
        assert isinstance(found, File)
        return found

    def _folder(self, node: int) -> Folder:
        found = self.nodes[node]
        if isinstance(found, File):
            raise NotADirectoryError(errno.ENOTDIR, "not a folder")
        return found

    def find(self, path: str) -> int:
        """The number of what a path leads to."""
        node = 0
        for part in filter(None, path.split("/")):
            names = self._folder(node).names
            if part not in names:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            node = names[part]
        return node

    def _parent(self, path: str) -> tuple[Folder, str]:
        parent, name = os.path.split(path)
        return self._folder(self.find(parent)), name

    # The calls of a system.

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        self._breathe()
        parent, name = os.path.split(path)
        folder = self.find(parent)
        if name in self._folder(folder).names:
            if flags & os.O_EXCL:
                raise FileExistsError(errno.EEXIST, "is there", path)
        elif flags & os.O_CREAT:
            self._act(Make(folder, name, next(self._numbers), is_folder=False))
        if flags & os.O_DIRECTORY:
            self._folder(self.find(path))
        handle = next(self._numbers)
        self._handles[handle] = _Handle(self.find(path))
        return handle

    def close(self, handle: int) -> None:
        held = self._handles.pop(handle, None)
        if held is not None:  # those of a process that was killed are closed already
            self._locks.get(held.node, {}).pop(handle, None)

    def write(self, handle: int, data: memoryview) -> int:
        held = self._handles[handle]
        self._act(Write(held.node, held.position, bytes(data)))
        held.position += len(data)
        return len(data)

    def read_into(self, handle: int, out: memoryview, offset: int) -> int:
        self._breathe()
        found = self._file(self._handles[handle].node).data[offset : offset + len(out)]
        out[: len(found)] = found
        return len(found)

    def sync(self, handle: int) -> None:
        self._act(Sync(self._handles[handle].node))

    def flags(self, handle: int, flags: int) -> None:
        self._breathe()

    def size(self, handle: int) -> int:
        self._breathe()
        return len(self._file(self._handles[handle].node).data)

    def rename(self, old: str, new: str) -> None:
        self.find(old)
        (parent, before), (_, after) = os.path.split(old), os.path.split(new)
        assert parent == os.path.dirname(new)
        self._act(Rename(self.find(parent), before, after))

    def remove(self, path: str) -> None:
        if isinstance(self.nodes[self.find(path)], Folder):
            raise IsADirectoryError(errno.EISDIR, "is a folder", path)
        parent, name = os.path.split(path)
        self._act(Remove(self.find(parent), name))

    def make_folder(self, path: str) -> None:
        parent, name = os.path.split(path)
        folder = self.find(parent)
        if name in self._folder(folder).names:
            raise FileExistsError(errno.EEXIST, "is there", path)
        self._act(Make(folder, name, next(self._numbers), is_folder=True))

    def names(self, path: str) -> list[str]:
        self._breathe()
        return list(self._folder(self.find(path)).names)

    def status(self, path: str) -> os.stat_result:
        self._breathe()
        number = self.find(path)
        node = self.nodes[number]
        kind = stat.S_IFREG if isinstance(node, File) else stat.S_IFDIR
        size = len(node.data) if isinstance(node, File) else 4096
        return os.stat_result((kind | 0o755, number, 1, 1, 0, 0, size, 0, 0, 0))

    def lock(self, handle: int, kind: int) -> None:
        self._breathe()
        holders = self._locks.setdefault(self._handles[handle].node, {})
        others = [held for other, held in holders.items() if other != handle]
        if others and not (kind & fcntl.LOCK_SH and all(held & fcntl.LOCK_SH for held in others)):
            raise BlockingIOError(errno.EWOULDBLOCK, "locked")
        holders[handle] = kind

    def _breathe(self) -> None:
        if self._is_dead:
            raise Killed
