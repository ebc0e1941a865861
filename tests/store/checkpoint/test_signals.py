"""A cluster that says its time is up gets a saved run and a clean end."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from elbowroom.store.checkpoint import Store, signals
from elbowroom.store.checkpoint.signals import Notice

from .runs import losses_of, start

SCRIPT = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(int(sys.argv[3]))  # as many as the test has: sums depend on it
sys.path.insert(0, sys.argv[2])
from tests.store.checkpoint.runs import start

run = start()
with run.checkpointer(Path(sys.argv[1]), every=10**6, handle_signals=True) as checkpointer:
    print(f"resumed {checkpointer.resumed_from}", flush=True)
    while len(run.losses) < 12:
        run.step()
        if len(run.losses) == 5 and checkpointer.resumed_from is None:
            print("waiting", flush=True)
            sys.stdin.readline()
        checkpointer.step()
    print(json.dumps(run.losses))
"""
ROOT = Path(__file__).parents[3]


def launch(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), str(ROOT), str(torch.get_num_threads())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_and_ends_cleanly(tmp_path: Path, number: int) -> None:
    first = launch(tmp_path)
    assert first.stdout is not None and first.stdin is not None
    assert [first.stdout.readline(), first.stdout.readline()] == ["resumed None\n", "waiting\n"]
    first.send_signal(number)
    first.stdin.write("\n")
    _, said = first.communicate(timeout=60)
    assert (first.returncode, said) == (0, "")
    assert [name.step for name in Store.open(tmp_path).names()] == [3, 5]
    second = launch(tmp_path)
    out, said = second.communicate(timeout=60)
    assert second.returncode == 0, said
    assert out.splitlines()[0] == "resumed 5"
    assert out.splitlines()[1] == str(losses_of(12))


def test_handlers_are_put_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with start().checkpointer(tmp_path, handle_signals=True):
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_in_another_thread_nothing_is_listened_for(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    found = []

    def work() -> None:
        with start().checkpointer(tmp_path, handle_signals=True):
            found.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]


def test_a_signal_that_comes_again_much_later_is_for_those_who_were_there_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    try:
        notice = Notice()
        notice.listen()
        # A launcher that was told passes it on, and a cluster that has warned says so again.
        for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM):
            os.kill(os.getpid(), number)
            assert notice.number == number and got == []
        monkeypatch.setattr(signals, "SAME_S", -1.0)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert got == [signal.SIGUSR1]
        notice.ignore()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_one_that_has_ended_and_is_put_back_hears_nothing() -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    try:
        first, second = Notice(), Notice()
        first.listen()
        second.listen()
        first.ignore()
        second.ignore()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert (first.number, second.number, got) == (0, 0, [signal.SIGUSR1])
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_while_the_last_checkpoint_is_written_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Store.commit

    def commit(*given: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*given)

    monkeypatch.setattr(Store, "commit", commit)
    before = signal.getsignal(signal.SIGTERM)
    checkpointer = start().checkpointer(tmp_path, every=100, handle_signals=True)
    checkpointer.step()
    with pytest.raises(SystemExit) as ended:
        checkpointer.close()
    assert ended.value.code == 0 and signal.getsignal(signal.SIGTERM) == before
    assert [name.step for name in Store.open(tmp_path).names()] == [1]


def test_a_forked_process_ends_when_it_is_told_to() -> None:
    notice = Notice()
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    read_end, write_end = os.pipe()
    try:
        notice.listen()
        process = os.fork()
        if process == 0:
            signal.alarm(60)
            os.write(write_end, b"x")
            while True:
                time.sleep(0.05)
        os.read(read_end, 1)  # until it is past the fork, in which Python forgets signals
        os.kill(process, signal.SIGTERM)
        assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGTERM
        assert notice.number == 0
    finally:
        notice.ignore()
        signal.signal(signal.SIGTERM, before)
        os.close(read_end)
        os.close(write_end)
