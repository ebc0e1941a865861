"""Checkpoints in a bucket of a real S3 server that goes away, fails, and is slow."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("moto.server")
pytest.importorskip("s3fs")

from elbowroom.cli.main import main
from elbowroom.errors import ElbowroomError, InvalidArgument, StoreUnreachable
from elbowroom.store.checkpoint import Checkpointer, CheckpointWarning, Store

from .bucket import Gate, Server
from .holders import Holder
from .runs import losses_of, start

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


@pytest.fixture
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("elbowroom.store.checkpoint.reaching.PATIENCE_S", 20.0)
    return f"s3://runs/{request.node.name[5:45]}"


def saver(server: Server, where: str, holder: Any, **options: Any) -> Checkpointer:
    settings: dict[str, Any] = {"every": 1, "handle_signals": False, "snapshot": "copy", **options}
    return Checkpointer(where, held=holder, storage_options=server.options, **settings)


def steps_in(server: Server, where: str) -> list[int]:
    return [name.step for name in Store.open(where, options=server.options).names()]


def test_an_outage_ends_no_training(server: Server, where: str) -> None:
    run = start()
    ck = run.checkpointer(where, every=1, storage_options=server.options)
    for _ in range(2):
        run.step()
        ck.step()
    ck.wait()
    with server.away(), pytest.warns(CheckpointWarning) as told:
        for _ in range(3):
            run.step()
            ck.step()
            ck._persister.wait()
        run.step()
        ck.step()
    # Once: it is one outage.
    said = [str(one.message) for one in told]
    assert len(said) == 1
    assert "the checkpoint of step 3 was not saved" in said[0]
    assert "cannot be reached" in said[0]
    assert "that of step 2 stays, and saving will be tried again" in said[0]
    ck._persister.wait()
    run.step()
    ck.step()
    ck.close(save=False)
    assert steps_in(server, where)[-1] == 7
    again = start(seed=3)
    ck = again.checkpointer(where, every=1, storage_options=server.options)
    assert ck.resumed_from == 7
    again.step()
    assert again.losses == losses_of(8)
    # Also when it is away in the end, nothing of botocore's comes out.
    server.stop()
    try:
        with pytest.warns(CheckpointWarning, match="step 8 was not saved: .*cannot be reached"):
            ck.step()
            ck.close()
        with pytest.raises(StoreUnreachable, match=r"cannot be reached .*check the address"):
            start().checkpointer(where, storage_options=server.options)
    finally:
        server.start()


def test_a_save_that_is_waited_for_raises_our_error(server: Server, where: str) -> None:
    ck = saver(server, where, Holder({"x": torch.zeros(3)}))
    ck.save(sync=True)
    with server.failing(lambda method, path: "503 Away" if method == "PUT" else None):
        with pytest.raises(StoreUnreachable, match="cannot be reached"):
            ck.save(sync=True)
    ck.save(sync=True)
    ck.close()


def test_what_passes_loses_no_step(server: Server, where: str) -> None:
    """At resume errors of the server and an outage are waited for; damage goes back."""
    holder = Holder({"x": torch.arange(4.0)})
    with saver(server, where, holder) as ck:
        for _ in range(3):
            holder.state["x"] += 1
            ck.step()
            ck.wait()
    left = [4]

    def ask(method: str, path: str) -> str | None:
        if method == "GET" and "/packs/" in path and left[0]:
            left[0] -= 1
            return "500 Oh"
        return None

    with server.failing(ask):
        again = Holder({"x": torch.zeros(4)})
        saver(server, where, again).close()
    assert left == [0]
    assert torch.equal(again.state["x"], torch.arange(4.0) + 3)
    # What does not pass is an error, and no fresh start from an older one.
    broken = Holder({"x": torch.zeros(4)})
    with server.failing(lambda m, path: "500 Oh" if m == "GET" and "/packs/" in path else None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("elbowroom.store.checkpoint.reaching.PATIENCE_S", 0.3)
            with pytest.raises(StoreUnreachable, match="cannot be reached"):
                saver(server, where, broken)
    assert torch.equal(broken.state["x"], torch.zeros(4))


def test_a_missing_pack_goes_back(server: Server, where: str) -> None:
    holder = Holder({"x": torch.randn(5000)})
    with saver(server, where, holder, keep=None) as ck:
        for _ in range(2):
            holder.state["x"] = torch.randn(5000)
            ck.step()
            ck.wait()
    place = Store.open(where, options=server.options).place
    place.remove(f"packs/{max(place.names('packs'))}")
    with pytest.warns(CheckpointWarning, match="went back to step 1"):
        ck = saver(server, where, Holder({"x": torch.zeros(5000)}))
    assert ck.resumed_from == 1
    ck.close(save=False)


def test_what_cannot_work_is_one_sentence(
    server: Server, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = Holder({"x": torch.zeros(3)})
    with pytest.raises(InvalidArgument, match="no bucket 'rnus' for s3://rnus/a: check the name"):
        saver(server, "s3://rnus/a", holder)
    assert server.buckets() == ["runs"]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    bare = {name: value for name, value in server.options.items() if name not in ("key", "secret")}
    with pytest.raises(InvalidArgument, match=r"without credentials .*storage_options="):
        Checkpointer(where, held=holder, storage_options=bare)
    nobody = {**server.options, "endpoint_url": "http://127.0.0.1:9"}
    with pytest.raises(StoreUnreachable, match=r"cannot be reached .*check the address"):
        Checkpointer(where, held=holder, storage_options=nobody)
    with pytest.raises(ElbowroomError, match="cannot be reached"):
        Checkpointer(where, held=holder, storage_options={"nonsense_option": 1})


_KILLED = """
import json, sys, torch
from elbowroom.store.checkpoint import Checkpointer
where, options = sys.argv[1], json.loads(sys.argv[2])
class Held:
    x = torch.zeros(3_000_000)
    def state_dict(self): return {"x": self.x}
    def load_state_dict(self, state): self.x = state["x"]
held = Held()
ck = Checkpointer(where, held=held, every=1, handle_signals=False, storage_options=options)
while True:
    held.x = torch.randn(3_000_000)
    ck.step(); ck.wait(); print(ck.steps, flush=True)
"""


@pytest.mark.parametrize("is_collected", [False, True])
def test_killed_in_an_upload(
    server: Server, where: str, is_collected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last committed one is there; parts that were sent are aborted by gc or at resume."""
    words = [sys.executable, "-c", _KILLED, where, json.dumps(server.options)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "1\n"
        gate = Gate(lambda method, path: method == "PUT" and "partNumber=2" in path)
        with server.failing(gate):
            assert gate.is_reached.wait(60)
            process.send_signal(signal.SIGKILL)
            process.wait()
            gate.is_open.set()
    finally:
        process.kill()
        process.stdout.close()
        process.wait()
    prefix = where.removeprefix("s3://runs/")
    assert any(key.startswith(f"{prefix}/packs/") for key in server.uploads())
    server.upload("another/packs/000000000001-0000000100000000-r0.pack")  # not ours to abort
    server.upload(f"{prefix}/theirs.bin")
    if is_collected:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        with pytest.raises(SystemExit) as ended:
            main(["checkpoint", "gc", where])
        assert ended.value.code == 0
    else:
        held = Holder({"x": torch.zeros(1)})
        ck = saver(server, where, held)
        assert ck.resumed_from == int(steps_in(server, where)[-1])
        ck.close(save=False)
    left = [key for key in server.uploads() if key.startswith(f"{prefix}/")]
    assert left == [f"{prefix}/theirs.bin"]
    assert any(key.startswith("another/") for key in server.uploads())
    files = server.objects(prefix)
    assert sum(file.startswith("packs/") for file in files) == len(steps_in(server, where))


def test_requests_do_not_grow(server: Server, where: str) -> None:
    holder = Holder({"x": torch.randn(3000), "y": torch.zeros(3000)})
    counts: list[int] = []
    with saver(server, where, holder, keep=None) as ck:
        for _ in range(12):
            holder.state["x"] = torch.randn(3000)
            server.requests.clear()
            ck.step()
            ck.wait()
            counts.append(len(server.requests))
    assert max(counts[1:]) <= counts[0] + 2
    holder.state["x"] = torch.randn(3000)
    counts.clear()
    with saver(server, where, holder, keep=3) as ck:
        for _ in range(6):
            holder.state["x"] = torch.randn(3000)
            server.requests.clear()
            ck.step()
            ck.wait()
            counts.append(len(server.requests))
    assert max(counts[2:]) == min(counts[2:])
    assert steps_in(server, where) == [16, 17, 18]


def test_a_signal_leaves_the_clearing(server: Server, where: str) -> None:
    """What need not be removed now is left to the next run."""
    holder = Holder({"x": torch.randn(3000)})
    ck = saver(server, where, holder, keep=1)
    ck.step()
    ck.wait()
    ck._notice.number = signal.SIGTERM
    holder.state["x"] = torch.randn(3000)
    server.requests.clear()
    with pytest.raises(SystemExit):
        ck.step()
    assert not [path for _, path in server.requests if "delete" in path]
    assert steps_in(server, where) == [1, 2]
    with saver(server, where, holder, keep=1) as ck:
        ck.step()
    assert steps_in(server, where) == [3]


def test_the_run_that_came_first_is_told(server: Server, where: str) -> None:
    first, second = Holder({"x": torch.zeros(3)}), Holder({"x": torch.ones(3)})
    one = saver(server, where, first)
    one.step()
    one.wait()
    two = saver(server, where, second)
    assert two.resumed_from == 1
    first.state["x"] += 5
    with pytest.warns(CheckpointWarning, match="another run has begun to write checkpoints to s3"):
        one.step()
        one._persister.wait()
        one.close(save=False)
    two.step()
    two.close()
    store = Store.open(where, options=server.options)
    assert [name.step for name in store.names()] == [1, 2]
    assert all(store.verify(name) == [] for name in store.names())
    assert "writer" not in store.place.names("")
