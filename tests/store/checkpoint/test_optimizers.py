"""An optimizer goes on with its own state, or is refused before it has another's."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint import Checkpointer, CheckpointWarning

GIVEN: dict[str, Any] = {"handle_signals": False, "every": 1}


def make(kind: Any, *, is_turned: bool = False, is_scheduled: bool = False) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    parameters = list(model.parameters())
    optimizer = kind(parameters[::-1] if is_turned else parameters, lr=0.1)
    found = {"model": model, "optimizer": optimizer}
    if is_scheduled:
        found["scheduler"] = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 9)
    return found


def learn(run: dict[str, Any]) -> None:
    run["model"](torch.ones(1, 3)).sum().backward()
    run["optimizer"].step()


def save(where: Path, run: dict[str, Any]) -> None:
    learn(run)
    with Checkpointer(where, **run, **GIVEN) as checkpointer:
        checkpointer.step()


@pytest.mark.parametrize(
    ("saved", "given"),
    [("Adam", "SGD"), ("SGD", "Adam"), ("Adam", "Adamax"), ("AdamW", "RAdam"), ("NAdam", "RAdam")],
)
def test_another_kind_is_refused(tmp_path: Path, saved: str, given: str) -> None:
    save(tmp_path, make(getattr(torch.optim, saved)))
    with pytest.raises(InvalidArgument, match=f"optimizer is {saved}, and {given} was given"):
        Checkpointer(tmp_path, **make(getattr(torch.optim, given)), **GIVEN)


@pytest.mark.parametrize("is_scheduled", [False, True])
def test_one_with_the_same_state_goes_on_and_is_told_how(
    tmp_path: Path, is_scheduled: bool
) -> None:
    save(tmp_path, make(torch.optim.Adam, is_scheduled=is_scheduled))
    run = make(torch.optim.AdamW, is_scheduled=is_scheduled)
    with pytest.warns(CheckpointWarning, match="goes on with the settings that Adam had"):
        Checkpointer(tmp_path, **run, **GIVEN).close()
    assert run["optimizer"].param_groups[0]["weight_decay"] == 0
    learn(run)


def test_parameters_in_another_order_are_refused(tmp_path: Path) -> None:
    """Their shapes are the same, and nothing else tells which moments are whose."""
    save(tmp_path, make(torch.optim.Adam))
    with pytest.raises(InvalidArgument, match="parameters in another order than the one"):
        Checkpointer(tmp_path, **make(torch.optim.Adam, is_turned=True), **GIVEN)
    Checkpointer(tmp_path, **make(torch.optim.Adam), **GIVEN).close()


def test_parameters_that_no_model_has_are_not_looked_at(tmp_path: Path) -> None:
    for is_turned in (False, True):
        run = make(torch.optim.Adam, is_turned=is_turned)
        del run["model"]
        with Checkpointer(tmp_path, **run, **GIVEN) as checkpointer:
            checkpointer.step()
            assert checkpointer.steps == 1 + is_turned
