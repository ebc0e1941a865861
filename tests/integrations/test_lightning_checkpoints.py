"""Checkpoints of Lightning's Trainer: stopped anywhere, it goes on as if it had not."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import elbowroom as er
from elbowroom.store.checkpoint import CheckpointWarning

pl: Any = pytest.importorskip(
    "lightning.pytorch", reason="lightning is not installed: ./dev test does"
)
pytestmark = pytest.mark.filterwarnings(
    "default", "error::elbowroom.store.checkpoint.CheckpointWarning", "error:.*not resumable"
)

STEPS = 12
EPOCHS: dict[str, Any] = {"max_steps": -1, "max_epochs": 3}


class Stop(Exception):
    """What ends a run in the middle."""


class Rows(Dataset[Tensor]):
    """Random rows, with noise that is drawn anew whenever one is asked for."""

    def __init__(self, count: int) -> None:
        self.x = torch.randn(count, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Tensor:
        return self.x[index] + torch.rand(8)


class Stream(IterableDataset[Tensor]):
    """Rows one after another, nobody knows how many."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(Rows(28).x)


class Net(pl.LightningModule):
    """Draws random numbers in its forward, and notes what happens to it."""

    def __init__(self, scheduler: str = "step") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 1))
        self.losses: list[tuple[int, int, float, float]] = []
        self.validated: list[tuple[int, int]] = []
        self.scheduler = scheduler

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        loss = (self.layers(batch).squeeze(1) - batch.sum(1)).square().mean()
        rate = self.optimizers().param_groups[0]["lr"]
        self.losses.append((self.global_step, index, loss.item(), rate))
        return loss

    def validation_step(self, batch: Tensor, index: int) -> None:
        self.log("val", self.layers(batch).mean() + torch.rand(()))

    def on_validation_end(self) -> None:
        self.validated.append((self.global_step, self.current_epoch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        scheduler: Any = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        config = {"scheduler": scheduler, "interval": self.scheduler}
        if self.scheduler == "plateau":
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            config = {"scheduler": scheduler, "monitor": "val"}
        return {"optimizer": optimizer, "lr_scheduler": config}


class Pair(pl.LightningModule):
    """Two networks against each other, stepped by hand, on batches of two loaders."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.automatic_optimization = False
        self.maker = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 8))
        self.judge = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
        self.losses: list[tuple[int, int, float]] = []
        self.validated: list[Any] = []

    def training_step(self, batch: dict[str, Tensor], index: int) -> None:
        for optimizer, sign in zip(self.optimizers(), (1.0, -1.0), strict=True):
            made = self.maker(batch["b"])
            loss = sign * (self.judge(batch["a"]).mean() - self.judge(made).mean())
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.losses.append((self.global_step, index, loss.item()))

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(part.parameters(), 1e-3) for part in (self.judge, self.maker)]


def loader(count: int = 28, **options: Any) -> DataLoader[Tensor]:
    return DataLoader(Rows(count), 4, shuffle=True, **options)


class Run:
    """A Trainer with all that it needs; at the batch `stop` it raises, or that is called."""

    def __init__(
        self,
        where: Path | None,
        *,
        stop: Any = None,
        every: int = 1,
        model: Any = Net,
        data: Any = loader,
        is_validated: bool = False,
        callbacks: Any = (),
        **arguments: Any,
    ) -> None:
        from elbowroom.integrations.lightning import CheckpointCallback

        self.callback: Any = None if where is None else CheckpointCallback(where, every=every)
        callback = self.callback

        class Stopper(pl.Callback):
            """Comes after ours; changes the weights after each batch, as averages do."""

            def on_fit_start(self, trainer: Any, module: Any) -> None:
                torch.rand(3)

            def on_train_batch_end(self, trainer: Any, module: Any, *given: Any) -> None:
                with torch.no_grad():
                    next(module.parameters()).mul_(0.99)

            def on_train_batch_start(
                self, trainer: Any, module: Any, batch: Any, index: int
            ) -> None:
                number = trainer.fit_loop.epoch_loop.total_batch_idx
                if callback is not None and isinstance(stop, int) and stop - 2 <= number:
                    callback.checkpointer.wait()  # so that the last steps are saved
                if callable(stop):
                    stop(number)
                elif number == stop:
                    raise Stop

        ours = [] if callback is None else [callback]
        self.trainer = pl.Trainer(
            accelerator="cpu",
            callbacks=[*ours, Stopper(), *callbacks],
            **{"logger": False, "enable_progress_bar": False, "enable_model_summary": False},
            **{"enable_checkpointing": bool(callbacks), "num_sanity_val_steps": 0},
            **{"max_steps": STEPS, **arguments},
        )
        self.module = model()
        self.loaders = [data(), *([DataLoader(Rows(8), 4)] if is_validated else [])]

    def fit(self, **given: Any) -> "Run":
        torch.manual_seed(3)
        path = None if self.callback is None else self.callback.last()
        self.trainer.fit(self.module, *self.loaders, **{"ckpt_path": path, **given})
        return self


def are_equal(one: Run, other: Run) -> bool:
    mine, theirs = one.module.state_dict(), other.module.state_dict()
    return all(torch.equal(mine[name], theirs[name]) for name in mine | theirs)


def check_same(resumed: Run, straight: Run, left: int) -> None:
    """From its batch `left` on, the run was as it would have been, and all counts are."""
    assert resumed.module.losses == straight.module.losses[left:]
    validated = straight.module.validated
    assert resumed.module.validated == validated[len(validated) - len(resumed.module.validated) :]
    assert are_equal(resumed, straight)
    mine, theirs = resumed.trainer.fit_loop, straight.trainer.fit_loop
    assert mine.epoch_progress == theirs.epoch_progress
    for name in ("global_step", "total_batch_idx", "batch_idx", "_batches_that_stepped"):
        assert getattr(mine.epoch_loop, name) == getattr(theirs.epoch_loop, name)


def check_pair(where: Path, *stops: int, left: int | None = None, **arguments: Any) -> None:
    """A run that is stopped at these batches ends as one that is not."""
    straight = Run(None, **arguments).fit()
    for stop in stops:
        with pytest.raises(Stop):
            Run(where, stop=stop, **arguments).fit()
    check_same(Run(where, **arguments).fit(), straight, stops[-1] if left is None else left)


# Seven batches are an epoch: 7 is the first of the second.
@pytest.mark.parametrize("stops", [(3,), (7,), (8,), (3, 7, 8, 11)])
def test_it_goes_on_where_it_was(tmp_path: Path, stops: tuple[int, ...]) -> None:
    check_pair(tmp_path / "run", *stops)


# Four steps are an epoch, the last of them of a single batch.
@pytest.mark.parametrize(("stop", "left"), [(4, 4), (5, 4), (7, 7), (8, 7)])
def test_with_gradients_of_two_batches(tmp_path: Path, stop: int, left: int) -> None:
    check_pair(tmp_path / "run", stop, left=left, accumulate_grad_batches=2)


@pytest.mark.parametrize("stops", [(4,), (7, 14, 15)])
def test_epochs_validations_and_schedulers(tmp_path: Path, stops: tuple[int, ...]) -> None:
    for scheduler in ("plateau", "epoch"):
        model = lambda scheduler=scheduler: Net(scheduler)  # noqa: E731
        check_pair(tmp_path / scheduler, *stops, model=model, is_validated=True, **EPOCHS)


def test_what_a_validation_follows_is_not_saved_before(tmp_path: Path) -> None:
    given: dict[str, Any] = {"is_validated": True, "val_check_interval": 3}
    check_pair(tmp_path / "run", 3, left=2, **given)
    check_pair(tmp_path / "other", 5, left=5, **given)


@pytest.mark.parametrize("stop", [5, 7, 9])
def test_loaders_of_many_kinds(tmp_path: Path, stop: int) -> None:
    still: Any = Rows(28).x
    for name, data in {
        "stream": lambda: DataLoader(Stream(), 4),
        "generator": lambda: loader(generator=torch.Generator().manual_seed(5)),
    }.items():
        check_pair(tmp_path / name, stop, data=data, is_validated=True, **EPOCHS)
    if stop == 5:
        workers = lambda: DataLoader(still, 4, shuffle=True, num_workers=1)  # noqa: E731
        check_pair(tmp_path / "workers", stop, data=workers)
        check_pair(tmp_path / "cut", stop, limit_train_batches=5, **EPOCHS)


@pytest.mark.parametrize("stop", [3, 7, 9])
def test_two_optimizers_and_two_loaders(tmp_path: Path, stop: int) -> None:
    def both() -> dict[str, Any]:
        return {"a": loader(), "b": loader(20)}

    check_pair(tmp_path / "run", stop, left=2 * stop, model=Pair, data=both, **EPOCHS)


def test_what_has_ended_is_not_begun_again(tmp_path: Path) -> None:
    for name, given in (("steps", {}), ("epochs", EPOCHS)):
        first = Run(tmp_path / name, **given).fit()
        again = Run(tmp_path / name, **given).fit()
        assert again.module.losses == []
        assert again.trainer.global_step == first.trainer.global_step
        assert are_equal(first, again)


# In the middle of an epoch; at its end; where a validation follows, which is cut short; between
# two batches whose gradients are summed up.
@pytest.mark.parametrize(
    ("at", "left", "given"),
    [
        (4, 5, {"is_validated": True, "val_check_interval": 3}),
        (6, 7, {"is_validated": True, "val_check_interval": 3}),
        (2, 0, {"is_validated": True, "val_check_interval": 3}),
        (3, 4, {"accumulate_grad_batches": 2}),
        (4, 0, {"accumulate_grad_batches": 2}),
    ],
)
def test_a_signal_saves_and_ends_the_process(
    tmp_path: Path, at: int, left: int, given: dict[str, Any]
) -> None:
    def end(number: int) -> None:
        if number == at:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    straight = Run(None, **given).fit()
    with pytest.raises(SystemExit) as ended:
        Run(tmp_path / "run", stop=end, every=1000, **given).fit()
    assert not ended.value.code
    assert signal.getsignal(signal.SIGTERM) == before
    check_same(Run(tmp_path / "run", **given).fit(), straight, left)


def test_beside_checkpoints_of_lightning(tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

    def run(where: Path | None, name: str, **given: Any) -> Run:
        best = ModelCheckpoint(tmp_path / name, monitor="val", save_top_k=-1, save_last=True)
        often = ModelCheckpoint(tmp_path / name, every_n_train_steps=2, save_top_k=-1)
        callbacks = [EarlyStopping("val", patience=10), best, often]
        return Run(where, callbacks=callbacks, is_validated=True, **EPOCHS, **given)

    straight = run(None, "straight").fit()
    with pytest.raises(Stop):
        run(tmp_path / "run", "files", stop=9).fit()
    resumed = run(tmp_path / "run", "files").fit()
    check_same(resumed, straight, 9)
    files = [sorted(path.name for path in (tmp_path / n).iterdir()) for n in ("straight", "files")]
    assert files[0] == files[1] and len(files[0]) > 10
    ours, theirs = (r.trainer.checkpoint_callbacks[0] for r in (resumed, straight))
    assert ours.best_model_score == theirs.best_model_score
    # Files of Lightning's own have the loaders' places as well, if not the random numbers.
    other = run(tmp_path / "other", "others")
    other.fit(ckpt_path=tmp_path / "files" / "epoch=1-step=10.ckpt", weights_only=False)
    assert other.module.losses[0][:2] == straight.module.losses[10][:2]
    assert len(other.module.losses) == 11


def test_weights_are_read_for_validation(tmp_path: Path) -> None:
    trained = Run(tmp_path / "run").fit()
    run = Run(tmp_path / "run", is_validated=True)
    before = torch.get_rng_state()
    run.trainer.validate(run.module, run.loaders[1], ckpt_path=run.callback.last(), verbose=False)
    assert are_equal(run, trained)
    assert not torch.equal(before, torch.get_rng_state())
    with er.Checkpointer(tmp_path / "run", resume=False):
        """It is not held."""


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", stop=3)
    io, strategy = run.trainer.strategy.checkpoint_io, run.trainer.strategy
    for _ in range(2):
        with pytest.raises(Stop):
            run.fit()
        assert run.trainer.strategy.checkpoint_io is io
        assert "process_dataloader" not in vars(strategy)
        assert not {"state_dict", "load_state_dict"} & vars(run.loaders[0]).keys()
        assert run.callback.checkpointer is None


class Odd(Net):
    def __init__(self, what: Any = None, number: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters()


def test_what_cannot_be_held_is_left_out_or_refused(tmp_path: Path) -> None:
    class Note(pl.Callback):
        def state_dict(self) -> dict[str, Any]:
            return {"note": object()}

    def odd() -> Odd:
        return Odd(Path())

    straight = Run(None, model=odd).fit()
    with pytest.warns(CheckpointWarning) as told, pytest.raises(Stop):
        Run(tmp_path / "run", model=odd, callbacks=[Note()], stop=5).fit()
    said = sorted(str(one.message) for one in told if one.category is CheckpointWarning)
    assert len(said) == 2
    assert ".Note'] is left out of checkpoints, which cannot hold it" in said[0]
    assert "hyper_parameters['what'] is left out of checkpoints" in said[1]
    with pytest.warns(CheckpointWarning, match="left out"):
        check_same(Run(tmp_path / "run", model=odd).fit(), straight, 5)

    def wrong() -> Net:
        net = Net()
        net.on_save_checkpoint = lambda checkpoint: checkpoint.update(mine=object())
        return net

    with pytest.raises(er.InvalidArgument, match=r"\['mine'\] is a builtins.object, which a check"):
        Run(tmp_path / "wrong", model=wrong).fit()


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    from elbowroom.integrations.lightning import CheckpointCallback

    where = tmp_path / "run"
    with pytest.raises(er.InvalidArgument, match="loader= comes from the Trainer"):
        CheckpointCallback(where, loader=3)
    with pytest.raises(er.InvalidArgument, match="the Trainer sees to SIGTERM"):
        CheckpointCallback(where, handle_signals=True)
    with pytest.raises(er.InvalidArgument, match="loader= must be a DataLoader or have"):
        Run(where, data=lambda: [torch.zeros(4, 8)]).fit()
    with pytest.raises(Stop):
        Run(where, stop=5).fit()
    with pytest.raises(er.InvalidArgument, match="has a checkpoint of step 5: fit with ckpt_path"):
        Run(where).fit(ckpt_path=None)
    with pytest.raises(er.InvalidArgument, match="dataset length 28, and this loader has 40"):
        Run(where, data=lambda: loader(40)).fit()
    assert CheckpointCallback(where, resume=False).last() is None
    # And it is all still there.
    assert Run(where).fit().trainer.global_step == STEPS


def test_a_sharded_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path / "run")
    kind = type(run.trainer.strategy)
    monkeypatch.setattr(kind, "restore_checkpoint_after_setup", True)
    with pytest.raises(er.InvalidArgument, match="whole on every rank: save sharded ones with"):
        run.fit()


def test_a_checkpoint_of_another_loop_is_refused(tmp_path: Path) -> None:
    with er.Checkpointer(tmp_path / "run", model=Net()) as other:
        other.step()
    with pytest.raises(er.InvalidArgument, match="of another loop than the Trainer's"):
        Run(tmp_path / "run").fit()
