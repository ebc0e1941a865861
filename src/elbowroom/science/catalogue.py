"""The catalogue of data sets: where each comes from, its licence and the checksums of its files."""

import hashlib
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from elbowroom.errors import InvalidArgument
from elbowroom.science.arrays import Array, compare_arrays

State = Literal["present", "partial", "damaged", "missing"]


@dataclass(frozen=True, kw_only=True)
class File:
    """One file of a data set, as it must be."""

    path: str  # inside of the data folder
    bytes: int
    sha256: str
    member: str | None = None  # its name in the source's archive
    # Where these are given they count, and bytes and checksum are those of one file that has them.
    arrays: tuple[Array, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Source:
    """What holds the files: a source archive or wheel of pip, an archive of npm, or our package."""

    kind: Literal["sdist", "wheel", "npm", "package"]
    package: str
    version: str | None = None  # any
    bytes: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A set of files with a name."""

    name: str
    about: str
    origin: str
    licence: str
    files: tuple[File, ...]
    source: Source | None  # None: put there by hand
    originals: tuple[str, ...] = ()  # in the origin's repository: what the file is made from

    @property
    def shipped(self) -> bool:
        """Whether the files come with this package."""
        return self.source is not None and self.source.kind == "package"

    @property
    def nbytes(self) -> int:
        """The size of all files together."""
        return sum(file.bytes for file in self.files)


def read_catalogue() -> dict[str, Dataset]:
    """Return all data sets by name."""
    text = files("elbowroom.science").joinpath("catalogue.toml").read_text(encoding="utf-8")
    return {
        name: Dataset(
            name=name,
            about=entry["about"],
            origin=entry["origin"],
            licence=entry["licence"],
            files=tuple(_read_file(file) for file in entry["files"]),
            originals=tuple(entry.get("originals", ())),
            source=Source(**entry["source"]) if "source" in entry else None,
        )
        for name, entry in tomllib.loads(text).items()
    }


def _read_file(entry: dict[str, Any]) -> File:
    fields = dict(entry)
    arrays = [
        Array(name=one["name"], dtype=one["dtype"], shape=tuple(one["shape"]), sha256=one["sha256"])
        for one in fields.pop("arrays", [])
    ]
    return File(**fields, arrays=tuple(arrays))


def find_dataset(name: str) -> Dataset:
    """Return the data set of that name."""
    catalogue = read_catalogue()
    if name not in catalogue:
        raise InvalidArgument(
            f"there is no data set {name!r}: choose one of {', '.join(catalogue)}"
        )
    return catalogue[name]


def examine_file(path: Path, file: File, *, verify: bool = True) -> State:
    """Compare a file on disk with what it must be; without `verify` by its size alone.

    A file that must hold arrays is also right if these are, in whatever way they are packed.
    """
    if not path.is_file():
        return "missing"
    size = path.stat().st_size
    if size == file.bytes and (not verify or hash_file(path) == file.sha256):
        return "present"
    held = compare_arrays(path, file.arrays) if file.arrays else "unreadable"
    if held == "same":
        return "present"
    return "partial" if size < file.bytes and held == "unreadable" else "damaged"


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
