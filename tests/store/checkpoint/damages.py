"""A store with several checkpoints, all that can happen to its files, and what must follow."""

import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from unittest import mock

from torch import Tensor

from elbowroom.errors import CorruptData, IncompatibleFormat
from elbowroom.store.checkpoint import CheckpointWarning, Store, checkpointer
from elbowroom.store.checkpoint.journal import Journal
from elbowroom.store.checkpoint.manifest import Extent, Part
from elbowroom.store.checkpoint.retention import Keep

from .disk import Disk, File
from .held import Holder, checkpointer_on
from .replay import ROOT, bits_of, state_at
from .runs import start

BLOCK_BYTES = 4096
Change = Callable[[Disk], None]


def make_disk(saves: int = 4) -> Disk:
    """With the last three of so many checkpoints."""
    disk, holder = Disk(), Holder()
    with checkpointer_on(disk, holder, keep=3) as saving:
        saving._journal._keep = Keep(last=None)  # chains also where whole states took less room
        for step in range(1, saves + 1):
            holder.state = state_at(step)
            saving._steps = step
            saving.save(sync=True)
    return disk.copy()


def make_lossy_disk() -> Disk:
    """With checkpoints of a training whose optimizer's moments have lost something."""
    disk, run = Disk(), start(width=512)
    with (
        mock.patch.object(checkpointer, "Journal", partial(Journal, system=disk)),
        run.checkpointer(ROOT, every=1, keep=1, tolerance=1e-2) as saving,
    ):
        for _ in range(2):
            run.step()
            saving.step()
            saving.wait()
    return disk.copy()


@dataclass(frozen=True)
class Stretch:
    """Bytes of a pack that a tensor of a checkpoint needs."""

    start: int
    end: int
    step: int
    number: int
    where: str


def stretches_of(disk: Disk) -> dict[str, list[Stretch]]:
    """By pack, what its bytes are needed for."""
    store = Store.open(ROOT, disk)
    found: dict[str, list[Stretch]] = {}
    for name in store.names():
        (part,) = store.manifest(name).parts
        for number, entry in enumerate(part.entries):
            for extent in _needed(part, entry.content):
                pack = f"packs/{part.packs[extent.pack].name}"
                end = extent.offset + extent.nbytes
                stretch = Stretch(extent.offset, end, name.step, number, entry.where)
                found.setdefault(pack, []).append(stretch)
    return found


def _needed(part: Part, content: int | None) -> Iterator[Extent]:
    if content is not None and (leaves := part.contents[content].leaves) is not None:
        yield leaves
    while content is not None:
        yield from part.contents[content].extents
        content = part.contents[content].base


def check_damage(disk: Disk) -> tuple[set[tuple[int, str]], list[str]]:
    """Restore by a Checkpointer and verify; return what is damaged, and what is wrong with that.

    What is whole by `verify` has the bits that were saved. The newest of those is what a
    Checkpointer goes back to, with a warning if it is not the newest; if none is, it says so.
    """
    faults: list[str] = []
    damaged: set[tuple[int, str]] = set()
    try:
        store = Store.open(ROOT, disk)
    except (CorruptData, IncompatibleFormat) as error:
        return {(-1, "store")}, [f"the store cannot be opened: {error}"]
    whole: list[int] = []
    for name in store.names():
        found = store.verify(name)
        damaged |= {(name.step, one.where) for one in found}
        if not found:
            whole.append(name.step)
            if bits_of(store.state(store.manifest(name))["held"]) != bits_of(state_at(name.step)):
                faults.append(f"step {name.step} has other bits than were saved")
    names = store.names()
    expected = whole[-1] if whole else None
    holder = Holder(99)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            with checkpointer_on(disk.copy(), holder) as resuming:
                resumed = resuming.resumed_from
        except CorruptData as error:
            if whole or not names:
                faults.append(f"refused, and {whole} are whole: {error}")
            return damaged, faults
    if resumed != expected:
        faults.append(f"went back to {resumed} in place of {expected}")
    if resumed is not None and bits_of(holder.state) != bits_of(state_at(resumed)):
        faults.append(f"step {resumed} came back with other bits")
    is_told = any(issubclass(one.category, CheckpointWarning) for one in told)
    if is_told != (bool(names) and resumed != names[-1].step):
        faults.append(f"told {[str(one.message) for one in told]}, went back to {resumed}")
    return damaged, faults


class Flipper:
    """Flips bits of packs one by one, and asks for the tensors that need them."""

    def __init__(self, disk: Disk) -> None:
        self._disk, self._store = disk, Store.open(ROOT, disk)
        self._stretches = stretches_of(disk)
        self._names = {name.step: name for name in self._store.names()}
        self._saved: dict[tuple[int, int], str] = {}
        self.flips = self.needed = self.idle = 0

    def positions(self, stride: int, start: int = 0) -> Iterator[tuple[str, int]]:
        """Every so many bytes of all packs."""
        for file, data in self._disk.files(str(ROOT)).items():
            if file.startswith("packs/"):
                yield from ((file, at) for at in range(start, len(data), stride))

    def flip(self, file: str, at: int, bit: int) -> list[str]:
        """Every tensor that needs that byte is refused, and the pack is named.

        Some bits change nothing, as the last ones of a factor by which coded values are multiplied.
        """
        node = self._disk.nodes[self._disk.find(f"{ROOT}/{file}")]
        assert isinstance(node, File)
        faults: list[str] = []
        self.flips += 1
        needing = [s for s in self._stretches.get(file, []) if s.start <= at < s.end]
        self.needed += bool(needing)
        saved = [self._bits(stretch) for stretch in needing]
        node.data[at] ^= 1 << bit
        try:
            for stretch, bits in zip(needing, saved, strict=True):
                try:
                    found = bits_of(self._tensor(stretch))
                except CorruptData as error:
                    if file not in str(error):
                        faults.append(f"{file} byte {at}: not named in {error}")
                    continue
                self.idle += 1
                if found != bits:
                    faults.append(f"{file} byte {at}: {stretch.where} has other values")
        finally:
            node.data[at] ^= 1 << bit
        return faults

    def _tensor(self, stretch: Stretch) -> Tensor:
        manifest = self._store.manifest(self._names[stretch.step])
        return self._store.reader(manifest, manifest.parts[0]).tensor(stretch.number)

    def _bits(self, stretch: Stretch) -> str:
        key = stretch.step, stretch.number
        if key not in self._saved:
            self._saved[key] = bits_of(self._tensor(stretch))
        return self._saved[key]


def changes_of(disk: Disk, draw: random.Random) -> Iterator[tuple[str, str, Change]]:
    """What may happen to files as a whole: what it is called, which file, and how."""
    files = disk.files(str(ROOT))
    for file, data in files.items():
        if file in ("writer", "readers"):
            continue
        path = f"{ROOT}/{file}"
        yield "deleted", file, _putting(path, None)
        yield "emptied", file, _putting(path, b"")
        yield "appended to", file, _putting(path, data + b"\0")
        yield "replaced by noise", file, _putting(path, draw.randbytes(len(data)))
        for at in range(0, len(data), BLOCK_BYTES):
            end = min(at + BLOCK_BYTES, len(data))
            zeroed = data[:at] + bytes(end - at) + data[end:]
            if zeroed != data:
                yield f"zeroed from {at}", file, _putting(path, zeroed)
            for cut in {at, at + 1, end - 1} - {len(data)}:
                yield f"cut at {cut}", file, _putting(path, data[:cut])
    for kind in ("packs/", "manifests/"):
        paths = [f"{ROOT}/{file}" for file in files if file.startswith(kind)]
        for one, other in zip(paths, paths[1:] + paths[:1], strict=True):
            yield f"replaced by {other[-30:]}", one[len(str(ROOT)) + 1 :], _copying(other, one)
            yield f"swapped with {other[-30:]}", one[len(str(ROOT)) + 1 :], _swapping(one, other)


def _putting(path: str, data: bytes | None) -> Change:
    return lambda disk: disk.put(path, data)


def _copying(source: str, target: str) -> Change:
    return lambda disk: disk.put(target, disk.files()[source[1:]])


def _swapping(one: str, other: str) -> Change:
    def swap(disk: Disk) -> None:
        files = disk.files()
        disk.put(one, files[other[1:]])
        disk.put(other, files[one[1:]])

    return swap
