"""The codec alone: it runs, checks what it shows, and fails when a promise is broken."""

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from elbowroom.bench import verification
from elbowroom.bench.verification import Verdict
from elbowroom.cli import demo_codec
from elbowroom.codec.bound import Array, Bound

from .conftest import Command


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    """What a quick demo prints, run as a user would."""
    words = [sys.executable, "-c", "from elbowroom.cli.main import main; main()"]
    done = subprocess.run(
        [*words, "demo", "--codec", "--quick", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_bound_is_checked_and_holds(facts: dict[str, Any]) -> None:
    rows = [*facts["fields"], *facts["activations"]]
    assert facts["summary"]["checked"] == len(rows) == 10
    assert facts["summary"]["broken"] == 0
    for row in rows:
        assert row["holds"] is True
        assert 0 < row["error_over_bound"] <= 1
        assert row["codec"] == row["asked_codec"]
        assert row["ratio"] == pytest.approx(row["raw_bytes"] / row["encoded_bytes"])
        assert row["ratio"] > 1
        assert row["encode_gb_per_s"] > 0 and row["decode_gb_per_s"] > 0


def test_relu_masks_survive(facts: dict[str, Any]) -> None:
    masks = {row["name"]: row.get("mask_survives") for row in facts["activations"]}
    expected = dict.fromkeys(("conv1", "conv2", "conv3")) | dict.fromkeys(
        ("relu1", "relu2", "relu3"), True
    )
    assert masks == expected


def test_a_mask_that_does_not_survive_is_a_broken_promise() -> None:
    x = torch.rand(64, 64)
    kept = demo_codec._measure(x, Bound.absolute(0.1, keep_sign=True), "dense", 1, mask=True)
    lost = demo_codec._measure(x, Bound.absolute(0.1), "dense", 1, mask=True)
    assert (kept["mask_survives"], kept["holds"]) == (True, True)
    assert (lost["mask_survives"], lost["holds"]) == (False, False)


def test_json_names_the_machine_and_the_sample(facts: dict[str, Any]) -> None:
    assert facts["machine"]["isa"] and facts["machine"]["torch"]
    assert facts["sample"]["bound"] == "Bound.range_relative(1e-05)"
    assert facts["sample"]["shapes"]["TS"] == [6, 192, 288]
    assert facts["training"]["steps"] == 3


def test_tables_and_next_steps(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_codec, "SHARES", (1e-1, 1e-2, 1e-3))
    ending = command("demo", "--codec", "--quick")
    assert ending.code == 0
    assert ending.err == ""
    for words in ("TS", "relu3", "exact", "0 promises broken", "elbowroom encode", "docs/"):
        assert words in ending.out


def test_a_broken_bound_ends_with_an_error(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = verification.verify

    def lie(x: Array, y: Array, bound: Bound) -> Verdict:
        return replace(honest(x, y, bound), holds=False)

    monkeypatch.setattr(verification, "verify", lie)
    ending = command("demo", "--codec", "--quick", "--json")
    assert ending.code == 1
    assert ending.json["summary"]["broken"] == 10
    assert "a promise was broken (TS, conv1" in ending.err
