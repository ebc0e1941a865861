"""One process of a study: python -m elbowroom.study.worker; cells come in, outcomes go out.

Requests and answers are lines of JSON on standard input and output. When the input ends, the
process does too, also in the middle of a training: nobody is left to be told.
"""

import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

from elbowroom.errors import ElbowroomError

TELL_EVERY_S = 0.25


def main() -> None:
    """Answer requests until there are no more."""
    answers = _claim_output()
    requests: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()

    import torch

    torch.set_num_threads(1)
    desk = _Desk(answers)
    while True:
        desk.answer(json.loads(requests.get()))


def _claim_output() -> TextIO:
    """Keep standard output for answers; what anything else prints goes to the log."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return own


def _listen(requests: "queue.Queue[str]") -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


class _Desk:
    """Keeps the data of each network, which many cells share."""

    def __init__(self, answers: TextIO) -> None:
        self._answers = answers
        self._tasks: dict[str, Any] = {}
        self._told = 0.0

    def answer(self, request: dict[str, Any]) -> None:
        """Do one thing and say how it went."""
        try:
            if request["kind"] == "prepare":
                from elbowroom.study.trial import fingerprint

                task = self._task(request["network"], request["data"])
                self._say("ready", data_crc32=fingerprint(task))
            else:
                self._run(request)
        except ElbowroomError as error:
            self._fail(error, str(error), lasting=True)
        except MemoryError as error:
            self._fail(error, str(error) or "there was not enough memory", lasting=False)
        except Exception as error:  # a cell that fails must not end the study
            import traceback

            traceback.print_exc()
            self._fail(
                error, f"{type(error).__name__}: {error}", lasting=not isinstance(error, OSError)
            )

    def _fail(self, error: Exception, said: str, *, lasting: bool) -> None:
        """Say what failed, and whether it will fail each time."""
        self._say("error", error=type(error).__name__, said=said, lasting=lasting)

    def _run(self, request: dict[str, Any]) -> None:
        from elbowroom.study.cells import Cell
        from elbowroom.study.trial import run_cell

        cell = Cell.from_json(request["cell"])
        task = self._task(cell.network, request["data"])
        self._say("outcome", outcome=run_cell(cell, task=task, tell=self._tell))

    def _task(self, network: str, data: str | None) -> Any:
        from elbowroom.study.networks import find_network

        if network not in self._tasks:
            folder = Path(data) if data else None
            self._tasks[network] = find_network(network).make_task(folder)
        return self._tasks[network]

    def _tell(self, done: int, steps: int) -> None:
        if time.monotonic() - self._told >= TELL_EVERY_S or done == steps:
            self._told = time.monotonic()
            self._say("step", done=done, steps=steps)

    def _say(self, kind: str, **fields: Any) -> None:
        self._answers.write(json.dumps({"kind": kind, **fields}, allow_nan=False) + "\n")
        self._answers.flush()


if __name__ == "__main__":
    main()
