"""Every exception that Elbowroom raises on purpose."""


class ElbowroomError(Exception):
    """Base of all errors raised by Elbowroom; its text is one sentence for the user."""


class InvalidArgument(ElbowroomError, ValueError):
    """An argument is outside what the function accepts."""


class CorruptData(ElbowroomError):
    """Stored bytes contradict themselves: damaged, truncated or forged."""


class IncompatibleFormat(ElbowroomError):
    """Stored bytes are intact, but of a format or version that this release cannot read."""


class BudgetUnreachable(ElbowroomError):
    """A budget cannot be met; the text names the nearest figure that can."""


class BackendUnavailable(ElbowroomError, RuntimeError):
    """The compiled module, device or optional package that was asked for is not there."""


class MissingData(ElbowroomError):
    """A data set that was asked for is not on this machine; the text says how to get it."""


class StoreUnreachable(ElbowroomError, OSError):
    """What lies elsewhere could not be reached: nothing is known about whether it is whole."""
