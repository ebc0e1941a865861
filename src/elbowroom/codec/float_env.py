"""The floating-point environment that the codec's Python calculates in.

A host may flush denormals, as torch.set_flush_denormal does, or round otherwise than to nearest.
Neither what is written nor what is read may depend on that. The kernels see to it themselves
(native/common/float_env.hpp); this is for the arithmetic of Python and numpy around them.
"""

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

from elbowroom.errors import BackendUnavailable

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_SMALLEST = sys.float_info.min
_ONE = 1.0
_TINY = 2.0**-60

# FE_DFL_ENV of the C libraries of Linux; an environment takes 32 bytes on x86-64, fewer on ARM.
_DEFAULT = ctypes.c_void_p(-1)
_ENVIRONMENT_BYTES = 256


def is_default() -> bool:
    """Whether denormals are kept and results rounded to nearest, on this thread."""
    return _SMALLEST * 0.5 > 0.0 and _ONE + _TINY == _ONE == _ONE - _TINY


def in_default_float_env(
    function: Callable[_Arguments, _Result],
) -> Callable[_Arguments, _Result]:
    """Make a function calculate in the default environment, and leave the caller's as it was.

    Functions that are `opaque` call themselves again instead: a compiled region would look into
    a wrapper.
    """

    @wraps(function)
    def guarded(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if is_default():
            return function(*args, **kwargs)
        with default_float_env():
            return function(*args, **kwargs)

    return guarded


@contextmanager
def default_float_env() -> Iterator[None]:
    """Set the default environment on this thread for a while."""
    library = _library()
    saved = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
    if library is None or library.fegetenv(saved) != 0:
        raise _refusal()
    try:
        if library.fesetenv(_DEFAULT) != 0 or not is_default():
            raise _refusal()
        yield
    finally:
        library.fesetenv(saved)


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    """The library with the functions of <fenv.h>, if this system has one."""
    for name in (None, "libm.so.6"):
        try:
            library = ctypes.CDLL(name)
            for function in (library.fegetenv, library.fesetenv):
                function.argtypes = [ctypes.c_void_p]
        except (OSError, AttributeError):
            continue
        return library
    return None


def _refusal() -> BackendUnavailable:
    return BackendUnavailable(
        "this thread flushes denormals or does not round to nearest, and this system offers no way "
        "to change that for a call: set it back first, such as by torch.set_flush_denormal(False)"
    )
