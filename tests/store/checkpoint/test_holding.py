"""One run at a time writes to a store, and another is told what to do."""

from pathlib import Path

import pytest

from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint.holding import hold_writer
from elbowroom.store.checkpoint.local import LocalPlace


def test_the_second_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    place = LocalPlace(tmp_path)
    with hold_writer(place):
        with pytest.raises(InvalidArgument, match="another run is writing") as told:
            hold_writer(place)
        assert "launched" not in str(told.value)
    hold_writer(place).close()


def test_processes_that_do_not_know_of_each_other_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")  # as torchrun sets it
    place = LocalPlace(tmp_path)
    with (
        hold_writer(place),
        pytest.raises(InvalidArgument, match=r"another of the 4 processes .*init_process_group"),
    ):
        hold_writer(place)
