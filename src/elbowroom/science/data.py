"""Where data is found: a folder that is given, ELBOWROOM_DATA, the user's own, or one nearby."""

import os
import shlex
from pathlib import Path

from elbowroom.errors import CorruptData, InvalidArgument, MissingData
from elbowroom.science.catalogue import Dataset, File, State, examine_file, find_dataset

VARIABLE = "ELBOWROOM_DATA"


def list_folders(folder: Path | None = None) -> list[Path]:
    """Return where to look: the given folder or the variable's alone, else the usual places."""
    named = _find_named(folder)
    return [named] if named else [choose_target(), *_folders_nearby()]


def choose_target(folder: Path | None = None) -> Path:
    """Return where new data goes: the given folder, the variable's, or the user's own."""
    named = _find_named(folder)
    if named:
        return named
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "elbowroom" / "data"


def _find_named(folder: Path | None) -> Path | None:
    """Return the given folder or the variable's, with the home of a user in place of ~."""
    named = folder or os.environ.get(VARIABLE)
    try:
        return Path(named).expanduser() if named else None
    except RuntimeError:
        told = "the data folder" if folder else VARIABLE
        raise InvalidArgument(
            f"{told} must be a folder, got {str(named)!r}, and there is no such user: write the "
            "path in full"
        ) from None


def _folders_nearby() -> list[Path]:
    """Return `data` in and beside a checkout of the project, and `shared/data` beside it."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "pyproject.toml").is_file():
        return []
    return [root / "data", root.parent / "data", root.parent / "shared" / "data"]


def locate(name: str, folder: Path | None = None) -> dict[str, Path]:
    """Return the files of a data set by their names without folders, each compared with its sum."""
    dataset = find_dataset(name)
    place = find_place(dataset, folder)
    if place is None:
        raise MissingData(_explain_missing(dataset, folder))
    return {Path(file.path).name: _check(dataset, place, file, folder) for file in dataset.files}


def explain_get(dataset: Dataset, folder: Path | None = None) -> str:
    """Say how the data set comes into the folder that is given, or into the usual one."""
    where = f" --folder {shlex.quote(str(folder))}" if folder else ""
    if dataset.source:
        return f"run 'elbowroom data get {dataset.name}{where}'"
    if not dataset.originals:
        return f"take it from {dataset.origin}"
    return (
        f"take it from {dataset.origin}, then run 'elbowroom data make {dataset.name} FROM{where}' "
        f"where FROM holds {' and '.join(Path(path).name for path in dataset.originals)}"
    )


def find_place(dataset: Dataset, folder: Path | None = None) -> Path | None:
    """Return the first folder that holds at least one file of the data set."""
    places = [Path(__file__).parent] if dataset.shipped else list_folders(folder)
    for place in places:
        if any((place / file.path).exists() for file in dataset.files):
            return place
    return None


def survey(dataset: Dataset, folder: Path | None = None, *, verify: bool) -> State:
    """Return the worst state of the data set's files; without `verify` judged by their sizes."""
    place = find_place(dataset, folder)
    if place is None:
        return "missing"
    states = {examine_file(place / file.path, file, verify=verify) for file in dataset.files}
    if "damaged" in states:
        return "damaged"
    return "present" if states == {"present"} else "partial"


def locate_first(*names: str, folder: Path | None = None) -> tuple[str, dict[str, Path]]:
    """Return the name and the files of the first of several data sets that is there."""
    for name in names[:-1]:
        try:
            return name, locate(name, folder)
        except MissingData:
            continue
    return names[-1], locate(names[-1], folder)


def _check(dataset: Dataset, place: Path, file: File, folder: Path | None) -> Path:
    path = place / file.path
    state = examine_file(path, file)
    again = explain_get(dataset, folder) if dataset.source or dataset.originals else "copy it again"
    again = "install elbowroom again" if dataset.shipped else again
    if state == "missing":
        raise MissingData(f"{path} is not there, but other files of {dataset.name} are: {again}")
    if state == "partial":
        size = path.stat().st_size
        raise CorruptData(f"{path} has only {size} of its {file.bytes} bytes: {again}")
    if state == "damaged" and file.arrays:
        held = ", ".join(map(str, file.arrays))
        raise CorruptData(
            f"{path} must hold {held}, with the values of the catalogue, and does not: {again}"
        )
    if state == "damaged":
        raise CorruptData(f"{path} has not the checksum of the published file: {again}")
    return path


def _explain_missing(dataset: Dataset, folder: Path | None) -> str:
    places = " or ".join(map(str, list_folders(folder)))
    # A folder that is given is the only one that is looked in, whatever the variable says.
    other = "name" if folder else f"set {VARIABLE} to"
    return (
        f"the data set {dataset.name} is not in {places}: {explain_get(dataset, folder)}, or "
        f"{other} the folder that holds {dataset.files[0].path}"
    )
