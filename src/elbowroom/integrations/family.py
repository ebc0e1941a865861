"""All processes of one run: how those that are started are found, and what they report."""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from elbowroom.integrations.orders import Orders

VARIABLE = "ELBOWROOM_RUN"
_HOOK = str(Path(__file__).parent / "follow")

# How long the first process waits at its end for the others of the same launcher.
_PATIENCE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Family:
    """What every process of a run knows; processes find it in their environment."""

    orders: Orders
    root: int
    """The process that the user or a launcher has started."""

    rank: str
    """Its rank: what a child inherits is no rank of its own."""

    folder: str
    """For reports; it is made when there is one."""

    peers: int = 0
    """Other processes that the same launcher has started on this machine."""

    @classmethod
    def begin(cls, orders: Orders) -> "Family":
        """A run starts with this process."""
        name, peers = secrets.token_hex(8), 0
        told = os.environ.get
        if "TORCHELASTIC_RUN_ID" in os.environ and told("GROUP_RANK") == "0":
            peers = int(told("LOCAL_WORLD_SIZE", "1")) - 1
            launch = (told("TORCHELASTIC_RUN_ID"), told("TORCHELASTIC_RESTART_COUNT"))
            known = f"{os.getppid()} {told('MASTER_PORT')} {launch}"
            name = hashlib.sha256(known.encode()).hexdigest()[:16]
        family = cls(
            orders=orders,
            root=os.getpid(),
            rank=rank_here(),
            folder=os.path.join(tempfile.gettempdir(), f"elbowroom-{os.getuid()}-{name}"),
            peers=peers,
        )
        if peers and family.rank == "0":
            family._make_folder()
        return family

    @classmethod
    def join(cls) -> "Family | None":
        """The run that this process belongs to."""
        try:
            known = json.loads(os.environ[VARIABLE])
            given = known.pop("orders")
            orders = Orders(**given | {"exact": tuple(given["exact"])})
            return cls(orders=orders, **known)
        except (KeyError, TypeError, ValueError):
            return None

    def announce(self) -> None:
        """Processes that are started from now on belong to this run."""
        os.environ[VARIABLE] = json.dumps(asdict(self))
        places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        others = [place for place in places if place and place != _HOOK]
        os.environ["PYTHONPATH"] = os.pathsep.join([_HOOK, *others])
        # One that an outer run has put here would start a second companion.
        sys.meta_path[:] = [f for f in sys.meta_path if getattr(f, "__name__", "") != "_Follower"]

    def report(self, content: dict[str, Any], name: str) -> None:
        """Leave a report for the process that speaks: whole or not at all."""
        is_child = os.getpid() != self.root
        with contextlib.suppress(OSError):
            os.kill(self.root, 0)  # nobody reads it when the run is over
            if self._make_folder() if is_child else self._is_ours():
                path = os.path.join(self.folder, f"{name}.json")
                aside = f"{path}.{os.getpid()}"
                Path(aside).write_text(json.dumps(content), encoding="utf-8")
                os.replace(aside, path)

    def reports(self) -> list[dict[str, Any]]:
        """What processes that are over have reported."""
        found: list[dict[str, Any]] = []
        if self._is_ours():
            for path in sorted(Path(self.folder).glob("*.json")):
                with contextlib.suppress(OSError, ValueError):
                    found.append(json.loads(path.read_text(encoding="utf-8")))
        return found

    def await_peers(self) -> None:
        """Wait for the reports of the other processes that the launcher has started."""
        until = time.monotonic() + _PATIENCE_S
        while self.peers and time.monotonic() < until:
            if len(list(Path(self.folder).glob("rank*.json"))) >= self.peers:
                return
            time.sleep(0.02)

    def may_say(self, sentence: str) -> bool:
        """Whether no other process of the run has said the same."""
        name = hashlib.sha256(sentence.encode()).hexdigest()[:16]
        try:
            if self._make_folder():
                os.close(os.open(os.path.join(self.folder, name), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        except OSError:
            pass
        return True

    def end(self) -> None:
        """The run is over: nothing of it stays."""
        if self._is_ours():
            shutil.rmtree(self.folder, ignore_errors=True)

    def _make_folder(self) -> bool:
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.folder, 0o700)
        return self._is_ours()

    def _is_ours(self) -> bool:
        """Whether it is a folder, and nobody else's."""
        try:
            state = os.lstat(self.folder)
        except OSError:
            return False
        return os.path.isdir(self.folder) and state.st_uid == os.getuid()


def rank_here() -> str:
    """What a launcher has told this process, or one that it comes from."""
    for name in ("RANK", "SLURM_PROCID"):
        if os.environ.get(name, "").isdecimal():
            return os.environ[name]
    return ""
