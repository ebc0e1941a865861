"""Where data is looked for, and what is said of files that are missing, partial or damaged."""

import hashlib
from pathlib import Path

import pytest

from elbowroom.errors import CorruptData, InvalidArgument, MissingData
from elbowroom.science import data
from elbowroom.science.catalogue import Dataset, File, Source
from elbowroom.science.data import choose_target, list_folders, locate, locate_first, survey


def describe(path: str, content: bytes) -> File:
    return File(path=path, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


BOTH = Dataset(
    name="pair",
    about="",
    origin="the attic",
    licence="",
    files=(describe("a/one.bin", b"first"), describe("a/two.bin", b"second")),
    source=Source(kind="sdist", package="pair", version="1", sha256="0" * 64, bytes=1),
)


@pytest.fixture(autouse=True)
def catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    by_hand = dataclasses.replace(BOTH, name="found", source=None)
    known = {"pair": BOTH, "found": by_hand}
    monkeypatch.setattr(data, "find_dataset", known.__getitem__)


def put(folder: Path, one: bytes | None = b"first", two: bytes | None = b"second") -> None:
    (folder / "a").mkdir(exist_ok=True)
    for name, content in (("one", one), ("two", two)):
        if content is not None:
            (folder / "a" / f"{name}.bin").write_bytes(content)


def test_a_given_folder_comes_first_then_the_variable_then_the_usual_places(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list_folders(tmp_path / "given") == [tmp_path / "given"]
    assert list_folders() == [data_folder]
    assert choose_target() == data_folder
    monkeypatch.delenv("ELBOWROOM_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert choose_target() == tmp_path / "cache" / "elbowroom" / "data"
    folders = list_folders()
    assert folders[0] == choose_target()
    root = Path(__file__).parents[2]
    assert folders[1:] == [root / "data", root.parent / "data", root.parent / "shared" / "data"]
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert choose_target() == tmp_path / ".cache" / "elbowroom" / "data"


def test_whole_files_are_found_by_name(data_folder: Path, tmp_path: Path) -> None:
    put(data_folder)
    assert locate("pair") == {
        "one.bin": data_folder / "a" / "one.bin",
        "two.bin": data_folder / "a" / "two.bin",
    }
    with pytest.raises(MissingData):
        locate("pair", tmp_path / "elsewhere")


def test_missing_data_says_how_to_get_it(data_folder: Path) -> None:
    with pytest.raises(MissingData) as error:
        locate("pair")
    assert str(error.value) == (
        f"the data set pair is not in {data_folder}: run 'elbowroom data get pair', or set "
        "ELBOWROOM_DATA to the folder that holds a/one.bin"
    )
    with pytest.raises(MissingData, match="take it from the attic"):
        locate("found")


def test_what_is_missing_in_a_given_folder_goes_there(tmp_path: Path) -> None:
    with pytest.raises(MissingData) as error:
        locate("pair", tmp_path / "d")
    assert str(error.value) == (
        f"the data set pair is not in {tmp_path / 'd'}: run 'elbowroom data get pair --folder "
        f"{tmp_path / 'd'}', or name the folder that holds a/one.bin"
    )
    (tmp_path / "d").mkdir()
    put(tmp_path / "d", two=b"sec")
    with pytest.raises(CorruptData, match=f"data get pair --folder {tmp_path / 'd'}'"):
        locate("pair", tmp_path / "d")


def test_the_home_of_nobody_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match="the data folder must be a folder, got '~nobody_/x'"):
        list_folders(Path("~nobody_/x"))
    monkeypatch.setenv("ELBOWROOM_DATA", "~nobody_/x")
    with pytest.raises(InvalidArgument, match="ELBOWROOM_DATA must be a folder"):
        choose_target()


@pytest.mark.parametrize(
    ("two", "error", "words"),
    [
        (None, MissingData, "two.bin is not there, but other files of pair are"),
        (b"sec", CorruptData, "two.bin has only 3 of its 6 bytes: run 'elbowroom data get pair'"),
        (b"secand", CorruptData, "two.bin has not the checksum of the published file"),
    ],
)
def test_partial_and_damaged_files_are_told_apart(
    two: bytes | None, error: type[Exception], words: str, data_folder: Path
) -> None:
    put(data_folder, two=two)
    with pytest.raises(error, match=words):
        locate("pair")


def test_the_first_data_set_that_is_there_is_taken(data_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="take it from the attic"):
        locate_first("pair", "found")
    put(data_folder)
    assert locate_first("pair", "found")[0] == "pair"
    put(data_folder, one=b"fir")
    with pytest.raises(CorruptData):
        locate_first("pair", "found")


def test_survey_names_the_worst_state(data_folder: Path) -> None:
    assert survey(BOTH, verify=True) == "missing"
    put(data_folder, two=None)
    assert survey(BOTH, verify=True) == "partial"
    put(data_folder, two=b"secand")
    assert survey(BOTH, verify=True) == "damaged"
    assert survey(BOTH, verify=False) == "present"
    put(data_folder)
    assert survey(BOTH, verify=True) == "present"
