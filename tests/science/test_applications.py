"""The applications by name, and training one as a user would."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from elbowroom.errors import ElbowroomError, InvalidArgument
from elbowroom.science.__main__ import main
from elbowroom.science.applications import find_recipe, list_applications
from elbowroom.science.training import seeded

SHIPPED = ("extreme-rain", "extreme-rain-deeplab", "clouds", "cms-jets", "digits")


@pytest.mark.parametrize("name", SHIPPED)
def test_what_ships_needs_no_data_folder(name: str) -> None:
    recipe = find_recipe(name)
    task = recipe.make_task()
    with seeded(0):
        network = recipe.make_network(task)
    inputs, targets = task.draw(2, torch.Generator().manual_seed(0))
    loss = task.loss(network(inputs), targets)
    loss.backward()
    assert loss.isfinite() and loss > 0


@pytest.mark.parametrize("name", sorted(set(list_applications()) - set(SHIPPED)))
def test_the_others_say_what_they_need(name: str) -> None:
    with pytest.raises(ElbowroomError, match=r"data get|take it from|must be given"):
        find_recipe(name).make_task()


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(InvalidArgument, match="no application 'chess': choose one of extreme-rain"):
        find_recipe("chess")


def test_training_from_the_command_line() -> None:
    words = ("cms-jets", "--steps", "5", "--batch", "32", "--threads", "1", "--seed", "3")
    command = [sys.executable, "-m", "elbowroom.science", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["task"], record["seed"], record["steps"]) == ("b jet or not", 3, 5)
    assert record["score"]["name"] == "AUC" and "best column" in record["score"]["baselines"]
    assert "batch=32" in record["recipe"]


def test_missing_data_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["science", "gpt"])
    with pytest.raises(SystemExit, match=r"^elbowroom: the data set shakespeare is not in "):
        main()


@pytest.mark.parametrize(
    "words",
    [
        *(("--steps", "0"), ("--steps", "-3"), ("--batch", "0"), ("--threads", "-1")),
        *(("--threads", "0"), ("--seed", str(2**70)), ("--seed", "-1"), ("--steps", "many")),
    ],
)
def test_numbers_out_of_range_are_refused(
    words: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # As one word, so that a minus is not taken for another option.
    monkeypatch.setattr(sys, "argv", ["science", "cms-jets", "=".join(words)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert f"argument {words[0]}: a whole number from" in told and repr(words[1]) in told


def test_what_the_disk_says_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr("elbowroom.science.__main__.train", refuse)
    monkeypatch.setattr(sys, "argv", ["science", "cms-jets"])
    with pytest.raises(SystemExit, match=r"^elbowroom: .*Permission denied"):
        main()


def test_an_interrupt_is_no_traceback() -> None:
    code = (
        "import sys; from elbowroom.science import __main__ as m; m.TOLD_EVERY_SECONDS = 0.0; "
        "sys.argv = ['science', 'cms-jets', '--steps', '1000000', '--threads', '1']; m.main()"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
        assert process.wait(120) == 130
    assert told.endswith("elbowroom: interrupted, and nothing was kept\n")
    assert "Traceback" not in told


def test_a_score_is_printed_beside_its_baselines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["science", "cms-jets", "--steps", "2"])
    main()
    assert re.fullmatch(
        r"cms-jets, seed 0, 2 steps: AUC 0\.\d{4} \(best column 0\.\d{4}\)\n",
        capsys.readouterr().out,
    )
