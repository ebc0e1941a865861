"""Lightning's Trainer with the callback, and under global hooks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from elbowroom.keep.activations.anywhere import Anywhere, Terms
from tests.integrations.conftest import Example

pl: Any = pytest.importorskip(
    "lightning.pytorch", reason="lightning is not installed: ./dev test does"
)
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def train(example: Example) -> Any:
    return example("lightning_callback")["train"]


def callback(**options: Any) -> Any:
    from elbowroom.integrations.lightning import ActivationsCallback

    return ActivationsCallback(**options)


def are_equal(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return all(torch.equal(mine[name], theirs[name]) for name in mine | theirs)


def test_tolerance_zero_changes_no_bit(train: Any) -> None:
    plain, _ = train(1)
    room = callback(tolerance=0)
    exact, _ = train(1, room)
    assert are_equal(plain, exact)
    assert room.ledger.ratio > 1.2
    assert "training_step" not in vars(exact)
    assert not any(p._backward_hooks for p in exact.parameters())


def test_training_goes_as_well_in_less_memory(train: Any) -> None:
    _, plain = train(3)
    room = callback(tolerance=0.1)
    _, ours = train(3, room)
    assert ours > plain - 0.05 > 0.7
    assert room.ledger.ratio > 10
    assert room.ledger.step == 45
    assert 0 < room.ledger.gradient_error <= 0.1 + 1e-9


class Pair(pl.LightningModule):
    """Two networks against each other, stepped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.maker = nn.Sequential(nn.Linear(16, 128), nn.GELU(), nn.Linear(128, 16))
        self.judge = nn.Sequential(nn.Linear(16, 128), nn.GELU(), nn.Linear(128, 1))

    def training_step(self, batch: list[Tensor], index: int) -> None:
        first, second = self.optimizers()
        for optimizer, sign in ((first, 1.0), (second, -1.0)):
            made = self.maker(batch[0].roll(1, 0))
            loss = sign * (self.judge(batch[0]).mean() - self.judge(made).mean())
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        if index == 3:
            self.stop()

    def stop(self) -> None:
        """Nothing, unless a test has other plans."""

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(part.parameters(), 1e-3) for part in (self.judge, self.maker)]


def fit(model: Any, folder: Path, *callbacks: Any) -> Any:
    from lightning.pytorch.loggers import CSVLogger

    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=CSVLogger(folder, name="log", version=0),
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = torch.randn(256, 16, generator=torch.Generator().manual_seed(1))
    trainer.fit(model, DataLoader(TensorDataset(data), 64))
    return trainer


def pair() -> Pair:
    torch.manual_seed(0)
    return Pair()


def test_steps_taken_by_hand_and_the_log(tmp_path: Path) -> None:
    plain, exact = pair(), pair()
    fit(plain, tmp_path / "plain")
    room = callback(tolerance=0)
    fit(exact, tmp_path / "exact", room)
    assert are_equal(plain, exact)
    lines = (tmp_path / "exact" / "log" / "version_0" / "metrics.csv").read_text().splitlines()
    assert "activations/ratio" in lines[0].split(",")
    assert len(lines) == 1 + 4
    # Four batches, two backwards each.
    assert room.ledger.step == 8
    assert room.ledger.ratio > 1.3


def test_an_exception_leaves_the_module_as_it_was(tmp_path: Path) -> None:
    model = pair()

    def fail() -> None:
        raise RuntimeError("mine")

    model.stop = fail  # pyright: ignore[reportAttributeAccessIssue]
    room = callback()
    with pytest.raises(RuntimeError, match="mine"):
        fit(model, tmp_path, room)
    assert room.room is None
    assert room.ledger.ratio > 4
    assert "training_step" not in vars(model)
    assert not any(p._backward_hooks for p in model.parameters())


def test_it_is_found_by_itself(train: Any) -> None:
    """What `elbowroom run` does to a script with a Trainer."""
    said: list[str] = []
    rooms = Anywhere(Terms(), said.append)
    rooms.install()
    try:
        train(1)
    finally:
        rooms.remove()
    (account,) = rooms.accounts
    assert (account.name, account.passes, said) == ("Digits", 15, [])
    assert account.ledger.ratio > 4


def test_the_example_runs(example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    example("lightning_callback", "--epochs", "1")
    assert "times fewer bytes" in capsys.readouterr().out
