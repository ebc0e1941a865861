"""The archive: several named blobs in one file (docs/archive.md)."""

import struct
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from elbowroom.codec.blob import ARCHIVE_MAGIC, Blob
from elbowroom.codec.blob import MAGIC as BLOB_MAGIC
from elbowroom.codec.checksum import checksum
from elbowroom.errors import CorruptData, IncompatibleFormat, InvalidArgument

MAGIC = ARCHIVE_MAGIC
VERSION = 1
ALIGNMENT = 64

_HEAD = struct.Struct("<4sHHII")
_ENTRY = struct.Struct("<QQH")
_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Where one blob lies in the file."""

    offset: int
    length: int


class ArchiveWriter:
    """Writes blobs one after the other; the index goes in front of them at the end.

    All names are given first, because they decide how much room the index takes.
    """

    def __init__(self, file: BinaryIO, names: Sequence[str]) -> None:
        self._file = file
        self._names = [_encode_name(name) for name in names]
        self._lengths: list[int] = []
        if len(set(self._names)) < len(self._names):
            twice = next(name for name in names if list(names).count(name) > 1)
            raise InvalidArgument(
                f"the names of an archive must differ, but {twice!r} occurs twice: rename one"
            )
        index_bytes = sum(_ENTRY.size + len(name) for name in self._names)
        if index_bytes >= 2**32:
            raise InvalidArgument(
                f"the index of an archive must be shorter than 4 GiB, got {index_bytes} bytes: "
                "write several archives"
            )
        self._end = _HEAD.size + index_bytes + _CHECKSUM.size
        file.seek(0)
        file.write(bytes(self._end))

    def add(self, blob: Blob) -> None:
        """Append the blob of the next name."""
        if len(self._lengths) == len(self._names):
            raise InvalidArgument(
                "every name of the archive has its blob: name all blobs when making the archive"
            )
        start = _align(self._end)
        self._file.write(bytes(start - self._end))
        self._lengths.append(blob.write(self._file))
        self._end = start + self._lengths[-1]

    def finish(self) -> None:
        """Write the index; without it the file is no archive."""
        if len(self._lengths) < len(self._names):
            raise InvalidArgument(
                f"blob {len(self._lengths) + 1} of {len(self._names)} is missing: add it before "
                "the archive is finished"
            )
        index = bytearray()
        end = _HEAD.size + sum(_ENTRY.size + len(name) for name in self._names) + _CHECKSUM.size
        for name, length in zip(self._names, self._lengths, strict=True):
            offset = _align(end)
            index += _ENTRY.pack(offset, length, len(name)) + name
            end = offset + length
        head = _HEAD.pack(MAGIC, VERSION, 0, len(self._names), len(index)) + bytes(index)
        self._file.seek(0)
        self._file.write(head + _CHECKSUM.pack(checksum(head)))
        self._file.seek(self._end)


class Archive:
    """A readable archive: its index, and each blob when it is asked for."""

    def __init__(self, file: BinaryIO) -> None:
        if not hasattr(file, "seek"):
            raise InvalidArgument(
                f"an open binary file was expected, got {type(file).__name__}: pass "
                "open(name, 'rb'), or io.BytesIO(data)"
            )
        self._file = file
        self.entries: dict[str, Entry] = _read_index(file)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def read(self, name: str) -> Blob:
        """Read one blob; its own checks apply."""
        if name not in self.entries:
            held = ", ".join(repr(other) for other in list(self.entries)[:8]) or "none"
            raise InvalidArgument(f"the archive holds no blob named {name!r}: its names are {held}")
        entry = self.entries[name]
        stored = _read_at(self._file, entry.offset, entry.length, f"blob {name!r}")
        try:
            return Blob.frombytes(stored)
        except (CorruptData, IncompatibleFormat) as error:
            raise type(error)(f"blob {name!r} of the archive: {error}") from None


def _read_index(file: BinaryIO) -> dict[str, Entry]:
    size = file.seek(0, 2)
    file.seek(0)
    head = file.read(_HEAD.size)
    # What is no archive at all is told apart from an archive that was cut short.
    if head[:4] == BLOB_MAGIC:
        raise IncompatibleFormat(
            "a single blob, not an archive of named ones: read it with Blob.frombytes(file.read())"
        )
    if head[:4] != MAGIC:
        raise IncompatibleFormat(
            f"an archive begins with magic {MAGIC!r}, this file with {head[:4]!r}: "
            "pass a file made by 'elbowroom encode' or ArchiveWriter"
        )
    if len(head) < _HEAD.size:
        raise CorruptData(f"the archive ends after {len(head)} bytes, within its header")
    _, version, reserved, count, index_bytes = _HEAD.unpack(head)
    if version != VERSION:
        raise IncompatibleFormat(
            f"this release reads archives of version {VERSION}, got version {version}: "
            "use the release that wrote it, or a newer one"
        )
    if reserved:
        raise CorruptData(f"the archive's field 'reserved' must be 0, got {reserved}")
    start = _HEAD.size + index_bytes + _CHECKSUM.size
    if start > size:
        raise CorruptData(
            f"the archive's field 'index bytes' is {index_bytes}, but the file has {size} bytes"
        )
    if count * _ENTRY.size > index_bytes:
        raise CorruptData(
            f"the archive's field 'count' is {count}, too many for an index of {index_bytes} bytes"
        )
    index = file.read(index_bytes)
    stored = file.read(_CHECKSUM.size)
    if len(index) + len(stored) < index_bytes + _CHECKSUM.size:
        raise CorruptData("the archive ends within its index")
    found = checksum(head + index)
    if found != _CHECKSUM.unpack(stored)[0]:
        raise CorruptData("the archive's field 'index checksum' does not match its index")
    entries: dict[str, Entry] = {}
    at, end = 0, start
    for number in range(count):
        if at + _ENTRY.size > index_bytes:
            raise CorruptData(f"entry {number} of the archive lies outside its index")
        offset, length, name_bytes = _ENTRY.unpack_from(index, at)
        at += _ENTRY.size
        if at + name_bytes > index_bytes:
            raise CorruptData(f"field 'name bytes' of archive entry {number} leaves the index")
        name = _decode_name(index[at : at + name_bytes], number)
        at += name_bytes
        if name in entries:
            raise CorruptData(f"field 'name' of archive entry {number} repeats {name!r}")
        if offset != _align(end):
            raise CorruptData(
                f"field 'offset' of archive entry {number} must be {_align(end)}, got {offset}"
            )
        if length > size - offset:
            raise CorruptData(
                f"field 'length' of archive entry {number} is {length}, but the file ends at {size}"
            )
        if any(_read_at(file, end, offset - end, "padding")):
            raise CorruptData(f"the padding before archive entry {number} is not zero")
        entries[name] = Entry(offset=offset, length=length)
        end = offset + length
    if at != index_bytes:
        raise CorruptData(
            f"the archive's field 'index bytes' is {index_bytes}, but its entries take {at}"
        )
    if end != size:
        raise CorruptData(f"the archive must end at {end}, the file has {size} bytes")
    return entries


def _read_at(file: BinaryIO, offset: int, length: int, what: str) -> bytes:
    if not length:
        return b""
    file.seek(offset)
    found = file.read(length)
    if len(found) < length:
        raise CorruptData(f"the archive ends within its {what}")
    return found


def _align(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


def _is_label(name: str) -> bool:
    # Names are shown on terminals, where a control character is a command.
    return not any(unicodedata.category(character) == "Cc" for character in name)


def _encode_name(name: str) -> bytes:
    try:
        encoded = name.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidArgument(f"the name {name!r} has no UTF-8 form: rename the array") from None
    if len(encoded) >= 2**16 or not _is_label(name):
        raise InvalidArgument(
            f"a name in an archive has at most 65535 bytes and no control characters, "
            f"got {name[:80]!r}: rename the array"
        )
    return encoded


def _decode_name(stored: bytes, number: int) -> str:
    try:
        name = stored.decode("utf-8")
    except UnicodeDecodeError:
        raise CorruptData(f"field 'name' of archive entry {number} is not UTF-8") from None
    if not _is_label(name):
        raise CorruptData(f"field 'name' of archive entry {number} has control characters")
    return name
