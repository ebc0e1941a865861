"""Near and far: what is committed near arrives far, and a new machine finds it there."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from elbowroom.errors import BackendUnavailable, InvalidArgument
from elbowroom.store.checkpoint import CheckpointWarning, Store
from elbowroom.store.checkpoint.drain import Drain
from elbowroom.store.checkpoint.objects import ObjectPlace
from elbowroom.store.checkpoint.retention import Keep

from .holders import flip
from .runs import Run, losses_of, start


@pytest.fixture
def bucket() -> Iterator[str]:
    url = "memory://bucket/run"
    yield url
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def train(run: Run, steps: int, near: Path | str, **options: object) -> int | None:
    checkpointer = run.checkpointer(near, every=2, **options)
    while len(run.losses) < steps:
        run.step()
        checkpointer.step()
        checkpointer.wait()
        if (drain := checkpointer._journal._drain) is not None:
            drain.wait()  # of several that wait, only the newest is brought
    checkpointer.close(save=False)
    return checkpointer.resumed_from


def check(where: Path | str, steps: list[int]) -> None:
    store = Store.open(where)
    assert [name.step for name in store.names()] == steps
    assert all(store.verify(name) == [] for name in store.names())


def test_a_bucket_is_a_place_like_any_other(bucket: str) -> None:
    assert train(start(), 5, bucket) is None
    check(bucket, [2, 4])
    run = start(seed=4)
    assert train(run, 9, bucket, keep=2) == 4
    assert run.losses == losses_of(9)
    check(bucket, [6, 8])
    place = ObjectPlace(bucket)
    assert set(place.names("")) == {"manifests", "packs", "parts", "store.json"}
    assert len(place.names("packs")) < 4


@pytest.mark.parametrize("is_bucket", [False, True])
def test_a_new_machine_finds_what_is_far(tmp_path: Path, bucket: str, is_bucket: bool) -> None:
    far = bucket if is_bucket else tmp_path / "far"
    train(start(), 7, tmp_path / "near", far=far, keep=1, keep_far=2)
    check(tmp_path / "near", [6])
    check(far, [4, 6])
    shutil.rmtree(tmp_path / "near")
    run = start(seed=2)
    assert train(run, 11, tmp_path / "near", far=far, keep=1, keep_far=2) == 6
    assert run.losses == losses_of(11)
    check(far, [8, 10])


@pytest.mark.parametrize("is_gone", [False, True])
def test_damage_far_does_not_hide_older_ones(tmp_path: Path, is_gone: bool) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    train(start(), 7, near, far=far)
    shutil.rmtree(near)
    newest = max((far / "packs").iterdir())
    newest.unlink() if is_gone else flip(newest, 200)
    run = start(seed=3)
    if is_gone:
        assert train(run, 9, near, far=far) == 4  # it could not be brought at all
    else:
        with pytest.warns(CheckpointWarning, match="went back to step 4, since newer"):
            assert train(run, 9, near, far=far) == 4
    assert run.losses == losses_of(9)


def test_what_is_damaged_near_is_read_from_far(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    train(start(), 7, near, far=far)
    flip(max((near / "packs").iterdir()), 200)
    run = start(seed=3)
    with pytest.warns(CheckpointWarning, match="step 6 was read from .*far, since it is damaged"):
        assert train(run, 9, near, far=far) == 6
    assert run.losses == losses_of(9)
    # What came after builds on nothing that is damaged.
    store = Store.open(near)
    damaged = [name.step for name in store.names() if store.verify(name)]
    assert damaged == [6] and store.names()[-1].step == 8
    check(far, [4, 6, 8])


def test_what_is_damaged_near_does_not_go_far(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    train(start(), 3, near, far=far)
    train(start(), 5, near)
    flip(max((near / "packs").iterdir()), 200)
    said: list[str] = []
    store = Store.open(near)
    drain = Drain(store, Store.open(far), Keep(last=3), tell=said.append)
    drain.push(store.names()[-1])
    drain.close()
    assert len(said) == 1 and "it is damaged near" in said[0] and "older ones stay" in said[0]
    check(far, [2])


def test_a_step_that_is_only_far_can_be_gone_back_to(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    run = start()
    train(run, 9, near, far=far, keep=1, keep_far=9)
    with run.checkpointer(near, far=far, keep=1, keep_far=9) as checkpointer:
        with pytest.raises(InvalidArgument, match="no checkpoint of step 3; there are: 2, 4, 6, 8"):
            checkpointer.restore(3)
        assert checkpointer.restore(4) == 4
        assert run.losses == losses_of(4)
        checkpointer.save(sync=True)
    check(near, [4])


def test_far_is_behind_when_near_is_newer(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    train(start(), 3, near, far=far)
    train(start(), 5, near)
    assert train(start(), 7, near, far=far, keep_far=1) == 4
    check(far, [6])


def test_what_did_not_arrive_comes_with_the_next_start(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    train(start(), 5, near)
    assert train(start(), 5, near, far=far) == 4
    check(far, [4])


def test_what_cannot_be_brought_now_comes_with_the_next(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    run = start()
    with run.checkpointer(near, every=1, far=far, keep=None) as checkpointer:
        run.step()
        (far / "packs").rmdir()
        (far / "packs").touch()
        checkpointer.step()
        checkpointer._persister.wait()
        drain = checkpointer._journal._drain
        assert drain is not None
        drain.wait()
        (far / "packs").unlink()
        (far / "packs").mkdir()
        run.step()
        with pytest.warns(CheckpointWarning, match="step 1 was not brought to .*it is safe near"):
            checkpointer.step()
    check(far, [2])


def test_errors_of_other_libraries_end_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class TimedOutSomewhere(Exception):
        """As the clients of object stores have them."""

    def fail(*_: object) -> None:
        raise TimedOutSomewhere("no answer")

    run = start()
    with run.checkpointer(tmp_path / "near", every=1, far=tmp_path / "far") as checkpointer:
        drain = checkpointer._journal._drain
        assert drain is not None
        with monkeypatch.context() as broken:
            broken.setattr("elbowroom.store.checkpoint.drain.copy_file", fail)
            checkpointer.step()
            checkpointer._persister.wait()
            drain.wait()
        with pytest.warns(CheckpointWarning, match="was not brought to .*: no answer; it is safe"):
            checkpointer.step()
    check(tmp_path / "far", [2])


def test_two_runs_do_not_bring_to_one_place(tmp_path: Path) -> None:
    with (
        start().checkpointer(tmp_path / "one", far=tmp_path / "far"),
        pytest.raises(InvalidArgument, match=r"another run is writing checkpoints to .*far"),
    ):
        start().checkpointer(tmp_path / "two", far=tmp_path / "far")
    start().checkpointer(tmp_path / "one", far=tmp_path / "far").close()
    with pytest.raises(InvalidArgument, match="where the checkpoints are already"):
        start().checkpointer(tmp_path / "one", far=tmp_path / "two" / ".." / "one")


def test_tiers_of_two_runs_do_not_mix(tmp_path: Path) -> None:
    train(start(), 3, tmp_path / "one", far=tmp_path / "far")
    train(start(), 3, tmp_path / "two")
    with pytest.raises(InvalidArgument, match="checkpoints of another run than its other tier"):
        start().checkpointer(tmp_path / "two", far=tmp_path / "far")
    with pytest.raises(BackendUnavailable, match="cannot be reached"):
        start().checkpointer(tmp_path / "three", far="nowhere://x/y")
