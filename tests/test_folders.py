"""Folders that one process works in at a time."""

from pathlib import Path

import pytest

from elbowroom.errors import InvalidArgument
from elbowroom.folders import held


def test_two_works_do_not_share_a_folder(tmp_path: Path) -> None:
    with held(tmp_path / "new", "study"):
        with (
            pytest.raises(InvalidArgument, match="another study is at work"),
            held(tmp_path / "new", "study"),
        ):
            raise AssertionError
    with held(tmp_path / "new", "study"):
        pass
    assert not list((tmp_path / "new").iterdir())
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidArgument, match="is a file"), held(tmp_path / "file", "study"):
        raise AssertionError
