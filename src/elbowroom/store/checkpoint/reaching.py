"""Asking what may be away for a while: its own errors become one of ours, and reads are repeated.

Libraries of object stores raise what they like: errors of HTTP, of names, of credentials, of their
own event loops. None of these says that a checkpoint is damaged.
"""

import errno
import time
from collections.abc import Callable
from typing import Any

from elbowroom.errors import ElbowroomError, InvalidArgument, StoreUnreachable

PATIENCE_S = 60.0
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.25, 8.0
_LEAST_TRIES = 3
_MOST_SAID = 200
# Of a file that lies on another machine, or of a process that has run out of something: they say
# nothing about the file.
_AWAY = frozenset(
    getattr(errno, name)
    for name in (
        *("ETIMEDOUT", "ESTALE", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH"),
        *("ENOTCONN", "ECONNREFUSED", "ECONNRESET", "EREMOTEIO", "EAGAIN", "EMFILE", "ENFILE"),
    )
    if hasattr(errno, name)
)
# By name: none of these libraries need be installed.
_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError")


def is_away(error: OSError) -> bool:
    """Whether a file is out of reach, and may be as whole as ever."""
    return isinstance(error, StoreUnreachable) or error.errno in _AWAY


def with_patience(what: Callable[[], Any], patience_s: float, where: str) -> Any:
    """Do it, and again while files of a disk are out of reach."""
    end, pause_s = time.monotonic() + patience_s, _FIRST_PAUSE_S
    while True:
        try:
            return what()
        except StoreUnreachable:
            raise  # it was asked again and again
        except OSError as error:
            if not is_away(error):
                raise
            if time.monotonic() + pause_s > end:
                raise StoreUnreachable(
                    f"{where} cannot be reached ({error}): start again when it is back"
                ) from error
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _MOST_PAUSE_S)


class Reach:
    """One address, and how long to go on asking it.

    Nothing is repeated before it has answered once: who mistypes an address hears of it soon.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._has_answered = False
        self.patience_s = PATIENCE_S

    def ask(self, what: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Ask for what can be asked for again; that it is not there is an answer."""
        start, pause_s, tries = time.monotonic(), _FIRST_PAUSE_S, 0
        while True:
            tries += 1
            try:
                return self.tell(what, *arguments, **named)
            except StoreUnreachable as error:
                is_passing = self._has_answered and not isinstance(error.__cause__, PermissionError)
                is_late = time.monotonic() + pause_s > start + self.patience_s
                if not is_passing or (is_late and tries >= _LEAST_TRIES):
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_PAUSE_S)

    def tell(self, what: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """The same once: what changes something is not repeated here."""
        try:
            answer = what(*arguments, **named)
        except (FileNotFoundError, FileExistsError):
            self._has_answered = True
            raise
        except (ElbowroomError, MemoryError):
            raise
        except Exception as error:  # libraries of object stores have errors of their own
            raise self._explain(error) from error
        self._has_answered = True
        return answer

    def _explain(self, error: Exception) -> ElbowroomError:
        said = " ".join(str(error).split())[:_MOST_SAID] or type(error).__name__
        if type(error).__name__ in _CREDENTIALS:
            return InvalidArgument(
                f"{self._address} cannot be reached without credentials ({said}): set those of its "
                "library, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give "
                "storage_options="
            )
        if isinstance(error, PermissionError):
            return StoreUnreachable(
                f"{self._address} does not let us in ({said}): check the credentials and what they "
                "may do"
            )
        return StoreUnreachable(
            f"{self._address} cannot be reached ({said}): check the address and the network"
        )
