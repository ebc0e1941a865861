"""Checkpoints of the Trainer of transformers: stopped anywhere, it goes on as if it had not."""

import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

import elbowroom as er
from elbowroom.store.checkpoint import CheckpointWarning, Store

pytest.importorskip("transformers", reason="transformers is not installed: ./dev test does")
pytest.importorskip("accelerate", reason="accelerate is not installed: ./dev test does")
pytestmark = pytest.mark.filterwarnings(
    "default", "error::elbowroom.store.checkpoint.CheckpointWarning"
)

STEPS = 12
UNSEEDED: dict[str, Any] = {"accelerator_config": {"use_seedable_sampler": False}}


@pytest.fixture(autouse=True, scope="module")
def without_old_garbage() -> Iterator[None]:
    """The Trainer collects garbage when it begins; looking at all of transformers takes long."""
    import_module("transformers.trainer")
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Stop(Exception):
    """What ends a run in the middle."""


class Rows(Dataset[dict[str, Tensor]]):
    """Random rows; noisy ones are drawn anew whenever they are asked for."""

    def __init__(self, count: int, *, is_noisy: bool = False) -> None:
        self.x = torch.randn(count, 8, generator=torch.Generator().manual_seed(1))
        self.is_noisy = is_noisy

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x = self.x[index]
        return {"x": x + torch.rand(8) if self.is_noisy else x, "labels": x.sum()}


class Stream(IterableDataset[dict[str, Tensor]]):
    """Rows one after another, nobody knows how many."""

    def __init__(self, count: int) -> None:
        self.rows = Rows(count)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return (self.rows[index] for index in range(len(self.rows)))


class Net(nn.Module):
    """Draws random numbers in its forward, and keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 1))
        self.batches: list[Tensor] = []
        self.after: list[int] = []  # how many batches there had been after each step

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        if self.training:
            self.batches.append(x)
        return {"loss": nn.functional.mse_loss(self.layers(x).squeeze(1), labels)}


def make(
    where: Path | None, *, stop: Any = None, data: Any = None, every: int = 1, **arguments: Any
) -> tuple[Any, Any]:
    """A Trainer and its callback; at the step `stop` it raises, or what is given is called."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from elbowroom.integrations.huggingface import CheckpointCallback

    callback: Any = None if where is None else CheckpointCallback(where, every=every)

    class Stopper(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if hasattr(given["model"], "after"):
                given["model"].after.append(len(given["model"].batches))
            if callback is not None and (
                callable(stop) or state.global_step >= (stop or STEPS) - 1
            ):
                callback.checkpointer.wait()  # so that the last steps are saved
            if callable(stop):
                stop(state.global_step)
            elif state.global_step == stop:
                raise Stop

    given: dict[str, Any] = {
        **{"max_steps": STEPS, "per_device_train_batch_size": 4, "logging_steps": 1},
        **{"learning_rate": 0.01, "save_strategy": "no", "report_to": [], "use_cpu": True},
        **{"disable_tqdm": True, "max_grad_norm": 0.5, **arguments},
    }
    model = given.pop("model", None)
    trainer = Trainer(
        Net() if model is None else model(),
        TrainingArguments("out", **given),
        train_dataset=Rows(28) if data is None else data,
        eval_dataset=Rows(8),
        callbacks=[c for c in (callback, Stopper()) if c is not None],
    )
    return trainer, callback


def losses(trainer: Any) -> list[tuple[int, float, float]]:
    log = trainer.state.log_history
    return [(e["step"], e["loss"], e["learning_rate"]) for e in log if "loss" in e]


def are_equal(one: Any, other: Any) -> bool:
    mine, theirs = one.model.state_dict(), other.model.state_dict()
    return all(torch.equal(mine[name], theirs[name]) for name in mine | theirs)


def run(where: Path | None, **arguments: Any) -> Any:
    trainer, callback = make(where, **arguments)
    trainer.train(resume_from_checkpoint=None if callback is None else callback.last())
    return trainer


def check_pair(where: Path, *stops: int, **arguments: Any) -> None:
    """A run that is stopped at these steps ends as one that is not."""
    straight = run(None, **arguments)
    for stop in stops:
        with pytest.raises(Stop):
            run(where, stop=stop, **arguments)
    resumed = run(where, **arguments)
    steps = straight.state.max_steps
    assert losses(resumed) == losses(straight)
    assert [step for step, *_ in losses(resumed)] == list(range(1, steps + 1))
    assert (resumed.state.global_step, resumed.state.epoch) == (steps, straight.state.epoch)
    assert are_equal(resumed, straight)
    ours = resumed.optimizer.optimizer.state_dict()["state"]
    assert ours and all(float(state["step"]) == steps for state in ours.values())
    if isinstance(straight.model, Net):
        mine, theirs = resumed.model.batches, straight.model.batches
        # The step in which it was stopped is made again.
        assert len(mine) == len(theirs) - straight.model.after[stops[-1] - 2]
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs[-len(mine) :], strict=True))


# Seven batches are an epoch: 7 is its last step, 8 the first of the next.
@pytest.mark.parametrize("stops", [(5,), (7,), (8,), (3, 8, 11)])
def test_it_goes_on_where_it_was(tmp_path: Path, stops: tuple[int, ...]) -> None:
    check_pair(tmp_path / "run", *stops)


# Four steps are an epoch, the last of them of a single batch.
@pytest.mark.parametrize("stop", [3, 4, 5])
def test_with_gradients_of_two_batches(tmp_path: Path, stop: int) -> None:
    data = Rows(28, is_noisy=True)
    check_pair(tmp_path / "run", stop, data=data, gradient_accumulation_steps=2)


@pytest.mark.parametrize("stop", [3, 8])
def test_order_and_batches_may_be_drawn_from_global_random_numbers(
    tmp_path: Path, stop: int
) -> None:
    check_pair(tmp_path / "run", stop, data=Rows(28, is_noisy=True), **UNSEEDED)


def test_epochs_evaluations_and_workers(tmp_path: Path) -> None:
    epochs: dict[str, Any] = {"max_steps": -1, "num_train_epochs": 2, **UNSEEDED}
    evaluations: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2}
    check_pair(tmp_path / "run", 5, 10, dataloader_num_workers=1, **epochs, **evaluations)


def test_a_stream_is_read_again_up_to_the_place(tmp_path: Path) -> None:
    check_pair(tmp_path / "run", 8, data=Stream(4 * STEPS))
    stream = Stream(20)
    with pytest.raises(Stop):
        run(tmp_path / "other", stop=9, data=stream)
    with pytest.warns(CheckpointWarning, match="it begins at their first batch"):
        resumed = run(tmp_path / "other", data=stream)
    assert torch.equal(resumed.model.batches[0], stream.rows.x[:4])
    assert resumed.state.global_step == STEPS


def test_a_model_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    def tiny() -> Any:
        torch.manual_seed(0)
        sizes: dict[str, Any] = {
            "n_layer": 1,
            "n_head": 2,
            "n_embd": 16,
            "n_positions": 8,
            "vocab_size": 32,
        }
        return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))

    said: list[str] = []
    monkeypatch.setattr("transformers.trainer.logger.warning", said.append)
    words = torch.randint(0, 32, (28, 8), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in words]
    check_pair(tmp_path / "run", 5, data=data, model=tiny)
    assert said == []


def test_what_has_ended_is_not_begun_again(tmp_path: Path) -> None:
    first = run(tmp_path / "run")
    again = run(tmp_path / "run")
    assert again.state.global_step == STEPS
    assert again.model.batches == []
    assert are_equal(first, again)
    stream = run(tmp_path / "stream", data=Stream(4 * STEPS))
    again = run(tmp_path / "stream", data=Stream(4 * STEPS))
    assert again.model.batches == []
    assert are_equal(stream, again)


def test_the_last_model_is_saved_and_not_the_best(tmp_path: Path) -> None:
    best = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 2, "save_steps": 2}
    given: dict[str, Any] = {**best, "load_best_model_at_end": True, "learning_rate": 1.0}
    straight = run(None, **{**given, "load_best_model_at_end": False})
    trainer = run(tmp_path / "run", **given)
    assert not are_equal(trainer, straight)
    store = Store.open(tmp_path / "run")
    state = store.state(store.manifest(store.names()[-1]))
    theirs = straight.model.state_dict()
    assert all(torch.equal(state["model"][name], theirs[name]) for name in theirs)


def test_a_signal_saves_and_ends_the_process(tmp_path: Path) -> None:
    def end(step: int) -> None:
        if step == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    straight = run(None)
    with pytest.raises(SystemExit) as ended:
        run(tmp_path / "run", stop=end, every=1000)
    assert ended.value.code == 0
    assert signal.getsignal(signal.SIGTERM) == before
    resumed = run(tmp_path / "run")
    assert losses(resumed) == losses(straight)
    assert len(resumed.model.batches) == STEPS - 6


def test_killed_in_the_middle(tmp_path: Path) -> None:
    def kill(step: int) -> None:
        if step == 6:
            os.kill(os.getpid(), signal.SIGKILL)

    straight = run(None)
    child = os.fork()
    if not child:
        run(tmp_path / "run", stop=kill)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    resumed = run(tmp_path / "run")
    assert losses(resumed) == losses(straight)
    assert len(resumed.model.batches) == STEPS - 5
    assert are_equal(resumed, straight)


def test_another_seed_does_not_change_the_order(tmp_path: Path) -> None:
    straight = run(None)
    with pytest.raises(Stop):
        run(tmp_path / "run", stop=5)
    assert losses(run(tmp_path / "run", seed=7)) == losses(straight)


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    trainer, callback = make(tmp_path / "run", stop=3)
    with pytest.raises(Stop):
        trainer.train(resume_from_checkpoint=callback.last())
    trainer, callback = make(tmp_path / "run")
    folder = callback.last()
    assert folder is not None and Path(folder).parent == tmp_path
    trainer.train(resume_from_checkpoint=folder)
    assert not Path(folder).exists()
    assert callback.checkpointer is None
    assert not trainer.model._load_state_dict_post_hooks
    sampler = trainer.callback_handler.train_dataloader.batch_sampler
    assert type(sampler) is torch.utils.data.BatchSampler
    assert not trainer.optimizer.optimizer._optimizer_step_pre_hooks
    assert handlers == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    from elbowroom.integrations.huggingface import CheckpointCallback

    where = tmp_path / "run"
    with pytest.raises(er.InvalidArgument, match="optimizer= comes from the Trainer"):
        CheckpointCallback(where, optimizer=3)
    with pytest.raises(er.InvalidArgument, match="has no Trainer yet"):
        CheckpointCallback(where).last()
    assert not where.exists()
    with pytest.raises(Stop):
        run(where, stop=5)
    with pytest.raises(er.InvalidArgument, match=r"has a checkpoint of step 4: train with"):
        make(where)[0].train()
    with pytest.raises(er.InvalidArgument, match="saved with 7 batches in an epoch, and there are"):
        run(where, data=Rows(40))
    with pytest.raises(er.InvalidArgument, match="saved with 1 gradient accumulation steps"):
        run(where, gradient_accumulation_steps=2)
    _, callback = make(where)
    folder = callback.last()
    with pytest.raises(er.InvalidArgument, match=r"begins at step 4, of which .* knows nothing"):
        make(tmp_path / "other")[0].train(resume_from_checkpoint=folder)
    # And it is all still there.
    assert run(where).state.global_step == STEPS


def test_a_sharded_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from elbowroom.integrations import huggingface_checkpoints

    trainer, callback = make(tmp_path / "run")
    state = SimpleNamespace(fsdp_plugin=object())
    monkeypatch.setattr(huggingface_checkpoints, "AcceleratorState", lambda: state)
    with pytest.raises(er.InvalidArgument, match="whole on every rank: save sharded ones with"):
        trainer.train(resume_from_checkpoint=callback.last())


def test_a_checkpoint_of_another_loop_is_refused(tmp_path: Path) -> None:
    with er.Checkpointer(tmp_path / "run", model=Net()) as other:
        other.step()
    trainer, callback = make(tmp_path / "run")
    with pytest.raises(er.InvalidArgument, match="of another loop than the Trainer's"):
        trainer.train(resume_from_checkpoint=callback.last())


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    straight = run(None)
    with pytest.raises(Stop):
        run(tmp_path / "run", stop=6)
    (newest,) = (tmp_path / "run" / "packs").glob("000000000005-*")
    newest.write_bytes(bytes(newest.stat().st_size))
    with pytest.warns(CheckpointWarning, match=r"went back to step [1-4],"):
        resumed = run(tmp_path / "run")
    assert losses(resumed) == losses(straight)


def test_what_is_no_number_is_not_logged(tmp_path: Path) -> None:
    from elbowroom.integrations.huggingface_checkpoints import _Counts

    class State:
        log_history: list[Any]

    state: Any = State()
    state.log_history = [{"loss": torch.tensor(2.0), "eval": torch.zeros(1).numpy()[0]}]
    counts = _Counts(state)
    counts.load_state_dict(counts.state_dict())
    assert counts.read() == '{"log_history": [{"loss": 2.0, "eval": 0.0}]}'
    state.log_history.append({"loss": object()})
    with pytest.raises(er.InvalidArgument, match="it holds a object: log numbers only"):
        counts.state_dict()
