"""What a run says at its end."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from elbowroom.integrations.companion import Companion
from elbowroom.integrations.family import Family
from elbowroom.integrations.orders import Orders
from elbowroom.integrations.outcomes import Outcome, breach_of, sentence_of
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


def said_of(account: Account, limit_bytes: int | None = None, training_bytes: int = 0) -> str:
    return sentence_of([Outcome.of(account, training_bytes)], limit_bytes)


def test_what_is_on_disk_is_not_taken_for_compression() -> None:
    on_disk = replace(LEDGER, rows=(ROW, replace(ROW, method="offload", kept_bytes=0)))
    assert "on disk" not in said_of(account(LEDGER, 4))
    said = said_of(account(on_disk, 4))
    assert "8.0 MB saved, 4.0 MB of it on disk, → 0.2 MB kept in memory" in said


def test_a_pass_that_did_not_end_is_not_the_one_that_is_told() -> None:
    assert "in the last of 4 passes" in said_of(account(LEDGER, 4))
    assert "in number 4 of 7 passes" in said_of(account(LEDGER, 7))


def test_a_budget_that_was_exceeded_is_said_to_be() -> None:
    net, limit_bytes = account(LEDGER, 4), 800_000_000
    assert said_of(net, limit_bytes).endswith("above the budget of 800.0 MB[/]")
    assert "budget" not in said_of(net, 900_000_000)
    training = Outcome.of(net, 700_000_000)
    said = sentence_of([training], limit_bytes)
    assert "900.0 MB (about 700.0 MB while training)" in said
    assert said.endswith("above the budget of 800.0 MB[/] outside of training")
    assert breach_of([training], limit_bytes) is None
    # The worst process counts.
    assert "took 850.0 MB while" in str(
        breach_of([training, Outcome.of(net, 850_000_000)], limit_bytes)
    )
    assert "nothing was compressed" in str(breach_of([], limit_bytes))


def test_an_error_is_told_by_what_is_known_of_it() -> None:
    found = account(LEDGER, 4)
    found.unpredicted = 4
    assert "gradient error not predicted yet, 0.0 s" in said_of(found)
    found.measured_error = 0.03
    assert "gradient error not predicted yet, measured 0.03 of its variance," in said_of(found)
    found.gradient_error = 0.04
    assert "at most 0.04 of its variance by prediction, measured 0.03," in said_of(found)
    found.gradient_error = 0.02
    assert "error 0.02 (predicted) to 0.03 (measured) of its variance," in said_of(found)
    found.measured_error = 0.0201
    assert "at most 0.02 of its variance by prediction, measured 0.02," in said_of(found)


def test_a_gradient_is_exact_where_no_pass_was_rounded() -> None:
    found = account(LEDGER, 4)
    assert "gradient exact, 0.0 s" in said_of(found)
    found.unpredicted = 2
    assert "gradient exact but for 2 of 4 passes, not predicted yet, 0.0 s" in said_of(found)


def test_several_processes_have_one_sentence() -> None:
    first, other = account(LEDGER, 4), account(replace(LEDGER, kept_bytes=400_000), 6)
    first.gradient_error, other.gradient_error, other.peak_bytes = 0.01, 0.05, 10**9
    said = sentence_of([Outcome.of(first), Outcome.of(other)])
    assert "Net, in 2 processes: 8.0 MB saved" in said
    assert "20.0x to 40.0x[/]) in the last of 4 to 6 passes" in said
    assert "at most 0.05 of its variance" in said
    assert "peak of a process 900.0 MB to 1.00 GB" in said


def test_after_an_interrupt_in_a_forward_the_pass_before_it_counts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STOPPED)
    words = [sys.executable, "-m", "elbowroom", "run", "--overhead", "none"]
    words += ["--ledger", "ledger.json", "train.py"]
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


def test_a_budget_that_nobody_can_tell_of_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(family: Family) -> list[object]:
        raise OSError("no such folder")

    monkeypatch.setattr(Family, "reports", fail)
    for memory, expected in ((None, False), ("1GB", True)):
        companion = Companion(Family.begin(Orders(memory=memory)))
        assert companion.has_breached() == expected
    assert "whether the budget was kept is not known: OSError" in capsys.readouterr().err
