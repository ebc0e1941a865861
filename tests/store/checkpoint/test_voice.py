"""What a run hears of its checkpoints."""

import logging

import pytest

from elbowroom.store.checkpoint import voice


def test_what_is_good_to_know_is_printed_where_nobody_reads_logs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    voice.tell("a checkpoint about every 7 steps")
    assert capsys.readouterr() == ("", "elbowroom: a checkpoint about every 7 steps\n")


def test_logs_are_used_where_there_are_any(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "elbowroom")
    voice.tell("a checkpoint about every 7 steps")
    assert caplog.messages == ["a checkpoint about every 7 steps"]
    assert capsys.readouterr() == ("", "")
