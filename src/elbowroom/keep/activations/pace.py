"""Time is a budget too: what steps take more than plain, and which forms that pays for.

A step's plain time is what its forward and backward took, without what our own code took: encoding
and decoding, and the Python between torch and us. Of the last passes a fast one counts, so that a
machine that stutters grants no more time than it takes.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

from torch import Tensor, nn

from elbowroom.keep.activations.choice_of_forms import Option, choose
from elbowroom.keep.activations.clock import now_s
from elbowroom.keep.activations.laps import Held, Lap, Times
from elbowroom.keep.activations.sites import Form, Site
from elbowroom.keep.activations.trees import tensors_in

# Of the time that was granted, so much is planned for: what is measured of ours is not all of it.
_PLANNED = 0.8

# Passes that are remembered, and how many of them may be faster than what counts as plain.
_REMEMBERED, _FASTER = 15, 0.3

# Passes after which there is a plan for the next one; afterwards once in so many.
_EARLY, _EVERY = 8, 8

# A plan that holds so many more bytes than the best one is kept: forms are not to flicker.
_SPARE = 1.04

# Of forward and backward together, forward is a third, and of ours it has half.
_STEPS, _WAYS = 3.0, 2.0

# Of a forward so far, the most for comparing codecs.
_TRIALS = 0.02

# As long as nothing was measured: seconds for a byte there and back, with a call's worth of bytes
# on top, and bytes held for each.
_CALL_BYTES = 1 << 17
_SECONDS = {Form.BLOCK: 0.5e-9, Form.DENSE: 1.2e-9}
_HELD = 0.2

# Where Python of ours takes more than the first share of a plain pass and saves less than a tenth,
# it steps aside; where it takes more than what is granted in any case. Then it looks again when
# that takes no more than the last share of the time since.
_MUCH, _LITTLE_SAVED, _AGAIN = 0.05, 0.1, 0.02

# After so many tensors a forward is weighed, where they are smaller than this on average: a record
# takes so much memory, and small tensors are not worth more than this share of the forward so far.
_WEIGHED, _SMALL_BYTES, _RECORD_BYTES, _DEAR = 96, 1 << 16, 1 << 13, 0.5

# So many times what a pass took in bytes makes it another one.
_LARGER = 2.0


class Pace:
    """Asked before each pass and for each tensor of it; one for each room."""

    def __init__(self, overhead: float | None) -> None:
        self.overhead = overhead
        self._lock = threading.Lock()
        self._open: deque[Lap] = deque(maxlen=8)
        self._times: deque[Times] = deque(maxlen=_REMEMBERED)
        self._speeds: dict[Form, tuple[float, float]] = {}
        self._forms: dict[Site, Form] = {}
        self._last = Lap()
        self._count = 0
        self._aside: _Aside | None = None

    # Of one pass.

    def start(self, *, is_trial: bool = False) -> Lap:
        """The clock of a pass that begins; a trial says nothing about others."""
        lap = Lap() if self.overhead is None else Lap(trials=_TRIALS)
        if not is_trial:
            self._last = lap
            with self._lock:
                self._open.append(lap)
        return lap

    @contextmanager
    def gradient_read(self) -> Iterator[None]:
        """While it lasts, we read the gradient of a parameter that backward has come to."""
        start = now_s()
        yield
        self._last.note_gradient(start)

    def form_of(self, lap: Lap, site: Site, plain_bytes: int) -> Form:
        """What to do with a tensor of this place."""
        if self.overhead is None:
            return Form.ENCODE
        form = self._forms.get(site)
        if form is not None:
            return form
        # Nothing is known of it: as much is encoded as the forward so far has time for.
        soon_s = lap.ours_s + 0.5 * self._estimate_s(Form.BLOCK, plain_bytes)
        granted_s = _PLANNED * self.overhead * _STEPS / _WAYS * lap.so_far_s()
        return Form.BLOCK if soon_s <= granted_s else Form.KEEP

    def renew(self) -> None:
        """Bounds are new: what had to be kept is tried again, and what is kept has none."""
        with self._lock:
            for site, form in list(self._forms.items()):
                if form is Form.PLAIN:
                    site.bound = None
                if site.cheap_share == 1:
                    site.cheap_share = None
                    del self._forms[site]

    # From pass to pass.

    @property
    def plain_s(self) -> float | None:
        """What a pass takes without us; None before one was measured."""
        times = sorted(each.plain_s for each in self._times)
        return times[int(_FASTER * len(times))] if times else None

    @property
    def measured(self) -> float | None:
        """What the last passes took more than plain, as a share of it."""
        if self._aside is not None:
            return 0.0
        shares = [each.ours_s / each.plain_s for each in list(self._times)[-5:]]
        return median(shares) if shares else None

    def spare_s(self) -> float | None:
        """What looks may take in the next pass beside its forms; None: as long as they like."""
        if self.overhead is None:
            return None
        plain_s = self.plain_s or 0.0
        usual_s = median([each.fixed_s + each.forms_s for each in self._times] or [0.0])
        return max(0.0, self.overhead * plain_s - usual_s)

    def next_pass(self, report: Callable[[str], None]) -> None:
        """Take what was measured of passes that have had their backward, and plan the next."""
        with self._lock:
            whole = [lap for lap in self._open if lap.is_whole and lap.plain_s > 0]
            for lap in whole:
                self._open.remove(lap)
                self._take(lap)
            if self.overhead is None or not whole:
                return
            self._count += len(whole)
            was_aside = self._aside is not None
            if self._steps_aside(whole[-1]):
                if not was_aside:
                    report(self._why_aside(whole[-1]))
                return
            if self._count <= _EARLY or self._count % _EVERY < len(whole) or self._is_slow():
                self._plan(whole[-1])

    def _take(self, lap: Lap) -> None:
        self._times.append(lap.times())
        for held in lap.held:
            self._learn(held)

    def _learn(self, held: Held) -> None:
        site = held.site
        if held.method == "encode" and held.bound > 0:
            form = Form.DENSE if held.is_small else Form.BLOCK
            share = held.held_bytes / max(1, held.plain_bytes)
            # Of the fast codec, whichever it was.
            site.block_share = share * site.gain if held.is_small and site.gain else share
            known_s, known = self._speeds.get(form, (0.0, 0.0))
            worked = held.plain_bytes + _CALL_BYTES
            self._speeds[form] = 0.9 * known_s + held.seconds, 0.9 * known + worked
            site.cheap_share = None
        elif held.method == "offload" or held.is_left:
            return
        else:
            # A mask, or what follows from others; also what had to be kept, whatever was tried.
            form = Form.KEEP
            site.cheap_share = held.held_bytes / max(1, held.plain_bytes)
        each = held.seconds / max(1, held.plain_bytes)
        before = site.seconds_each.get(form)
        site.seconds_each[form] = each if before is None else (before + each) / 2

    def _estimate_s(self, form: Form, plain_bytes: int) -> float:
        seconds, worked = self._speeds.get(form, (0.0, 0.0))
        each = seconds / worked if worked > 0 else _SECONDS[form]
        return each * (plain_bytes + _CALL_BYTES)

    def _is_slow(self) -> bool:
        """Whether the last three passes all took too long."""
        last = list(self._times)[-3:]
        most = self.overhead or 0.0
        return len(last) == 3 and all(each.ours_s > most * each.plain_s for each in last)

    def _plan(self, lap: Lap) -> None:
        assert self.overhead is not None
        plain_s = self.plain_s or 0.0
        fixed_s = median(each.fixed_s for each in self._times)
        seconds = max(0.0, _PLANNED * self.overhead * plain_s - fixed_s)
        groups: dict[int, list[Held]] = {}
        for held in lap.held:
            groups.setdefault(held.storage, []).append(held)
        options = [self._options(group) for group in groups.values()]
        found = choose(options, seconds)
        present = [self._present(each) for each in options]
        if all(present):
            taken = [option for option in present if option is not None]
            is_within = sum(option.seconds for option in taken) <= seconds
            held_bytes = sum(option.held_bytes for option in found)
            if is_within and sum(o.held_bytes for o in taken) <= _SPARE * held_bytes:
                return
        for option in found:
            self._forms.update(option.forms)

    def _present(self, options: Sequence[Option]) -> Option | None:
        """The one that was planned before."""
        for option in options:
            if all(self._forms.get(site) is form for site, form in option.forms):
                return option
        return None

    def _options(self, group: list[Held]) -> list[Option]:
        """Tensors that share a storage: one that is kept keeps all of it."""
        storage_bytes = max(held.storage_bytes for held in group)
        ways = [[self._option(held, form) for held in group] for form in (Form.BLOCK, Form.DENSE)]
        whole = Option(
            forms=tuple((held.site, Form.PLAIN) for held in group),
            seconds=0.0,
            held_bytes=storage_bytes,
        )
        return [
            whole,
            *(
                Option(
                    forms=tuple(form for each in way for form in each.forms),
                    seconds=sum(each.seconds for each in way),
                    held_bytes=sum(each.held_bytes for each in way),
                )
                for way in ways
            ),
        ]

    def _option(self, held: Held, form: Form) -> Option:
        site, plain = held.site, held.plain_bytes
        if site.cheap_share is not None:
            seconds = site.seconds_each.get(Form.KEEP, 0.0) * plain
            return Option(
                forms=((site, Form.KEEP),), seconds=seconds, held_bytes=site.cheap_share * plain
            )
        share = _HELD if site.block_share is None else site.block_share
        form = Form.DENSE if form is Form.DENSE and site.gain > 1 else Form.BLOCK
        known = site.seconds_each.get(form)
        return Option(
            forms=((site, form),),
            seconds=self._estimate_s(form, plain) if known is None else known * plain,
            held_bytes=share * plain / (site.gain if form is Form.DENSE else 1.0),
        )

    # Stepping aside.

    def pays(self, lap: Lap) -> bool:
        """Whether the rest of a forward is worth our part, as far as its first tensors tell."""
        count = lap.records
        if self.overhead is None or count < _WEIGHED or lap.records_bytes >= count * _SMALL_BYTES:
            return True
        if lap.gained_bytes < count * _RECORD_BYTES:
            return False
        return lap.ours_s <= max(_DEAR, 2 * self.overhead) * lap.so_far_s()

    def leave(self, lap: Lap, report: Callable[[str], None]) -> None:
        """A forward goes on plainly, and so do passes to come."""
        with self._lock:
            if self._aside is None:
                report(
                    "passes are left alone: their tensors are many and small, so that "
                    f"{lap.records} of them, {lap.records_bytes / 1e6:.1f} MB, took our part "
                    f"{1e3 * lap.ours_s:.0f} ms, for {lap.gained_bytes / 1e6:.1f} MB less"
                )
            self._aside = _Aside(lap.ours_s, self._aside.plain_bytes if self._aside else 0)

    @property
    def is_aside(self) -> bool:
        """Whether the next pass is plain."""
        return self._aside is not None and not self._aside.is_over

    def pass_by(self) -> "_Aside":
        """The clock of a pass that is plain."""
        assert self._aside is not None
        return self._aside

    def _steps_aside(self, lap: Lap) -> bool:
        """Whether our Python takes more than it is worth, or more than is granted."""
        assert self.overhead is not None
        python_s = min(each.fixed_s for each in self._times)
        share = python_s / max(1e-9, self.plain_s or 0.0)
        saves_little = lap.kept_bytes > (1 - _LITTLE_SAVED) * lap.saved_bytes
        is_sure = len(self._times) > 1 or share > 1
        if not is_sure or share <= (_MUCH if saves_little else max(_MUCH, self.overhead)):
            self._aside = None
            return False
        self._aside = _Aside(lap.ours_s, lap.saved_bytes)
        return True

    def _why_aside(self, lap: Lap) -> str:
        share = min(each.fixed_s for each in self._times) / (self.plain_s or 1.0)
        gain = max(0.0, 1 - lap.kept_bytes / max(1, lap.saved_bytes))
        return (
            f"passes are left alone: our part would take {100 * share:.0f} % more time and save "
            f"{100 * gain:.0f} % of the bytes; overhead=None takes the time and saves more"
        )


class _Aside:
    """While passes are left alone: only what tells that it is time to look again."""

    def __init__(self, price_s: float, plain_bytes: int) -> None:
        self._price_s = price_s
        self.plain_bytes = plain_bytes
        """What the last whole pass would have saved plainly; 0 where there was none."""

        self._spent_s = 0.0
        self._start = 0.0
        self._bytes = 0
        self.is_over = False

    def open(self, model: nn.Module) -> ExitStack:
        """A forward begins, and is over with the stack."""
        stack = ExitStack()
        stack.callback(self._end)
        stack.callback(model.register_forward_pre_hook(self._see, with_kwargs=True).remove)
        self._start = now_s()
        return stack

    def _end(self) -> None:
        """It is over."""
        self._spent_s += now_s() - self._start
        # Where it is mistaken for a while, that has cost little.
        self.is_over |= self._price_s <= _AGAIN * self._spent_s

    def _see(self, module: Any, args: Any, kwargs: Any = None) -> None:
        """A hook for the network."""
        self.note_arguments(tensors_in((args, kwargs)))

    def note_arguments(self, tensors: Iterable[Tensor]) -> None:
        """What the network is given: far larger ones make it another pass."""
        nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self.is_over |= 0 < _LARGER * self._bytes <= nbytes
        self._bytes = max(self._bytes, nbytes)
