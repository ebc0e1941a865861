"""Where data is found: a folder that is given, ELBOWROOM_DATA, the user's own, or one nearby."""

import os
from pathlib import Path

from elbowroom.errors import CorruptData, MissingData
from elbowroom.science.catalogue import Dataset, File, State, examine_file, find_dataset

VARIABLE = "ELBOWROOM_DATA"


def list_folders(folder: Path | None = None) -> list[Path]:
    """Return where to look: the given folder or the variable's alone, else the usual places."""
    named = folder or os.environ.get(VARIABLE)
    if named:
        return [Path(named).expanduser()]
    return [choose_target(), *_folders_nearby()]


def choose_target(folder: Path | None = None) -> Path:
    """Return where new data goes: the given folder, the variable's, or the user's own."""
    named = folder or os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "elbowroom" / "data"


def _folders_nearby() -> list[Path]:
    """Return the folders `data` in and beside a checkout of the project."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "pyproject.toml").is_file():
        return []
    return [root / "data", root.parent / "data", root.parent / "shared" / "data"]


def locate(name: str, folder: Path | None = None) -> dict[str, Path]:
    """Return the files of a data set by their names without folders, each compared with its sum."""
    dataset = find_dataset(name)
    place = find_place(dataset, folder)
    if place is None:
        raise MissingData(_explain_missing(dataset, list_folders(folder)))
    return {Path(file.path).name: _check(dataset, place, file) for file in dataset.files}


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


def _check(dataset: Dataset, place: Path, file: File) -> Path:
    path = place / file.path
    state = examine_file(path, file)
    again = f"run 'elbowroom data get {dataset.name}'" if dataset.source else "copy it again"
    again = "install elbowroom again" if dataset.shipped else again
    if state == "missing":
        raise MissingData(f"{path} is not there, but other files of {dataset.name} are: {again}")
    if state == "partial":
        size = path.stat().st_size
        raise CorruptData(f"{path} has only {size} of its {file.bytes} bytes: {again}")
    if state == "damaged":
        raise CorruptData(f"{path} has not the checksum of the published file: {again}")
    return path


def _explain_missing(dataset: Dataset, folders: list[Path]) -> str:
    if dataset.source:
        remedy = f"run 'elbowroom data get {dataset.name}'"
    else:
        remedy = f"take it from {dataset.origin}"
    return (
        f"the data set {dataset.name} is not in {' or '.join(map(str, folders))}: {remedy}, or set "
        f"{VARIABLE} to the folder that holds {dataset.files[0].path}"
    )
