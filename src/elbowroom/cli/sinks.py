"""The files that `decode` writes: .npy, .npz, .safetensors and raw binary, one array at a time."""

import json
import os
import secrets
import stat
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from elbowroom.cli.arrays import NAMES, Array, Spec, bytes_of, to_numpy
from elbowroom.cli.sources import ENDINGS, RAW_ENDINGS
from elbowroom.cli.wording import listed
from elbowroom.codec.recipe import Dtype
from elbowroom.errors import InvalidArgument

ENCODED_ENDING = ".er"


@dataclass(frozen=True, kw_only=True)
class Sink:
    """An open file: the arrays in the order it wants them, and a way to write the next."""

    specs: tuple[Spec, ...]
    write: Callable[[Spec, Array], None]


def refuse_existing(path: Path, force: bool, source: Path | None = None) -> None:
    """Refuse to replace a file without --force, and the source or no plain file at all."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise InvalidArgument(f"the folder of {path} is not there: make it first") from None
        return
    if source is not None and source.exists() and path.samefile(source):
        raise InvalidArgument(f"{path} is the file that is read: choose another name")
    if not stat.S_ISREG(mode):
        raise InvalidArgument(f"{path} is there and no plain file: choose another name")
    if not force:
        raise InvalidArgument(f"{path} is there already: use --force to replace it")


@contextmanager
def write_aside(path: Path, force: bool) -> Iterator[BinaryIO]:
    """Write beside the file and rename at the end: it is there whole or not at all."""
    refuse_existing(path, force)
    # A name that nobody knows before, and that must not be there: a link is not followed.
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with aside.open("x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        refuse_existing(path, force)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def check_ending(path: Path, *, encoded: bool = False) -> None:
    """Refuse a name that says something else of the file than what is to be written."""
    ending = path.suffix.lower()
    if encoded and ending != ENCODED_ENDING:
        raise InvalidArgument(
            f"{path} must end in {ENCODED_ENDING} to hold what 'elbowroom encode' writes: choose "
            "another name, or decode with 'elbowroom decode'"
        )
    if not encoded and ending not in ENDINGS:
        raise InvalidArgument(f"{path} must end in one of {', '.join(ENDINGS)} to hold arrays")


def check_sink(path: Path, specs: Sequence[Spec]) -> None:
    """Refuse what the format of the file's ending cannot hold."""
    check_ending(path)
    ending = path.suffix.lower()
    if ending in {".npy", *RAW_ENDINGS} and len(specs) != 1:
        found, choose = "here is none", ""
        if specs:
            found = f"here are {len(specs):,} ({listed(spec.name for spec in specs)})"
            choose = "choose one with --name, or "
        raise InvalidArgument(
            f"{path} can hold one array, {found}: {choose}write .npz or .safetensors"
        )
    halves = [spec for spec in specs if spec.dtype == Dtype.BF16]
    if ending in {".npy", ".npz"} and halves:
        raise InvalidArgument(
            f"array {halves[0].name!r} holds bfloat16, which {ending} files lack: "
            "write .safetensors or raw binary"
        )
    if ending == ".safetensors" and any(spec.name == "__metadata__" for spec in specs):
        raise InvalidArgument(
            "a .safetensors file cannot hold a tensor named '__metadata__': write .npz"
        )
    if ending == ".npz":
        for spec in specs:
            parts = spec.name.replace("\\", "/").split("/")
            if ".." in parts or (spec.name[:1] in "/\\" and spec.name) or ":" in parts[0]:
                raise InvalidArgument(
                    f"an array named {spec.name!r} would be unpacked outside of its folder from "
                    "an .npz file: write .safetensors"
                )
    longest = max((len(spec.name.encode()) for spec in specs), default=0)
    if ending == ".npz" and longest + len(".npy") >= 2**16:
        raise InvalidArgument(
            f"a name of {longest} bytes is too long for an .npz file: write .safetensors"
        )


@contextmanager
def open_sink(file: BinaryIO, path: Path, specs: Sequence[Spec]) -> Iterator[Sink]:
    """Begin a file of the format that path ends in."""
    check_sink(path, specs)
    ending = path.suffix.lower()
    if ending == ".npz":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            yield Sink(
                specs=tuple(specs),
                write=lambda spec, array: _write_member(archive, spec.name, array),
            )
    elif ending == ".npy":
        yield Sink(specs=tuple(specs), write=lambda _, array: _write_npy(file, array))
    elif ending == ".safetensors":
        # Widest items first, as the format's own writer does: then every tensor is aligned.
        ordered = tuple(sorted(specs, key=lambda spec: (-spec.dtype.item_bytes, spec.name)))
        file.write(_safetensors_header(ordered))
        yield Sink(specs=ordered, write=lambda _, array: _write_bytes(file, array))
    else:
        yield Sink(specs=tuple(specs), write=lambda _, array: _write_bytes(file, array))


def _write_bytes(file: BinaryIO, array: Array) -> None:
    file.write(bytes_of(array))


def _write_npy(file: BinaryIO, array: Array) -> None:
    np.lib.format.write_array(file, to_numpy(array), allow_pickle=False)


def _write_member(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    # A ZipInfo of its own carries no date: the same arrays make the same file.
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as stream:
        np.lib.format.write_array(stream, to_numpy(array), allow_pickle=False)


def _safetensors_header(specs: Sequence[Spec]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for spec in specs:
        header[spec.name] = {
            "dtype": NAMES[spec.dtype][1],
            "shape": list(spec.shape),
            "data_offsets": [end, end + spec.nbytes],
        }
        end += spec.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
