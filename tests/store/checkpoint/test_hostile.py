"""Manifests with a right digest and a wrong intent: refused in time, and nothing runs."""

import contextlib
import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elbowroom.errors import CorruptData, IncompatibleFormat
from elbowroom.store.checkpoint import Store
from elbowroom.store.checkpoint.manifest import seal

from .damages import make_disk, stretches_of
from .disk import Disk
from .held import Holder, checkpointer_on
from .hostile import REFUSALS, Evil, face, in_time, little_memory, mutate, with_manifest
from .replay import ROOT

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def disk(one_thread: None) -> Disk:
    del one_thread
    return make_disk()


def part(held: dict[str, Any]) -> dict[str, Any]:
    return held["parts"][0]


def setting(*path: Any) -> Evil:
    """Set what the last but one names, inside of the first part, to the last."""

    def change(held: dict[str, Any]) -> None:
        inside: Any = part(held)
        for step in path[:-2]:
            inside = inside[step]
        inside[path[-2]] = path[-1]

    return change


def heading(key: str, value: Any) -> Evil:
    def change(held: dict[str, Any]) -> None:
        held[key] = value

    return change


def telling(tree: Any) -> Evil:
    """A state with something in it that nobody would save."""

    def change(held: dict[str, Any]) -> None:
        part(held)["tree"]["dict"].append(["evil", tree])

    return change


def nested(levels: int, open: str, close: str) -> Any:
    return json.loads(open * levels + "0" + close * levels)


def raw(held: dict[str, Any]) -> list[Any]:
    """A content that is stored as it is."""
    return next(row for row in part(held)["contents"] if len(row) == 4 and row[1] > 4096)


def coded(held: dict[str, Any]) -> list[Any]:
    """A content that builds on another."""
    return next(row for row in part(held)["contents"] if len(row) == 7 and row[6] is not None)


def changing(find: Any, place: int, value: Any) -> Evil:
    def change(held: dict[str, Any]) -> None:
        find(held)[place] = value

    return change


def build_chain(held: dict[str, Any]) -> None:
    rows, entries = part(held)["contents"], part(held)["entries"]
    entry = next(e for e in entries if len(rows[e[4]]) == 7 and rows[e[4]][6] is not None)
    for _ in range(5000):
        rows.append([*rows[entry[4]][:6], entry[4]])
        entry[4] = len(rows) - 1


def repeat_tiny(held: dict[str, Any]) -> None:
    """A terabyte out of one byte, which adds up."""
    rows = part(held)["contents"]
    rows.append([f"{1 << 40:x}-{'0' * 32}", 1 << 40, [[0, 0, 1, 1 << 40]], None])
    part(held)["entries"][0] = ["evil", "uint8", [1 << 40], [1], len(rows) - 1]


def repeat_leaf(held: dict[str, Any]) -> None:
    rows = part(held)["contents"]
    rows.append([f"{1 << 54:x}-{'0' * 32}", 1 << 54, [[0, 0, 1 << 14, 1 << 40]], None])
    part(held)["entries"][0] = ["evil", "uint8", [1 << 54], [1], len(rows) - 1]


def repeat_nothing(held: dict[str, Any]) -> None:
    raw(held)[2].append([0, 0, 0, 1 << 40])


def add_unused(held: dict[str, Any]) -> None:
    rows = part(held)["contents"]
    rows.append([f"{1 << 54:x}-{'0' * 32}", 1 << 54, [[0, 0, 1 << 14, 1 << 40]], None])


def swell_coded(held: dict[str, Any]) -> None:
    """Fifty terabytes out of what is a few kilobytes."""
    row = coded(held)
    row[1], row[6], row[0] = 50 << 40, None, f"{50 << 40:x}-{'0' * 32}"
    number = part(held)["contents"].index(row)
    for entry in part(held)["entries"]:
        if entry[4] == number:
            entry[1:4] = ["uint8", [50 << 40], [1]]


def ask_again(held: dict[str, Any]) -> None:
    part(held)["tree"]["dict"].append(["evil", [{"tensor": 0}] * 200_000])


def have_many(held: dict[str, Any]) -> None:
    entries = part(held)["entries"]
    asked = [{"tensor": len(entries) + number} for number in range(20_000)]
    entries += [[f"evil {number}", "uint8", [3], [2], 0] for number in range(20_000)]
    part(held)["tree"]["dict"].append(["evil", asked])


HEAD = {
    "version": heading("version", 2),
    "version of words": heading("version", ["x"] * 9),
    "format": heading("format", "safetensors"),
    "hash that there is not": heading("hash", "md5"),
    "hash that is a list": heading("hash", []),
    "another hash": heading("hash", "blake3"),
    "leaves of nothing": heading("leaf_bytes", 0),
    "leaves that are tiny": heading("leaf_bytes", 255),
    "leaves that are giant": heading("leaf_bytes", 1 << 31),
    "leaves of another size": heading("leaf_bytes", 1 << 13),
    "step of another": heading("step", 3),
    "negative step": heading("step", -4),
    "identity": heading("id", "../../../../etc/x"),
    "store of another": heading("store", "0" * 32),
    "time": heading("created_s", "now"),
    "no parts": heading("parts", []),
    "parts that are none": heading("parts", {"0": 1}),
    "a part that is none": heading("parts", ["x"]),
    "facts": heading("facts", 1),
    "deep json": lambda held: "[" * 100_000 + "]" * 100_000,
    "deep facts": lambda held: json.dumps(held)[:-1] + ',"facts":' + "[" * 985 + "]" * 985 + "}",
    "a number without end": lambda held: '{"version":' + "9" * 100_000 + "}",
    "no json": lambda held: "{",
    "nothing": lambda held: "",
}
PACKS = {
    f"pack named {name!r:.30}": setting("packs", 0, "name", name)
    for name in (
        *("../../secret.pack", "/etc/passwd", "..", ".", "", "a\0b.pack", "a/b.pack", "A.pack"),
        *("x" * 65 + ".pack", "é.pack", "a.pack\n", "a.pack/..", 7, None, ["a.pack"]),
    )
} | {
    f"pack of {size} bytes": setting("packs", 0, "nbytes", size)
    for size in (-1, 1 << 61, 1 << 50, True, 1.5, "1", None, 10**30)
}
CONTENTS = {
    "extent before": changing(raw, 2, [[0, -8, 9000]]),
    "extent beyond": changing(raw, 2, [[0, 1 << 40, 9000]]),
    "extent of another pack": changing(raw, 2, [[99, 0, 9000]]),
    "extent of pack -1": changing(raw, 2, [[-1, 0, 9000]]),
    "extent of words": changing(raw, 2, ["abc"]),
    "extent too long": changing(raw, 2, [[0, 0, 1, 1, 1]]),
    "no extents": changing(raw, 2, []),
    "extents of none": changing(raw, 2, None),
    "zero times": changing(raw, 2, [[0, 0, 300, 0]]),
    "a terabyte of one byte": repeat_tiny,
    "petabytes of one leaf": repeat_leaf,
    "nothing again and again": repeat_nothing,
    "unused": add_unused,
    "root of words": changing(raw, 0, "zz-zz"),
    "root of another": changing(raw, 0, "1-00"),
    "root that is none": changing(raw, 0, None),
    "negative size": changing(raw, 1, -4),
    "giant size": changing(raw, 1, 1 << 59),
    "leaves of all": changing(raw, 3, [0, 0, 90_000]),
    "leaves elsewhere": changing(raw, 3, [0, 0, 32]),
    "leaves repeated": changing(raw, 3, [0, 0, 256, 1 << 40]),
    "no leaves": changing(raw, 3, None),
    "coding that there is not": changing(coded, 4, "pickle"),
    "coding that is none": changing(coded, 4, 5),
    "items of no size": changing(coded, 5, 0),
    "items of three": changing(coded, 5, 3),
    "items that are giant": changing(coded, 5, 1 << 40),
    "base of itself": lambda held: coded(held).__setitem__(
        6, part(held)["contents"].index(coded(held))
    ),
    "base behind": changing(coded, 6, 10**6),
    "base before": changing(coded, 6, -1),
    "base of words": changing(coded, 6, "0"),
    "bases without end": build_chain,
    "coded terabytes": swell_coded,
    "frames too many": lambda held: coded(held)[2].append([0, 0, 9]),
}
ENTRIES = (
    {
        f"dtype {name!r}": setting("entries", 0, 1, name)
        for name in ("float32.__class__", "__import__", "Tensor", "qint8", "", "torch.float32", 3)
    }
    | {
        f"shape {shape!r:.40}, stride {stride!r:.40}": lambda held, shape=shape, stride=stride: (
            setting("entries", 0, 2, shape)(held),
            setting("entries", 0, 3, stride)(held),
        )[0]
        for shape, stride in (
            *(([1 << 31] * 3, [1, 1, 1]), ([1 << 60] * 64, [0] * 64), ([2] * 65, [1] * 65)),
            *(([-1], [1]), ([16483], [0]), ([16483], [1 << 40]), ([16483], [-1]), ([16483], [])),
            *(([0, 1 << 60, 1 << 60], [1, 1, 1]), ([1 << 60, 1 << 60, 0], [1 << 60, 1, 1])),
            *(([127, 129], [1, 1]), ("x", "y"), (None, None), ([1.5], [1]), ([True], [1])),
        )
    }
    | {
        "content beyond": setting("entries", 0, 4, 10**6),
        "content before": setting("entries", 0, 4, -1),
        "content of another size": setting("entries", 0, 4, 1),
        "entry of words": setting("entries", 0, "abcde"),
        "name that is none": setting("entries", 0, 0, 5),
        "many": have_many,
    }
)
TREES: dict[str, Evil] = {
    f"state with {tree!r:.50}": telling(tree)
    for tree in (
        *({"tensor": 10**6}, {"tensor": -1}, {"tensor": "0"}, {"tensor": [0]}, {"tensor": None}),
        *({"pickle": "x"}, {"__class__": 1}, {}, {"dict": 5}, {"dict": [[1]]}, {"dict": [5]}),
        *({"dict": [[[], 1]]}, {"set": [[1]]}, {"size": ["x"]}, {"deque": []}),
        *({"deque": [], "most": -1}, {"defaultdict": [], "factory": "eval"}, {"float": "zz"}),
        *({"bytes": "zz"}, {"complex": "00"}, {"dtype": "x"}, {"dtype": []}, {"device": "evil"}),
        *({"range": [1, 2, 0]}, {"range": "x"}, {"numpy": "O", "scalar": "00" * 8}),
        *({"numpy": "O", "shape": [1], "at": 0}, {"numpy": "V99999999999", "scalar": ""}),
        *({"numpy": "f4", "scalar": ""}, {"numpy": "(1 2)f4", "scalar": "00"}),
        *({"numpy": "f4,,f4", "scalar": "00"}, {"numpy": [["a", "O"]], "scalar": "00" * 8}),
        *({"numpy": "(99999,99999)f8", "scalar": "00"}, {"numpy": None, "scalar": "00"}),
        *({"numpy": "f4", "shape": [1 << 40], "at": 0}, {"numpy": "f4", "shape": ["x"], "at": 0}),
        *({"numpy": "M8[zz]", "scalar": "00"}, {"numpy": "a", "scalar": "00"}),
        *(
            nested(300, '{"tuple":[', "]}"),
            nested(250, '{"dict":[[1,', "]]}"),
            nested(900, "[", "]"),
        ),
    )
} | {"one tensor again and again": ask_again}
EVIL: dict[str, Evil] = {**HEAD, **PACKS, **CONTENTS, **ENTRIES, **TREES}


@pytest.mark.parametrize("name", EVIL)
def test_a_manifest_with_a_wrong_intent_is_refused(disk: Disk, name: str) -> None:
    with in_time():
        said = face(with_manifest(disk, EVIL[name]))
    assert said


@pytest.mark.parametrize("name", [name for name in PACKS if "named" in name])
def test_names_that_lead_elsewhere_get_no_further_than_the_manifest(disk: Disk, name: str) -> None:
    other = with_manifest(disk, PACKS[name])
    store = Store.open(ROOT, other)
    with pytest.raises(CorruptData, match="is no name of a pack"):
        store.manifest(store.names()[-1])


def test_an_honest_manifest_is_taken(disk: Disk) -> None:
    assert face(with_manifest(disk, lambda held: None)) == ""


def test_nothing_runs(disk: Disk) -> None:
    """No stored word leads to code: nothing is compiled, imported, unpickled or started."""
    told = ("exec", "import", "pickle.find_class", "os.system", "os.exec", "subprocess.Popen")
    seen: list[str] = []
    watching = [True]

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event.startswith(told):
            seen.append(f"{event} {arguments!r:.200}")

    sys.addaudithook(watch)  # for good, so that it has to be told when it is over
    cases = [TREES[name] for name in TREES] + [ENTRIES[name] for name in ENTRIES]
    for _ in range(2):
        seen.clear()  # the first time, modules are imported that are needed
        for case in cases:
            other = with_manifest(disk, case)
            store = Store.open(ROOT, other)
            with contextlib.suppress(*REFUSALS):
                store.state(store.manifest(store.names()[-1]))
    watching.clear()
    assert seen == []


MARKS: dict[str, Any] = {
    "version 2": {"version": 2},
    "another format": {"format": "x"},
    "no identity": {"id": None},
    "an identity that no manifest could have": {"id": "x"},
    "a hash that there is not": {"hash": "md5"},
    "a hash that is a list": {"hash": []},
}


@pytest.mark.parametrize("name", MARKS)
def test_a_mark_with_a_wrong_intent_is_refused(disk: Disk, name: str) -> None:
    other = disk.copy()
    mark = json.loads(disk.files()[f"{ROOT}/store.json"[1:]].partition(b"\n")[0])
    other.put(f"{ROOT}/store.json", seal(json.dumps(mark | MARKS[name])))
    with pytest.raises((CorruptData, IncompatibleFormat)):
        Store.open(ROOT, other)
    with pytest.raises((CorruptData, IncompatibleFormat)):
        checkpointer_on(other, Holder())


def test_links_out_of_the_store_are_not_followed(disk: Disk, tmp_path: Path) -> None:
    """A pack of the right bytes that lies elsewhere is refused: who owns it is not known."""
    disk.pour(str(ROOT), tmp_path / "run")
    store = Store.open(tmp_path / "run")
    for pack in (tmp_path / "run" / "packs").iterdir():
        pack.rename(tmp_path / pack.name)
        pack.symlink_to(tmp_path / pack.name)
    for name in store.names():
        assert all("is no ordinary file" in damage.what for damage in store.verify(name))
        with pytest.raises(CorruptData, match="is no ordinary file"):
            store.state(store.manifest(name))


@pytest.mark.parametrize("claimed", [1 << 40, 1 << 62, 0, 5])
def test_frames_that_claim_another_size(disk: Disk, claimed: int) -> None:
    """A frame whose own header asks for a terabyte is refused before memory is taken for it."""
    stretches = stretches_of(disk)
    frames = 0
    other = disk.copy()
    for file, needs in stretches.items():
        data = bytearray(disk.files(str(ROOT))[file])
        for at in range(len(data) - 20):
            if bytes(data[at : at + 4]) == b"\x28\xb5\x2f\xfd":  # zstd's magic number
                data[at + 4 : at + 13] = bytes([0xE0]) + struct.pack("<Q", claimed)
                frames += 1
        assert needs
        other.put(f"{ROOT}/{file}", bytes(data))
    assert frames > 3
    store = Store.open(ROOT, other)
    with little_memory():
        for name in store.names():
            assert store.verify(name) != []


leaf = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 1, -1, 2**31, 2**40, 2**60, 2**63]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["tensor", "dict", "numpy", "zstd", "float32", "../x.pack", "blob"]),
)
values = st.recursive(leaf, lambda inner: st.lists(inner, max_size=3), max_leaves=5)


@given(st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_changed_ends_in_a_sentence(disk: Disk, data: st.DataObject) -> None:
    def change(held: dict[str, Any]) -> None:
        for _ in range(data.draw(st.integers(1, 3))):
            mutate(held, data.draw(st.integers(0, 2**32)), data.draw(values))

    face(with_manifest(disk, change))
