"""Runs many loops of one kind, and remembers from one to the next what was found."""

from collections.abc import Callable
from typing import Any

from elbowroom.errors import InvalidArgument
from elbowroom.keep import Loop
from elbowroom.keep.loops.loop import Store


class Runner:
    """Called as `er.loop` is, with the choices made beforehand.

    The medium of an inversion changes from call to call, and with it the step, while the bound of
    an encoded history that the probe has found stays right.
    """

    def __init__(
        self,
        *,
        memory: str | float | None = None,
        slots: int | tuple[int, int] | None = None,
        store: Store | None = None,
        tolerance: float = 0.0,
        probe_every: int = 8,
    ) -> None:
        """`probe_every`: of how many loops with an encoded history one is measured; 0 for none."""
        if probe_every < 0:
            raise InvalidArgument(f"probe_every must be a number from 0 on, got {probe_every}")
        self._choices: dict[str, Any] = {
            "memory": memory,
            "slots": slots,
            "store": store,
            "tolerance": tolerance,
        }
        self._probe_every, self._calls = probe_every, 0
        self.probed: list[float] = []
        """Errors of gradients that were measured, one a probe."""
        self.last: Loop | None = None
        """The loop that was run last: its `plan` and `engine` say what it has kept."""
        self._measured: Loop | None = None
        self._relative: float | None = None

    def __call__(
        self,
        step: Callable[..., Any],
        state: Any,
        steps: int | None = None,
        *,
        inputs: Any = None,
        outputs: bool = False,
        parameters: Any = (),
    ) -> Any:
        """Run one."""
        self._learn()
        is_measured = bool(self._probe_every) and self._calls % self._probe_every == 0
        self._calls += 1
        made = Loop(
            step,
            parameters=parameters,
            outputs=outputs,
            probe_every=int(is_measured),
            **self._choices,
        )
        if self._relative is not None:
            made.relative = self._relative
        self.last = made
        if is_measured:
            self._measured = made
        return made(state, steps, inputs=inputs)

    def _learn(self) -> None:
        """What a probe finds is known after the backward, which nobody tells of."""
        if self._measured is not None and self._measured.probed:
            self.probed += [one.error for one in self._measured.probed]
            self._relative = self._measured.relative
            self._measured = None
