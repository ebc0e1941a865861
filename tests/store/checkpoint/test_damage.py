"""Damage is found wherever it is, named, and an older checkpoint is taken: never a wrong value."""

import os
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from elbowroom.errors import CorruptData
from elbowroom.store.checkpoint import Checkpointer, CheckpointWarning, Store
from elbowroom.store.checkpoint.local import LocalPlace
from elbowroom.store.checkpoint.reading import PartReader

from .damages import (
    Flipper,
    changes_of,
    check_damage,
    make_disk,
    make_lossy_disk,
    stretches_of,
)
from .disk import Disk
from .held import Holder, checkpointer_on
from .holders import flip, save
from .hostile import in_time
from .replay import ROOT, bits_of, state_at

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def disk(one_thread: None) -> Disk:
    del one_thread
    return make_disk()


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    with in_time():
        yield


def test_a_bit_anywhere_in_a_pack(disk: Disk) -> None:
    flipper, draw = Flipper(disk.copy()), random.Random(0)
    faults = [
        fault
        for file, at in flipper.positions(89)
        for fault in flipper.flip(file, at, draw.randrange(8))
    ]
    assert faults == []
    assert flipper.flips > 2000 and flipper.needed > 1500 > 100 * flipper.idle


def test_a_bit_anywhere_in_what_has_lost_something() -> None:
    disk, draw = make_lossy_disk(), random.Random(3)
    store = Store.open(ROOT, disk)
    contents = store.manifest(store.names()[-1]).parts[0].contents
    assert [content.coding for content in contents].count("blob") == 2
    flipper = Flipper(disk)
    for file, at in flipper.positions(101):
        assert flipper.flip(file, at, draw.randrange(8)) == []
    assert flipper.needed > 300


def test_what_is_damaged_is_told_and_nothing_else(disk: Disk) -> None:
    """`verify` names the tensors that need a byte, in the checkpoints that do, and no others."""
    needs, draw = stretches_of(disk), random.Random(1)
    files = {f: data for f, data in disk.files(str(ROOT)).items() if f.startswith("packs/")}
    exact = 0
    for _ in range(60):
        file = draw.choice(sorted(files))
        at = draw.randrange(len(files[file]))
        data = bytearray(files[file])
        data[at] ^= 1 << draw.randrange(8)
        other = disk.copy()
        other.put(f"{ROOT}/{file}", bytes(data))
        damaged, faults = check_damage(other)
        assert faults == []
        needing = {(s.step, s.where) for s in needs[file] if s.start <= at < s.end}
        assert damaged <= needing
        exact += damaged == needing  # but for bits that change nothing
    assert exact > 55


def test_a_bit_anywhere_in_a_manifest(disk: Disk) -> None:
    store = Store.open(ROOT, (other := disk.copy()))
    for name in store.names():
        path = f"{ROOT}/manifests/{name}.json"
        data = disk.files()[path[1:]]
        for at in [*range(0, len(data), 13), *range(len(data) - 50, len(data))]:
            changed = bytearray(data)
            changed[at] ^= 1 << at % 8
            other.put(path, bytes(changed))
            (damage,) = store.verify(name)
            assert damage.where == "manifest" and f"{name}.json" in str(damage)
        other.put(path, data)
    assert check_damage(other) == (set(), [])


def test_a_bit_anywhere_in_the_mark_costs_nothing(disk: Disk) -> None:
    path = f"{ROOT}/store.json"
    data = disk.files()[path[1:]]
    store = Store.open(ROOT, disk)
    for at in range(len(data)):
        other = disk.copy()
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        other.put(path, bytes(changed))
        found = Store.open(ROOT, other)
        assert (found.id, found.hash, found.names()) == (store.id, store.hash, store.names())
        if at % 16 == 0:
            assert check_damage(other) == (set(), [])
            with checkpointer_on(other, Holder()) as checkpointer:
                assert checkpointer.resumed_from == 4
            assert other.files()[path[1:]] == data  # it was written anew


def test_blocks_ends_and_whole_files(disk: Disk) -> None:
    count = 0
    for label, file, change in changes_of(disk, random.Random(2)):
        other = disk.copy()
        change(other)
        damaged, faults = check_damage(other)
        assert faults == [], f"{file} was {label}"
        if not label.startswith(("zeroed", "deleted")) and file != "store.json":
            assert damaged, f"{file} was {label}"
        count += 1
    assert count > 250


def test_when_nothing_is_left_it_is_said(disk: Disk) -> None:
    other = disk.copy()
    for file, data in disk.files(str(ROOT)).items():
        if file.startswith("packs/"):
            other.put(f"{ROOT}/{file}", data[:-1])
    with pytest.raises(CorruptData, match=r"no checkpoint in .* is whole: step 4: .*; step 2: "):
        checkpointer_on(other, Holder())
    for file in disk.files(str(ROOT)):
        if file.startswith(("manifests/", "store")):
            other.put(f"{ROOT}/{file}", b"x")
    with pytest.raises(CorruptData, match=r"store\.json does not match its own digest"):
        checkpointer_on(other, Holder())
    # All of that was said by runs that have removed nothing.
    assert other.files(str(ROOT)).keys() == disk.files(str(ROOT)).keys()


FOREIGN = (
    "notes.txt",
    "manifests/README",
    "manifests/draft.json",
    "manifests/draft.json.part",
    "manifests/000000000009-zzzzzzzzzzzzzzzz.json",
    "manifests/000000000009-ffffffff00000000.json",
    "manifests/00000000000009-0000000900000000.json",
    "manifests/٠٠٠٠٠٠٠٠٠٠٠٩-0000000900000000.json",
    "packs/precious.bin",
    "packs/precious.pack",
    "packs/.nfs0001",
    "parts/x.json",
)


def test_files_of_others_are_left_alone(disk: Disk, tmp_path: Path) -> None:
    disk.pour(str(ROOT), tmp_path / "run")
    for name in FOREIGN:
        (tmp_path / "run" / name).write_bytes(b"mine")
    (tmp_path / "run" / "packs" / "000000000001-0000000100000000-r0.pack").mkdir()
    (tmp_path / "run" / "packs" / "folder").mkdir()
    (tmp_path / "run" / "packs" / "000000000001-0000000100000001-r0.pack").symlink_to("/etc/passwd")
    for step in (5, 6):
        with Checkpointer(
            tmp_path / "run", held=(holder := Holder()), keep=1, handle_signals=False
        ) as checkpointer:
            assert checkpointer.resumed_from == step - 1
            assert bits_of(holder.state) == bits_of(state_at(step - 1))
            holder.state = state_at(step)
            checkpointer._steps = step
            checkpointer.save(sync=True)
    assert [name.step for name in Store.open(tmp_path / "run").names()] == [6]
    for name in FOREIGN:
        assert (tmp_path / "run" / name).read_bytes() == b"mine"
    left = {path.name for path in (tmp_path / "run" / "packs").iterdir() if not path.is_file()}
    assert left == {"000000000001-0000000100000000-r0.pack", "folder"}


def _make_folder(path: Path, copy: Path) -> None:
    del copy
    path.mkdir()


def _make_link(path: Path, copy: Path) -> None:
    path.symlink_to(copy)


def _make_loop(path: Path, copy: Path) -> None:
    del copy
    path.symlink_to(path)


def _make_pipe(path: Path, copy: Path) -> None:
    del copy
    os.mkfifo(path)


@pytest.mark.parametrize("make", [_make_folder, _make_link, _make_loop, _make_pipe])
def test_what_is_no_file_is_not_opened(
    disk: Disk, tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    """Nothing waits for the other end of a pipe, nothing is read from where a link leads."""
    disk.pour(str(ROOT), tmp_path / "whole")
    for number, path in enumerate(sorted((tmp_path / "whole").rglob("*"))):
        if path.is_dir():
            continue
        run = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", run)
        place = run / path.relative_to(tmp_path / "whole")
        place.unlink()
        make(place, path)
        holder, resumed = Holder(), None
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                with Checkpointer(run, held=holder, handle_signals=False) as checkpointer:
                    resumed = checkpointer.resumed_from
            except CorruptData as error:
                assert place.name in str(error)
                assert place.parent.name == "packs" or place.name in ("writer", "readers")
                continue
        assert resumed is not None and bits_of(holder.state) == bits_of(state_at(resumed))
        assert all(one.category is CheckpointWarning for one in told)
        assert bool(told) == (resumed != 4)
        if place.parent.name in ("packs", "manifests") and "-00000004" in place.name:
            assert resumed == 3


def test_a_content_of_many_names_is_read_once(tmp_path: Path) -> None:
    tensor = torch.randn(5000)
    store = save(tmp_path / "run", {f"x{number}": tensor.clone() for number in range(60)})
    manifest = store.manifest(store.names()[0])
    reads: list[str] = []

    class Counting(LocalPlace):
        def read_into(self, name: str, offset: int, out: memoryview) -> None:
            reads.append(name)
            super().read_into(name, offset, out)

    place = Counting(tmp_path / "run")
    reader = PartReader(place, manifest, manifest.parts[0])
    found = [reader.tensor(number) for number in range(60)]
    assert len(reads) <= 2
    found[0].zero_()  # whoever has one does with it what he likes
    assert all(torch.equal(one, tensor) for one in found[1:])
    assert torch.equal(reader.tensor(7), tensor)
    reads.clear()
    counted = Store(place, {"id": store.id, "hash": store.hash})
    assert counted.verify(store.names()[0]) == [] and len(reads) <= 6


def test_the_file_that_is_damaged_is_named_and_not_its_chain(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weight = torch.randn(40_000)
    states = [{"x": weight + 1e-7 * number * torch.randn(40_000)} for number in range(4)]
    store = save(tmp_path / "run", *states)
    names = store.names()
    packs = sorted((tmp_path / "run" / "packs").iterdir())
    assert len(store.manifest(names[-1]).parts[0].contents) > 4  # it is a chain
    flip(packs[0], 3000)
    for name in names:
        (damage,) = store.verify(name)
        assert packs[0].name in damage.what
        assert not any(pack.name in damage.what for pack in packs[1:])
