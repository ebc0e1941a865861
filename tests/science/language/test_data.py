"""Text as numbers: every character comes back, and the end is held out."""

from pathlib import Path

import pytest

from elbowroom.errors import CorruptData, InvalidArgument, MissingData
from elbowroom.science.language.data import load_text, number, read_text


def test_every_character_comes_back() -> None:
    text = number(["Ärger, 🌧 and rain.\n" * 5])
    assert str(text) == "Ärger, 🌧 and rain.\n" * 5
    assert text.symbols == "".join(sorted(set(str(text))))
    assert len(text.held_out) == 9 and len(text.train) == 86


def test_of_every_part_the_end_is_held_out() -> None:
    text = number(["a" * 20, "b" * 10])
    assert text.train.tolist() == [0] * 18 + [1] * 9
    assert text.held_out.tolist() == [0, 0, 1]


def test_files_are_read_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "1").write_text("abc" * 10)
    (tmp_path / "2").write_text("xyz" * 10)
    text = read_text(tmp_path / "1", tmp_path / "2")
    assert text.symbols == "abcxyz" and len(text.train) == 54


def test_bad_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"abc\xff")
    with pytest.raises(CorruptData, match="bad is not UTF-8 from byte 3 on"):
        read_text(tmp_path / "bad")
    (tmp_path / "empty").write_text("")
    with pytest.raises(InvalidArgument, match="at least two symbols is needed, got 0"):
        read_text(tmp_path / "empty")
    with pytest.raises(MissingData, match="nowhere is not there: check the name"):
        read_text(tmp_path / "nowhere")
    with pytest.raises(InvalidArgument, match="is a folder, and a file is needed"):
        read_text(tmp_path)
    with pytest.raises(MissingData, match="run 'elbowroom data get shakespeare'"):
        load_text()
