"""What all tests share: a reproducible hypothesis profile, instruction sets, one thread."""

import importlib
import signal
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import settings

from elbowroom import _native

# Fixed examples: a red run on one machine is a red run on every machine. The
# soak test is where fresh examples are drawn.
settings.register_profile("elbowroom", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("elbowroom")

# A shell's background jobs ignore interrupts, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=_native.isa_levels())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once at every instruction set that this processor has."""
    before = _native.isa()
    _native.set_isa(request.param)
    yield request.param
    _native.set_isa(before)


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    """Keep torch to one thread: the networks are tiny and the machine may be busy."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rooms hold is not to depend on how busy the machine is, unless a test says so."""
    for module, name in (
        ("elbowroom.keep.activations.room", "Activations"),
        ("elbowroom.keep.activations.anywhere", "Terms"),
        ("elbowroom.integrations.orders", "Orders"),
    ):
        options = getattr(importlib.import_module(module), name).__init__.__kwdefaults__
        monkeypatch.setitem(options, "overhead", None)


# Modules whose tests start many processes or take many seconds: first, so that no worker is left
# with one of them at the end.
_SLOW = (
    "activations/test_budget",
    "activations/test_convolutions",
    "checkpoint/test_ranks",
    "activations/test_distributed",
    "cli/test_run",
    "loops/test_peak",
    "activations/test_compiled",
    "study/test_campaign",
    "checkpoint/test_signals",
    "reference/test_reference",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slowest modules first, in this order; all others stay where they are."""
    places = {name: place for place, name in enumerate(_SLOW)}

    def place_of(item: pytest.Item) -> int:
        name = "/".join(item.path.with_suffix("").parts[-2:])
        return places.get(name, len(places))

    items.sort(key=place_of)


@pytest.fixture(autouse=True)
def _no_hook_is_left() -> Iterator[None]:
    """A hook on all modules that a test leaves behind would spoil the tests after it."""
    yield
    module = sys.modules.get("torch.nn.modules.module")
    if module is None:
        return
    tables = (module._global_forward_hooks, module._global_forward_pre_hooks)
    left = [hook for table in tables for hook in table.values()]
    for table in tables:
        table.clear()
    assert not left


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Every test begins with the handlers of a fresh process, whatever another has left."""
    is_main = threading.current_thread() is threading.main_thread()
    for number in (signal.SIGTERM, signal.SIGUSR1) if is_main else ():
        signal.signal(number, signal.SIG_DFL)
    yield
