"""The Trainer of transformers, with the mixin, with the callback and under global hooks."""

from pathlib import Path
from typing import Any

import pytest
import torch

from elbowroom.keep.activations.anywhere import Anywhere, Terms
from tests.integrations.conftest import EXAMPLES, Example

pytest.importorskip("transformers", reason="transformers is not installed: ./dev test does")
pytest.importorskip("accelerate", reason="accelerate is not installed: ./dev test does")
pytestmark = pytest.mark.filterwarnings("default")

TEXT = EXAMPLES.parent / "README.md"


@pytest.fixture
def train(example: Example) -> Any:
    return example("huggingface_trainer")["train"]


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    return trainer.model.state_dict()


def are_equal(one: Any, other: Any) -> bool:
    mine, theirs = weights(one), weights(other)
    return all(torch.equal(mine[name], theirs[name]) for name in mine | theirs)


def test_tolerance_zero_changes_no_bit(train: Any) -> None:
    plain = train(TEXT, 6, None, use_callback=False)
    for use_callback in (False, True):
        exact = train(TEXT, 6, 0.0, use_callback=use_callback)
        assert are_equal(plain, exact)
        entry = next(e for e in exact.state.log_history if "loss" in e)
        assert entry["activations/ratio"] > 1.2
        assert entry["activations/gradient_error"] == 0


def test_training_goes_as_well_in_less_memory(train: Any) -> None:
    plain = train(TEXT, 20, None, use_callback=False)
    ours = train(TEXT, 20, 0.1, use_callback=False)
    assert not are_equal(plain, ours)
    assert losses(ours)[-1] == pytest.approx(losses(plain)[-1], rel=0.05)
    assert losses(ours)[-1] < losses(ours)[0] - 0.5
    ledger = ours.room.ledger
    assert ledger.ratio > 10
    assert ledger.step == 20
    assert 0 < ledger.gradient_error <= 0.1 + 1e-9
    # The loss is part of the pass.
    assert any("log_softmax" in row.name or "cross_entropy" in row.name for row in ledger.rows)
    data = torch.utils.data.Subset(ours.train_dataset, range(32))
    ours.evaluate(data)
    assert ours.room.ledger.step == 20


def test_the_callback_leaves_the_model_as_it_was(train: Any) -> None:
    trainer = train(TEXT, 6, 0.1, use_callback=True)
    (callback,) = (c for c in trainer.callback_handler.callbacks if hasattr(c, "room"))
    assert callback.room is None
    assert callback.ledger.ratio > 10
    assert not trainer.model._forward_hooks and not trainer.model._forward_pre_hooks
    assert not any(p._backward_hooks for p in trainer.model.parameters())


def test_it_is_found_by_itself(train: Any) -> None:
    """What `elbowroom run` does to a script with a Trainer."""
    said: list[str] = []
    rooms = Anywhere(Terms(), said.append)
    rooms.install()
    try:
        train(TEXT, 5, None, use_callback=False)
    finally:
        rooms.remove()
    (account,) = rooms.accounts
    assert (account.name, account.passes, said) == ("GPT2LMHeadModel", 5, [])
    assert account.ledger.ratio > 10


def test_the_example_runs(
    example: Example, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = tmp_path / "text"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    example("huggingface_trainer", "--steps", "10", "--callback", "--text", str(text))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    assert len(lines) == 2
    assert "times fewer bytes" in lines[-1]
