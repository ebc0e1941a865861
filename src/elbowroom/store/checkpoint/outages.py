"""What a run is told of saves that fail: each time, but once for a store that is away."""

from collections.abc import Callable
from pathlib import Path

from elbowroom.errors import ElbowroomError, StoreUnreachable
from elbowroom.store.checkpoint.naming import Name
from elbowroom.store.checkpoint.persister import Outcome


class Outages:
    """Words for what has become of saves; the store itself is not asked, for it may be away."""

    def __init__(
        self, where: str | Path, warn: Callable[[str], None], note: Callable[[str, bool], None]
    ) -> None:
        self._where, self._warn, self._note = where, warn, note
        self._is_away = False

    def note(self, outcome: Outcome, newest: Name | None, *, is_last: bool) -> None:
        """A save has ended; the newest that is there is that."""
        if outcome.error is None:
            if self._is_away:
                self._note(f"{self._where} is back, and has step {outcome.step}", True)
            self._is_away = False
            return
        stays = f"that of step {newest.step} stays" if newest else "there is none before it"
        said = f"the checkpoint of step {outcome.step} was not saved: {outcome.error}; {stays}"
        said += "" if is_last else ", and saving will be tried again"
        is_known = self._is_away and isinstance(outcome.error, StoreUnreachable) and not is_last
        self._is_away = isinstance(outcome.error, StoreUnreachable)
        if is_known:
            self._note(said, False)
        else:
            self._warn(said)


def plain_error(outcome: Outcome) -> BaseException:
    """What to raise of a save that has failed: an error of ours or of the system."""
    if isinstance(outcome.error, ElbowroomError | OSError):
        return outcome.error
    error = RuntimeError(f"the checkpoint of step {outcome.step} was not saved: {outcome.error}")
    error.__cause__ = outcome.error
    return error
