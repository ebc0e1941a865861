"""The archive: what goes in comes out, and no bytes make the reader do anything but refuse."""

import io
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import elbowroom as er
from elbowroom.codec import archive
from elbowroom.codec.archive import Archive, ArchiveWriter
from elbowroom.codec.checksum import checksum

BLOBS = {
    "weights": er.encode(np.linspace(-1, 1, 300, dtype=np.float32), er.Bound.absolute(1e-2)),
    "ids": er.encode(np.arange(40), er.Bound.lossless()),
    "": er.encode(np.zeros((0, 2)), er.Bound.lossless()),
    "../größe/名": er.encode(np.array(2.5), er.Bound.lossless()),
}


def write(blobs: dict[str, er.Blob]) -> bytes:
    file = io.BytesIO()
    writer = ArchiveWriter(file, list(blobs))
    for blob in blobs.values():
        writer.add(blob)
    writer.finish()
    return file.getvalue()


WHOLE = write(BLOBS)
INDEX_END = 16 + sum(18 + len(name.encode()) for name in BLOBS)


def test_blobs_come_back_by_name() -> None:
    held = Archive(io.BytesIO(WHOLE))
    assert list(held) == list(BLOBS) and len(held) == len(BLOBS)
    for name, blob in BLOBS.items():
        assert held.read(name) == blob
    with pytest.raises(
        er.InvalidArgument, match="no blob named 'nobody': its names are 'weights', 'ids'"
    ):
        held.read("nobody")


def test_the_file_is_as_documented() -> None:
    magic, version, reserved, count, index_bytes = struct.unpack_from("<4sHHII", WHOLE)
    assert (magic, version, reserved, count) == (b"ELBA", 1, 0, len(BLOBS))
    assert 16 + index_bytes == INDEX_END
    assert struct.unpack_from("<I", WHOLE, INDEX_END)[0] == checksum(WHOLE[:INDEX_END])
    entries = Archive(io.BytesIO(WHOLE)).entries
    for name, entry in entries.items():
        assert entry.offset % 64 == 0
        stored = WHOLE[entry.offset : entry.offset + entry.length]
        assert stored == BLOBS[name].tobytes()
    assert len(WHOLE) == max(entry.offset + entry.length for entry in entries.values())


def test_an_archive_may_be_empty() -> None:
    assert len(write({})) == 20
    assert len(Archive(io.BytesIO(write({})))) == 0


def test_what_was_written_before_does_not_shine_through() -> None:
    file = io.BytesIO(b"\xff" * 4096)
    writer = ArchiveWriter(file, ["a"])
    writer.add(BLOBS["ids"])
    writer.finish()
    file.truncate()
    assert Archive(file).read("a") == BLOBS["ids"]


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["a", "b", "a"], "'a' occurs twice"),
        (["x\ny"], "no control characters"),
        (["x\x9by"], "no control characters"),
        (["x" * 70000], "at most 65535 bytes"),
        (["\ud800"], "no UTF-8 form"),
    ],
)
def test_names_that_cannot_be_stored(names: list[str], sentence: str) -> None:
    with pytest.raises(er.InvalidArgument, match=sentence):
        ArchiveWriter(io.BytesIO(), names)


def test_the_writer_counts() -> None:
    writer = ArchiveWriter(io.BytesIO(), ["a"])
    with pytest.raises(er.InvalidArgument, match="blob 1 of 1 is missing: add it"):
        writer.finish()
    writer.add(BLOBS["ids"])
    with pytest.raises(er.InvalidArgument, match="every name of the archive has its blob"):
        writer.add(BLOBS["ids"])


def test_every_truncation_is_noticed() -> None:
    for length in range(len(WHOLE)):
        with pytest.raises((er.CorruptData, er.IncompatibleFormat)):
            Archive(io.BytesIO(WHOLE[:length]))
    with pytest.raises(er.CorruptData, match="must end at"):
        Archive(io.BytesIO(WHOLE + b"\0"))


def test_every_changed_byte_is_noticed() -> None:
    for position in range(len(WHOLE)):
        damaged = bytearray(WHOLE)
        damaged[position] ^= 0x10
        with pytest.raises((er.CorruptData, er.IncompatibleFormat)):
            held = Archive(io.BytesIO(damaged))
            for name in held:
                er.decode(held.read(name))


def forge(*changes: tuple[int, bytes]) -> io.BytesIO:
    """Change bytes of the index and make its checksum fit."""
    content = bytearray(WHOLE)
    for position, new in changes:
        content[position : position + len(new)] = new
    content[INDEX_END : INDEX_END + 4] = struct.pack("<I", checksum(bytes(content[:INDEX_END])))
    return io.BytesIO(content)


SECOND = 16 + 18 + len("weights")
FORGERIES: dict[str, tuple[list[tuple[int, bytes]], str]] = {
    "reserved": ([(6, b"\1")], "'reserved'"),
    "few": ([(8, struct.pack("<I", 3))], "'index bytes'"),
    "many": ([(8, struct.pack("<I", 5))], "entry 4"),
    "countless": ([(8, struct.pack("<I", 2**32 - 1))], "'count'"),
    "offset": ([(16, struct.pack("<Q", 0))], "'offset' of archive entry 0"),
    "overlap": ([(SECOND, WHOLE[16:24])], "'offset' of archive entry 1"),
    "far": ([(SECOND, struct.pack("<Q", 2**64 - 64))], "'offset' of archive entry 1"),
    "length": ([(24, struct.pack("<Q", 2**63))], "'length' of archive entry 0"),
    "name length": ([(32, struct.pack("<H", 60000))], "'name bytes' of archive entry 0"),
    "not UTF-8": ([(34, b"\xff")], "not UTF-8"),
    "escape": ([(34, b"\x1b")], "control characters"),
}


@pytest.mark.parametrize(("changes", "sentence"), FORGERIES.values(), ids=FORGERIES.keys())
def test_a_forgery_is_named(changes: list[tuple[int, bytes]], sentence: str) -> None:
    with pytest.raises(er.CorruptData, match=sentence):
        Archive(forge(*changes))


def test_a_repeated_name_is_refused() -> None:
    content = bytearray(write({"a": BLOBS["ids"], "b": BLOBS["ids"]}))
    end = 16 + 2 * 19
    content[16 + 19 + 18 : end] = b"a"
    content[end : end + 4] = struct.pack("<I", checksum(bytes(content[:end])))
    with pytest.raises(er.CorruptData, match="repeats 'a'"):
        Archive(io.BytesIO(content))


def test_padding_has_to_be_zero() -> None:
    content = bytearray(WHOLE)
    content[INDEX_END + 4] = 1
    with pytest.raises(er.CorruptData, match="padding before archive entry 0"):
        Archive(io.BytesIO(content))


def test_later_versions_and_strangers() -> None:
    with pytest.raises(er.IncompatibleFormat, match="got version 2"):
        Archive(forge((4, b"\2")))
    with pytest.raises(er.IncompatibleFormat, match="magic"):
        Archive(io.BytesIO(b"ELBX" + WHOLE[4:]))


def test_a_damaged_blob_is_named() -> None:
    content = bytearray(WHOLE)
    content[Archive(io.BytesIO(WHOLE)).entries["ids"].offset + 20] ^= 1
    with pytest.raises(er.CorruptData, match="blob 'ids' of the archive"):
        Archive(io.BytesIO(content)).read("ids")


@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_are_only_ever_refused(tail: bytes, signed: bool) -> None:
    head = archive.MAGIC + b"\1\0\0\0" + tail
    if signed and len(head) > 24:
        body = bytearray(head)
        body[12:16] = struct.pack("<I", len(head) - 20)
        head = bytes(body[:-4]) + struct.pack("<I", checksum(bytes(body[:-4])))
    try:
        Archive(io.BytesIO(head))
    except (er.CorruptData, er.IncompatibleFormat):
        return
    assert head[8:12] == bytes(4)


def test_an_archive_is_not_a_blob() -> None:
    for read in (er.Blob.frombytes, er.decode):
        for data in (WHOLE, WHOLE[:4]):
            with pytest.raises(er.IncompatibleFormat, match=r"archive\.Archive\(file\) and read a"):
                read(data)


def test_a_blob_is_not_an_archive() -> None:
    with pytest.raises(er.IncompatibleFormat, match=r"a single blob, .* Blob\.frombytes\(file\.r"):
        Archive(io.BytesIO(BLOBS["ids"].tobytes()))


def test_an_archive_is_read_from_an_open_file() -> None:
    for wrong in ("x.er", WHOLE):
        with pytest.raises(
            er.InvalidArgument, match=r"got (str|bytes): pass open\(name, 'rb'\), or"
        ):
            Archive(wrong)  # type: ignore[arg-type]
