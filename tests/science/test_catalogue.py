"""The catalogue: complete, true for what ships, and able to tell good files from bad."""

import hashlib
import re
from importlib.resources import files
from pathlib import Path

import pytest

from elbowroom.errors import InvalidArgument
from elbowroom.science.catalogue import File, examine_file, find_dataset, read_catalogue

PACKAGE = Path(str(files("elbowroom.science")))


def test_every_entry_is_complete() -> None:
    catalogue = read_catalogue()
    assert {"cesm", "cms-jets", "cifar10", "digits", "shakespeare"} <= set(catalogue)
    for name, dataset in catalogue.items():
        assert dataset.name == name
        assert dataset.about and dataset.origin and dataset.licence and dataset.files
        for file in dataset.files:
            assert re.fullmatch("[0-9a-f]{64}", file.sha256) and file.bytes > 0
            assert not Path(file.path).is_absolute() and ".." not in Path(file.path).parts
            if dataset.source and not dataset.shipped:
                assert file.member
        names = [Path(file.path).name for file in dataset.files]
        assert len(set(names)) == len(names)
        if dataset.source and dataset.source.kind in {"sdist", "npm"}:
            # Their set-up could run code, so nothing is fetched that is not known to the byte.
            assert dataset.source.version and dataset.source.sha256 and dataset.source.bytes


def test_what_ships_is_what_the_catalogue_says() -> None:
    shipped = [dataset for dataset in read_catalogue().values() if dataset.shipped]
    assert {dataset.name for dataset in shipped} == {"climate-shipped", "cms-jets-shipped"}
    for dataset in shipped:
        for file in dataset.files:
            assert examine_file(PACKAGE / file.path, file) == "present"


def test_shipped_data_stays_small() -> None:
    stored = [path for path in PACKAGE.rglob("*") if path.suffix == ".er"]
    assert len(stored) == 3
    assert sum(path.stat().st_size for path in stored) <= 3_150_000


@pytest.mark.parametrize(
    ("content", "state"),
    [
        (b"whole", "present"),
        (b"who", "partial"),
        (b"", "partial"),
        (b"whale", "damaged"),
        (b"wholesome", "damaged"),
        (None, "missing"),
    ],
)
def test_states_of_a_file(content: bytes | None, state: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    if content is not None:
        path.write_bytes(content)
    file = File(path="x", bytes=5, sha256=hashlib.sha256(b"whole").hexdigest())
    assert examine_file(path, file) == state
    by_size = "present" if content == b"whale" else state
    assert examine_file(path, file, verify=False) == by_size


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(InvalidArgument, match="no data set 'mnist': choose one of cesm, "):
        find_dataset("mnist")
