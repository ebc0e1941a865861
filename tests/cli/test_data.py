"""The verb `data`: what it lists, what it brings, and what it says when it cannot."""

import gzip
from pathlib import Path

import pytest

from .conftest import Command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "data"
    monkeypatch.setenv("ELBOWROOM_DATA", str(place))
    return place


def test_ls_tells_what_is_here(command: Command, folder: Path) -> None:
    facts = command("data", "ls", "--json").json
    assert facts["looked_in"] == [str(folder)] and facts["new_data_goes_to"] == str(folder)
    rows = {row["name"]: row for row in facts["datasets"]}
    assert rows["cesm"]["state"] == "missing" and rows["cesm"]["how"] == "get (sdist)"
    assert rows["jet-images"]["how"] == "make (by hand)"
    assert rows["tinyshakespeare"]["how"] == "by hand"
    assert rows["climate-shipped"]["state"] == "present"
    assert rows["climate-shipped"]["how"] == "with the package"
    assert all(row["licence"] and row["origin"] for row in rows.values())
    table = command("data", "ls").out
    assert all(name in table for name in rows)
    assert f"Looked in {folder}" in table


def test_get_brings_what_an_installed_package_has(command: Command, folder: Path) -> None:
    first = command("data", "get", "digits", "--json")
    assert first.code == 0, first.err
    assert first.json["brought"] == [str(folder / "images" / "digits.csv.gz")]
    rows = gzip.decompress((folder / "images" / "digits.csv.gz").read_bytes()).splitlines()
    assert len(rows) == 1797
    second = command("data", "get", "digits")
    assert (second.code, second.out) == (0, f"digits is whole already, in {folder}\n")
    # A damaged file is found by its checksum alone, and brought anew.
    path = folder / "images" / "digits.csv.gz"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    states = {}
    for words in ((), ("--verify",)):
        listed = command("data", "ls", "--json", *words).json["datasets"]
        states[words] = {row["name"]: row["state"] for row in listed}["digits"]
    assert states == {(): "present", ("--verify",): "damaged"}
    third = command("data", "get", "digits")
    assert third.code == 0 and "digits: 1 files, 0.1 MB" in third.out
    assert "Licence: BSD-3-Clause" in third.out


def test_another_folder_can_be_named(command: Command, tmp_path: Path, folder: Path) -> None:
    assert command("data", "get", "digits", "--folder", tmp_path / "mine").code == 0
    assert (tmp_path / "mine" / "images" / "digits.csv.gz").exists()
    assert not folder.exists()


def test_what_ships_is_there_already(command: Command) -> None:
    ending = command("data", "get", "climate-shipped")
    assert ending.code == 0 and "is whole already" in ending.out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("jet-images", "jet-images is in no package that can be fetched: take it from GitHub"),
        ("nonsense", "there is no data set 'nonsense': choose one of cesm"),
    ],
)
def test_what_cannot_be_fetched_is_one_sentence(
    name: str, words: str, command: Command, folder: Path
) -> None:
    ending = command("data", "get", name)
    assert ending.code == 2 and ending.out == ""
    assert words in ending.err and len(ending.err.splitlines()) == 1
    assert not folder.exists()


def test_list_is_another_name_of_ls(command: Command, folder: Path) -> None:
    assert command("data", "list", "--json").json == command("data", "ls", "--json").json


def test_a_user_that_is_not_there_is_told(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELBOWROOM_DATA", "~nosuchuser/x")
    end = command("data", "ls")
    assert end.code == 2 and len(end.err.splitlines()) == 1
    assert "ELBOWROOM_DATA must be a folder, got '~nosuchuser/x'" in end.err


def test_the_remedy_names_the_folder(command: Command, tmp_path: Path) -> None:
    place = tmp_path / "my data"
    end = command("data", "ls", "--folder", place)
    assert f"'elbowroom data get NAME --folder '{place}''" in end.out
    end = command("data", "get", "jet-images", "--folder", place)
    assert f"'elbowroom data make jet-images FROM --folder '{place}''" in end.err
    end = command(
        *("study", "--network", "gpt-mini", "--data", tmp_path / "d", "--out", tmp_path / "out")
    )
    assert f"run 'elbowroom data get shakespeare --folder {tmp_path / 'd'}'" in end.err


def test_a_file_in_the_way_is_told(command: Command) -> None:
    for place in ("/dev/null", "/dev/null/x"):
        end = command("data", "get", "digits", "--folder", place)
        assert end.code == 2 and len(end.err.splitlines()) == 1
        assert f"{place} cannot be a data folder, since a file is in its way" in end.err


def test_originals_that_are_not_there_are_named(command: Command, tmp_path: Path) -> None:
    end = command("data", "make", "higgs", tmp_path / "none", "--folder", tmp_path / "d")
    assert end.code == 2 and "binary.train is not there" in end.err
    end = command("data", "make", "cesm", tmp_path)
    assert (
        end.code == 2 and "cesm is not made from other files: choose one of jet-images" in end.err
    )
