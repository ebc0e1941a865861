"""Running a script or module in this process as Python itself would have run it.

That is: its own `__main__` module, arguments and search path, its exit code, and tracebacks that
begin in it.
"""

import atexit
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, NoReturn

from elbowroom.errors import BudgetUnreachable, InvalidArgument

LAUNCHERS = {
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.accelerate_cli",
}
"""Commands that start Python in other processes, and the modules that they are."""

_PACKAGE = str(Path(__file__).parents[1]) + os.sep


class Program:
    """A script or module that has been found."""

    def __init__(
        self, name: str, main: ModuleType, code: Callable[[], CodeType], folder: str
    ) -> None:
        self._name = name
        self._main = main
        self._code = code
        self._folder = folder
        self._interrupted = False
        # Registered before anything that the script may register, so that it comes last.
        atexit.register(self._end)

    @classmethod
    def of_script(cls, script: str) -> "Program":
        """What `python script` would run."""
        path = Path(script)
        if not path.is_file():
            raise InvalidArgument(_say_missing(script))
        with io.open_code(script) as file:
            source = file.read()
        place = str(path.absolute())
        main = ModuleType("__main__")
        main.__dict__.update(
            __file__=place,
            __loader__=importlib.machinery.SourceFileLoader("__main__", place),
            __cached__=None,
        )
        folder = str(path.resolve().parent)
        return cls(script, main, lambda: compile(source, place, "exec"), folder)

    @classmethod
    def of_module(cls, name: str) -> "Program":
        """What `python -m name` would run."""
        _set_first_path(os.getcwd())
        spec = _find(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = _find(f"{name}.__main__")
        loader: Any = None if spec is None else spec.loader
        if spec is None or spec.origin is None or not hasattr(loader, "get_code"):
            raise InvalidArgument(
                f"-m needs a module that Python can run, and finds none called {name!r}: check "
                "the name and the folder"
            )
        main = ModuleType("__main__")
        main.__dict__.update(
            __file__=spec.origin,
            __loader__=loader,
            __cached__=spec.cached,
            __package__=spec.parent,
            __spec__=spec,
        )
        found = spec.name
        return cls(spec.origin, main, lambda: loader.get_code(found), os.getcwd())

    @classmethod
    def of_launcher(cls, name: str) -> "Program":
        """What a command that starts other processes would run."""
        try:
            return cls.of_module(LAUNCHERS[name])
        except (InvalidArgument, ImportError):
            raise InvalidArgument(
                f"there is no file {name!r}, and the launcher of this name is not installed: "
                "install it, or name a script"
            ) from None

    def run(self, words: list[str]) -> NoReturn:
        """Run it with these arguments; ends the process as Python would."""
        main = self._main
        sys.argv[:] = [self._name, *words]
        _set_first_path(self._folder)
        # For good, not for the time of the call: processes that the script spawns, functions that
        # it pickles and threads that outlive it look for their module here.
        sys.modules["__main__"] = main
        main.__dict__["__builtins__"] = sys.modules["builtins"]
        try:
            exec(self._code(), main.__dict__)
        except (SystemExit, BudgetUnreachable):
            # The second is ours to explain: one sentence, and no traceback through the script.
            raise
        except BaseException as error:
            self._interrupted = isinstance(error, KeyboardInterrupt)
            _show(error, main)
            sys.exit(1)
        sys.exit(0)

    def _end(self) -> None:
        if self._interrupted:
            # Shells and launchers tell from the signal that a run was interrupted.
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)


def _find(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        # Packages around the module are imported: one of theirs may be missing instead.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
    except (AttributeError, ValueError):
        pass
    return None


def _set_first_path(folder: str) -> None:
    """Python puts the script's folder first, unless it was told not to."""
    if not sys.flags.safe_path and sys.path:
        sys.path[0] = folder


def _show(error: BaseException, main: ModuleType) -> None:
    """Print the traceback as Python would, from the script on."""
    known: set[int] = set()
    chained: BaseException | None = error
    while chained is not None and id(chained) not in known:
        known.add(id(chained))
        chained.__traceback__ = _without_us(chained.__traceback__, main)
        chained = chained.__cause__ or chained.__context__
    sys.excepthook(type(error), error, error.__traceback__)


def _without_us(trace: TracebackType | None, main: ModuleType) -> TracebackType | None:
    """Leave out what called the script, and our hooks inside of it."""
    began, frames = False, list[TracebackType]()
    first = trace
    while trace is not None:
        began = began or trace.tb_frame.f_globals is main.__dict__
        if not trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            frames.append(trace)
        trace = trace.tb_next
    if began:
        while frames[0].tb_frame.f_globals is not main.__dict__:
            del frames[0]
    elif first is not None and first.tb_frame.f_code is Program.run.__code__:
        # It never began: a syntax error, which tells its own place.
        return None
    following: TracebackType | None = None
    for frame in reversed(frames):
        following = TracebackType(following, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return following


def _say_missing(script: str) -> str:
    if script in {"python", "python3"}:
        return f"{script!r} is not needed here: write 'elbowroom run script.py'"
    if script in {"srun", "mpirun", "mpiexec"}:
        return (
            f"{script!r} starts processes, and comes first: write '{script} ... elbowroom run "
            "script.py'"
        )
    if Path(script).is_dir():
        return f"a script is expected, and {script} is a folder: name a file in it, or use -m"
    return f"a script is expected, and there is no file {script!r}: check the name and the folder"
