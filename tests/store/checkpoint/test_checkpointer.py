"""A run that is saved, ended and resumed is the run that nothing has interrupted."""

import copy
import pickle
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elbowroom.errors import BackendUnavailable, CorruptData, InvalidArgument
from elbowroom.store.checkpoint import Checkpointer, CheckpointWarning, Keep, Store, copier

from .runs import losses_of, start, tensors_of


@pytest.mark.parametrize("every", [1, 3])
def test_resumed_losses_have_the_same_bits(tmp_path: Path, every: int) -> None:
    plain = losses_of(14)
    for stop in (4, 9, 14):
        run = start(seed=stop)  # whatever it begins with is replaced
        if stop == 4:
            run = start()
        with run.checkpointer(tmp_path, every=every) as checkpointer:
            assert (checkpointer.resumed_from or 0) == len(run.losses)
            while len(run.losses) < stop:
                run.step()
                checkpointer.step()
    assert run.losses == plain


def test_a_run_without_a_checkpointer_is_the_same(tmp_path: Path) -> None:
    run = start()
    with run.checkpointer(tmp_path, every=2) as checkpointer:
        for _ in range(8):
            run.step()
            checkpointer.step()
    assert run.losses == losses_of(8)


def test_restore_goes_back_to_a_step_and_on_from_there(tmp_path: Path) -> None:
    plain = losses_of(9)
    run = start()
    with run.checkpointer(tmp_path, every=1, keep=None) as checkpointer:
        for _ in range(6):
            run.step()
            checkpointer.step()
            checkpointer.wait()
        assert checkpointer.restore(3) == checkpointer.steps == 3
        assert run.losses == plain[:3]
        run.step()
        checkpointer.step()
    # What was saved last counts, not what has the most steps.
    again = start(seed=5)
    with again.checkpointer(tmp_path, keep=None) as checkpointer:
        assert checkpointer.resumed_from == 4
        assert again.losses == plain[:4]
        with pytest.raises(InvalidArgument, match="no checkpoint of step 77; there are: 1, 2"):
            checkpointer.restore(77)


def test_old_checkpoints_go_and_what_newer_ones_need_stays(tmp_path: Path) -> None:
    run = start()
    run.model.append(nn.Linear(4, 300))  # never trained: written once, named by all
    with run.checkpointer(tmp_path, every=1, keep=Keep(last=2, every=4)) as checkpointer:
        for _ in range(9):
            run.step()
            checkpointer.step()
            checkpointer.wait()
    store = Store.open(tmp_path)
    assert [name.step for name in store.names()] == [1, 4, 8, 9]
    assert all(store.verify(name) == [] for name in store.names())
    named = {
        pack.name
        for name in store.names()
        for part in store.manifest(name).parts
        for pack in part.packs
    }
    assert {path.name for path in (tmp_path / "packs").iterdir()} == named


def test_damage_is_named_and_the_one_before_is_taken(tmp_path: Path) -> None:
    run = start()
    with run.checkpointer(tmp_path, every=2) as checkpointer:
        for _ in range(6):
            run.step()
            checkpointer.step()
            checkpointer.wait()
    newest = max((tmp_path / "packs").iterdir())
    data = bytearray(newest.read_bytes())
    data[len(data) // 3] ^= 16
    newest.write_bytes(data)
    again = start(seed=3)
    with (
        pytest.warns(CheckpointWarning, match=rf"went back to step 4.*{newest.name}"),
        again.checkpointer(tmp_path) as checkpointer,
    ):
        assert checkpointer.resumed_from == 4
    assert again.losses == losses_of(4)
    for pack in (tmp_path / "packs").iterdir():
        pack.write_bytes(pack.read_bytes()[:-100])
    with pytest.raises(CorruptData, match=r"no checkpoint in .* is whole: step 6: .*cut short"):
        start().checkpointer(tmp_path)


def test_two_writers_are_one_too_many(tmp_path: Path) -> None:
    with (
        start().checkpointer(tmp_path),
        pytest.raises(InvalidArgument, match="another run is writing checkpoints to"),
    ):
        start().checkpointer(tmp_path)
    start().checkpointer(tmp_path).close()


def test_what_does_not_fit_is_said_in_a_sentence(tmp_path: Path) -> None:
    run = start()
    with run.checkpointer(tmp_path) as checkpointer:
        run.step()
        checkpointer.save(sync=True)
    with pytest.raises(InvalidArgument, match=r"does not fit model= \(Linear\)"):
        Checkpointer(tmp_path, model=nn.Linear(3, 3))
    with pytest.raises(InvalidArgument, match="counter= must have state_dict"):
        Checkpointer(tmp_path, counter=3)
    with pytest.raises(InvalidArgument, match="max_overhead must be a share"):
        Checkpointer(tmp_path, max_overhead=2)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious.txt").touch()
    with pytest.raises(InvalidArgument, match="is no store of checkpoints and not empty"):
        Checkpointer(tmp_path / "other")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        Checkpointer(tmp_path, model=run.model, ema=nn.Linear(2, 2)).close()
    said = " ".join(str(one.message) for one in told)
    assert "has no ema" in said and "has optimizer=" in said and "has progress=" in said


def test_nothing_that_is_given_is_touched_by_a_failed_resume(tmp_path: Path) -> None:
    run = start()
    with run.checkpointer(tmp_path, every=1) as checkpointer:
        run.step()
        checkpointer.step()
    for pack in (tmp_path / "packs").iterdir():
        pack.unlink()
    again = start(seed=1)
    before = {name: value.clone() for name, value in tensors_of(again).items()}
    state = torch.get_rng_state()
    with pytest.raises(CorruptData, match="is missing"):
        again.checkpointer(tmp_path)
    assert all(torch.equal(value, tensors_of(again)[name]) for name, value in before.items())
    assert torch.equal(state, torch.get_rng_state())


def test_a_failed_save_is_told_and_the_last_good_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start()
    checkpointer = run.checkpointer(tmp_path, every=1)
    run.step()
    checkpointer.step()
    checkpointer.wait()
    with monkeypatch.context() as broken:

        def fail(*_: object) -> int:
            raise OSError(28, "No space left on device")

        broken.setattr("elbowroom.store.checkpoint.system.System.write", fail)
        run.step()
        checkpointer.step()
        with pytest.raises(OSError, match="No space left"):
            checkpointer.wait()
        run.step()
        checkpointer.step()
        checkpointer._persister.wait()
        with pytest.warns(CheckpointWarning, match="the checkpoint of step 3 was not saved"):
            checkpointer._tell_outcomes()
    assert not [path for path in tmp_path.rglob("*.part")]
    run.step()
    checkpointer.step()
    checkpointer.close()
    assert [name.step for name in Store.open(tmp_path).names()] == [1, 4]


def test_copies_beside_the_training_are_of_the_step_that_was_saved(tmp_path: Path) -> None:
    plain = losses_of(12)
    for stop in (5, 12):
        run = start(seed=stop % 5)
        with run.checkpointer(tmp_path, every=1, lazy=True, keep=None) as checkpointer:
            while len(run.losses) < stop:
                run.step()
                checkpointer.step()
    assert run.losses == plain
    # Every one of them, not just the last.
    for name in Store.open(tmp_path).names():
        again = start(seed=1)
        with again.checkpointer(tmp_path, keep=None) as checkpointer:
            checkpointer.restore(name.step)
            again.step()
        assert again.losses == plain[: name.step + 1] or name.step == 12


def test_an_optimizer_waits_for_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start()
    checkpointer = run.checkpointer(tmp_path, lazy=True, every=1)
    run.step()
    gate, order = threading.Event(), list[str]()

    def copy_late(*arguments: Any, **settings: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert gate.wait(60)
            order.append("copied")
        real(*arguments, **settings)

    real = copier.copy_tensors
    monkeypatch.setattr(copier, "copy_tensors", copy_late)
    checkpointer.step()
    run.optimizer.register_step_post_hook(lambda *_: order.append("stepped"))
    threading.Timer(0.2, gate.set).start()
    run.step()
    assert order[:2] == ["copied", "stepped"]
    checkpointer.close()
    assert len(run.optimizer._optimizer_step_pre_hooks) == 0


def test_the_last_step_is_saved_at_the_end_but_not_after_an_error(tmp_path: Path) -> None:
    run = start()
    with pytest.raises(KeyError), run.checkpointer(tmp_path, every=4) as checkpointer:
        for _ in range(6):
            run.step()
            checkpointer.step()
        raise KeyError
    assert [name.step for name in Store.open(tmp_path).names()] == [4]
    with run.checkpointer(tmp_path, every=4) as checkpointer:
        for _ in range(3):
            run.step()
            checkpointer.step()
    assert [name.step for name in Store.open(tmp_path).names()] == [4, 7]
    run.checkpointer(tmp_path, every=4).close()
    assert [name.step for name in Store.open(tmp_path).names()] == [4, 7]


def test_what_was_begun_is_finished_when_the_script_just_ends(tmp_path: Path) -> None:
    script = """if True:
        import sys, torch, elbowroom as er
        model = torch.nn.Linear(2000, 2000)
        checkpointer = er.Checkpointer(sys.argv[1], model=model, every=1)
        checkpointer.step()
    """
    command = [sys.executable, "-c", script, str(tmp_path)]
    subprocess.run(command, check=True, timeout=120)
    assert [name.step for name in Store.open(tmp_path).names()] == [1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"steps": nn.Linear(1, 1)}, "steps= is a name that checkpoints use themselves"),
        ({"randomness": nn.Linear(1, 1)}, "randomness= is a name"),
        ({"per_rank": ("other",)}, "per_rank must list names of objects that are given"),
        ({"per_rank": "model"}, "per_rank must list names"),
        ({"every": "5"}, "every must be a number of steps from 1 on, got '5'"),
        ({"every": 1.5}, "every must be a number of steps"),
        ({"keep": 0}, "keep must be a number from 1 on"),
        ({"in_flight": 0}, "in_flight must be a number"),
        ({"keep_far": 2}, "keep_far= says what stays in far=, which was not given"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_made(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        Checkpointer(tmp_path / "run", model=nn.Linear(2, 2), **options)
    assert not (tmp_path / "run").exists()


def test_it_is_not_copied(tmp_path: Path) -> None:
    with start().checkpointer(tmp_path) as checkpointer:
        for copy_it in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="a Checkpointer cannot be copied or pickled"):
                copy_it(checkpointer)


def test_layers_without_a_shape_are_named(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, model=nn.Sequential(nn.LazyLinear(3)))
    with pytest.raises(InvalidArgument, match=r"\['0.weight'\] has no shape yet"):
        checkpointer.save()
    checkpointer.close()


def test_a_hash_whose_package_is_missing_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "blake3", None)
    with pytest.raises(BackendUnavailable, match="pip install blake3"):
        Checkpointer(tmp_path / "run", model=nn.Linear(1, 1), hash="blake3")


def test_folders_by_other_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    model = nn.Linear(1, 1)
    with (
        Checkpointer("~/run", model=model),
        pytest.raises(InvalidArgument, match="another run is writing"),
    ):
        Checkpointer(f"file://{tmp_path}/run", model=model)
    assert Store.open("~/run").id == Store.open(tmp_path / "run").id


def test_names_that_are_nearly_settings_and_no_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="did you mean every="):
        Checkpointer(tmp_path, model=nn.Linear(1, 1), evry=3)
    for nothing in ("", None, "a\0b"):
        with pytest.raises(InvalidArgument, match="need the name of a folder"):
            Checkpointer(nothing, model=nn.Linear(1, 1))  # pyright: ignore[reportArgumentType]
