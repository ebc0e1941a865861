"""What a run says at its end."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from elbowroom.integrations.summary import _sentence
from elbowroom.keep.activations.anywhere import Account
from elbowroom.keep.activations.ledger import Ledger, Row

ROW = Row(
    name="0: linear[0]",
    readers=("Addmm.mat1",),
    error_class="W",
    method="encode",
    shape=(1000, 1000),
    saved_bytes=4_000_000,
    kept_bytes=200_000,
    bound=0.1,
    gradient_error=0.01,
    encode_s=0.0,
    decode_s=0.0,
)
LEDGER = Ledger(step=4, saved_bytes=8_000_000, kept_bytes=200_000, rows=(ROW, ROW))

STOPPED = """
import os, signal
import torch
from torch import nn


class Stops(nn.Module):
    is_armed = False

    def forward(self, x):
        if Stops.is_armed:
            os.kill(os.getpid(), signal.SIGINT)
        return x


layers = nn.Linear(64, 512), nn.GELU(), Stops(), nn.Linear(512, 512), nn.Linear(512, 8)
model = nn.Sequential(*layers)
for step in range(8):
    Stops.is_armed = step == 4
    model(torch.randn(256, 64)).square().mean().backward()
"""


def account(ledger: Ledger, passes: int) -> Account:
    return Account("Net", None, passes=passes, peak_bytes=900_000_000, ledger=ledger)


def test_what_is_on_disk_is_not_taken_for_compression() -> None:
    on_disk = replace(LEDGER, rows=(ROW, replace(ROW, method="offload", kept_bytes=0)))
    assert "on disk" not in _sentence(account(LEDGER, 4), None)
    said = _sentence(account(on_disk, 4), None)
    assert "8.0 MB saved, 4.0 MB of it on disk, → 0.2 MB kept in memory" in said


def test_a_pass_that_did_not_end_is_not_the_one_that_is_told() -> None:
    assert "in the last of 4 passes" in _sentence(account(LEDGER, 4), None)
    assert "in number 4 of 7 passes" in _sentence(account(LEDGER, 7), None)


def test_a_budget_that_was_exceeded_is_said_to_be() -> None:
    assert "above the budget of 800.0 MB" in _sentence(account(LEDGER, 4), "800 MB")
    assert "budget" not in _sentence(account(LEDGER, 4), "900 MB")


def test_what_the_meter_has_read_stands_beside_the_prediction() -> None:
    found = account(LEDGER, 4)
    assert "measured" not in _sentence(found, None)
    found.gradient_error, found.measured_error = 0.02, 0.03
    assert "at most 0.02 of its variance by prediction, measured 0.03," in _sentence(found, None)


def test_after_an_interrupt_in_a_forward_the_pass_before_it_counts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STOPPED)
    words = [sys.executable, "-m", "elbowroom", "run", "--ledger", "ledger.json", "train.py"]
    done = subprocess.run(
        words, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGINT
    assert "in number 4 of 5 passes" in done.stderr
    (module,) = json.loads((tmp_path / "ledger.json").read_text())["modules"]
    assert module["ledger"]["saved_bytes"] > 1_000_000
    assert module["ledger"]["rows"]
    # Without a budget too it is the process's own peak, imports and all.
    assert module["peak_bytes"] > 100_000_000
