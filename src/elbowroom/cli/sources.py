"""The files that `encode` reads: .npy, .npz, .safetensors and raw binary, one array at a time."""

import errno
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from elbowroom.cli.arrays import NAMES, Array, parse_dtype, parse_shape
from elbowroom.cli.wording import counted
from elbowroom.codec.layout import NUMPY_TYPES
from elbowroom.errors import CorruptData, InvalidArgument

RAW_ENDINGS = (".bin", ".dat", ".raw")
ENDINGS = (".npy", ".npz", ".safetensors", *RAW_ENDINGS)

_MOST_LENGTHS = 64  # of a shape, for numpy

_HEADER_READERS: dict[tuple[int, int], Callable[[Any], tuple[tuple[int, ...], bool, np.dtype]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """An open file: the bytes of every array by name, and a way to read each."""

    named: bool  # False: a single array, whose name here is empty
    sizes: dict[str, int]
    read: Callable[[str], Array]


@contextmanager
def open_source(path: Path, dtype: str | None = None, shape: str | None = None) -> Iterator[Source]:
    """Open a file by its ending; dtype and shape describe raw binary and nothing else."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        hint = ": it is encoded already, see 'elbowroom decode'" if ending == ".er" else ""
        raise InvalidArgument(
            f"{path} must end in one of {', '.join(ENDINGS)} to be read as arrays{hint}"
        )
    if ending not in RAW_ENDINGS and (dtype or shape):
        raise InvalidArgument(
            f"--dtype and --shape are for raw files, {path} has its own: leave them out"
        )
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if ending == ".safetensors":
        with _open_safetensors(path) as source:
            yield source
        return
    with path.open("rb") as file:
        if ending == ".npz":
            with _open_zip(file, path) as archive:
                yield _npz_source(archive, path)
        elif ending == ".npy":
            size = os.fstat(file.fileno()).st_size
            yield Source(
                named=False,
                sizes={"": size},
                read=lambda _: read_npy(file, size, str(path)),
            )
        else:
            yield _raw_source(file, path, dtype, shape)


def read_npy(stream: IO[bytes], size: int, what: str) -> np.ndarray:
    """Read the one array of a .npy stream of `size` bytes.

    numpy's own reader allocates whatever a header claims; here the claim has to fit the stream.
    """
    stated, column_major, dtype = _read_npy_header(stream, what)
    native = dtype.newbyteorder("=")
    if dtype.hasobject or native not in NUMPY_TYPES.values():
        known = ", ".join(names[0] for names in NAMES.values())
        raise InvalidArgument(
            f"{what} holds items of type {dtype}, expected one of {known}: convert it first"
        )
    items = math.prod(stated)
    rest = size - stream.tell()
    if items * dtype.itemsize != rest:
        raise CorruptData(
            f"{what} states shape {stated} of {dtype}, {items * dtype.itemsize} bytes, "
            f"but holds {rest}"
        )
    flat = np.empty(items, dtype)
    _fill(stream, flat, what)
    flat = flat.astype(native, copy=False)
    return flat.reshape(stated[::-1]).T if column_major else flat.reshape(stated)


def _read_npy_header(stream: IO[bytes], what: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    try:
        version = np.lib.format.read_magic(stream)
        if version not in _HEADER_READERS:
            raise InvalidArgument(
                f"{what} is a .npy file of version {version[0]}.{version[1]}, expected 1.0 or 2.0: "
                "save it as an array of numbers, only structured arrays need another"
            )
        stated, column_major, dtype = _HEADER_READERS[version](stream)
    except InvalidArgument:
        raise
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        first = str(error).splitlines()[:1] or [type(error).__name__]
        raise CorruptData(f"{what} is not a .npy file, or a damaged one ({first[0]})") from None
    # numpy multiplies lengths also where one of them is zero.
    if (
        len(stated) > _MOST_LENGTHS
        or any(type(length) is not int or length < 0 for length in stated)
        or math.prod(max(length, 1) for length in stated) * max(dtype.itemsize, 1) >= 2**63
    ):
        raise CorruptData(f"{what} states the impossible shape {str(stated)[:80]}")
    return stated, column_major, dtype


def _fill(stream: IO[bytes], flat: np.ndarray, what: str) -> None:
    room = flat.view(np.uint8).data
    done = 0
    while done < len(room):
        # In pieces, so that a stream that ends early has not been asked for all at once.
        piece = stream.read(min(2**24, len(room) - done))
        if not piece:
            raise CorruptData(f"{what} ends after {done} of {len(room)} bytes of values")
        room[done : done + len(piece)] = piece
        done += len(piece)
    if stream.read(1):  # the end of a zip member is where its checksum is compared
        raise CorruptData(f"{what} goes on after its array")


@contextmanager
def _open_zip(file: IO[bytes], path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise CorruptData(f"{path} is not an .npz file, or a damaged one ({error})") from None
    with archive:
        yield archive


def _npz_source(archive: zipfile.ZipFile, path: Path) -> Source:
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name == member.filename:
            raise InvalidArgument(f"member {name!r} of {path} is no .npy array: remove it first")
        if name in members:
            raise CorruptData(f"{path} holds two arrays named {name!r}")
        members[name] = member

    def read(name: str) -> np.ndarray:
        what = f"array {name!r} of {path}"
        try:
            with archive.open(members[name]) as stream:
                return read_npy(stream, members[name].file_size, what)
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError) as error:
            raise CorruptData(f"{what} cannot be unpacked ({error})") from None

    sizes = {name: member.file_size for name, member in members.items()}
    return Source(named=True, sizes=sizes, read=read)


@contextmanager
def _open_safetensors(path: Path) -> Iterator[Source]:
    from safetensors import SafetensorError, safe_open

    try:
        opened = safe_open(path, framework="pt")
    except SafetensorError as error:
        raise CorruptData(
            f"{path} is not a .safetensors file, or a damaged one ({error})"
        ) from None
    with opened as file:
        stored = {names[1]: dtype for dtype, names in NAMES.items()}
        sizes: dict[str, int] = {}
        for name in sorted(file.keys()):
            part = file.get_slice(name)
            dtype = stored.get(part.get_dtype())
            if dtype is None:
                raise InvalidArgument(
                    f"tensor {name!r} of {path} holds items of type {part.get_dtype()}, "
                    f"expected one of {', '.join(stored)}: convert it first"
                )
            sizes[name] = math.prod(part.get_shape()) * dtype.item_bytes
        yield Source(named=True, sizes=sizes, read=file.get_tensor)


def _raw_source(file: IO[bytes], path: Path, dtype: str | None, shape: str | None) -> Source:
    if dtype is None:
        raise InvalidArgument(
            f"{path} is raw binary: say what it holds with --dtype and --shape, "
            "for example --dtype float32 --shape 64,3,32,32"
        )
    kind = parse_dtype(dtype)
    size = os.fstat(file.fileno()).st_size
    if size % kind.item_bytes:
        raise InvalidArgument(
            f"{path} has {counted(size, 'byte')}, no whole number of {NAMES[kind][0]} items: "
            "check --dtype"
        )
    items = size // kind.item_bytes
    stated = (items,) if shape is None else parse_shape(shape)
    if math.prod(stated) != items:
        raise InvalidArgument(
            f"{path} holds {counted(items, 'item')} of {NAMES[kind][0]}, "
            f"but shape {stated} has {math.prod(stated):,}: check --shape and --dtype"
        )

    def read(_: str) -> Array:
        known = NUMPY_TYPES.get(kind)
        flat = np.empty(items, known if known is not None else np.int16)
        _fill(file, flat, str(path))
        if known is None:
            return torch.from_numpy(flat).view(torch.bfloat16).reshape(stated)
        return flat.reshape(stated)

    return Source(named=False, sizes={"": size}, read=read)
