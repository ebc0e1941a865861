"""The times of one pass: the network's, and ours."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elbowroom.keep.activations.clock import now_s
from elbowroom.keep.activations.sites import Form, Site

if TYPE_CHECKING:
    from elbowroom.keep.activations.entries import Entry

# What torch takes to call us and our own code cannot see: for a function or a saved tensor.
_CALL_S = 3e-6


@dataclass(slots=True, eq=False)
class Held:
    """A tensor that found its form in this pass, and what that took."""

    site: Site
    form: Form
    """As it was decided; tensors that follow from others are found out later."""

    storage: int
    """Views of one storage share a number."""

    plain_bytes: int
    storage_bytes: int
    method: str = "keep"
    held_bytes: int = 0
    encode_s: float = 0.0
    decode_s: float = 0.0
    bound: float = 0.0
    is_small: bool = False

    @property
    def seconds(self) -> float:
        """There and back."""
        return self.encode_s + self.decode_s

    @property
    def is_left(self) -> bool:
        """Whether it is as it was for lack of time."""
        return self.method == "keep" and self.form in (Form.KEEP, Form.PLAIN)


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """Of a pass that is over."""

    plain_s: float
    ours_s: float
    fixed_s: float
    """Of ours: what it takes whatever form the tensors have."""

    forms_s: float


@dataclass(slots=True, eq=False)
class Lap:
    """A pass from the begin of forward to the last tensor that its backward has read."""

    trials: float = float("inf")
    """Share of the forward so far that trials of codecs may take."""

    start: float = field(default_factory=now_s)
    forward_end: float = 0.0
    backward_start: float = 0.0
    backward_end: float = 0.0
    spent_s: float = 0.0
    """By our own code, forms included."""

    tried_s: float = 0.0
    """Of these: for trials and looks, which are not part of every pass."""

    within_s: float = 0.0
    """Of trials: for the tensor that is being encoded."""

    calls: int = 0
    held: list[Held] = field(default_factory=list[Held])
    saved_bytes: int = 0
    kept_bytes: int = 0
    """Of all saved tensors, small ones too."""

    records: int = 0
    records_bytes: int = 0
    gained_bytes: int = 0
    """So far: records of what is not the user's own, its bytes plainly, and those gained."""

    is_left: bool = False
    """Whether its forward went on plainly, so that its times tell nothing."""

    @property
    def is_whole(self) -> bool:
        """Whether its backward has begun."""
        return self.backward_end > 0 and not self.is_left

    @property
    def ours_s(self) -> float:
        """What the pass has taken more than plain."""
        return self.spent_s + _CALL_S * self.calls

    @property
    def plain_s(self) -> float:
        """What the network itself takes; without what the user does between the passes.

        Forward and backward are counted, the optimizer and the loader are not: a slow loader buys
        no time for us.
        """
        backward_s = self.backward_end - self.backward_start
        return max(0.0, self.forward_end - self.start + backward_s - self.ours_s)

    def hold(self, entry: "Entry", form: Form, *, is_small: bool) -> None:
        """An entry has found its form."""
        assert entry.payload is not None
        entry.held = Held(
            site=entry.site,
            form=form,
            storage=entry.storage.cdata if entry.storage is not None else id(entry),
            plain_bytes=entry.nbytes_plain,
            storage_bytes=max(entry.storage_bytes, entry.nbytes_plain),
            method=entry.payload.method,
            held_bytes=entry.payload.nbytes,
            encode_s=entry.encode_s - self.within_s,
            bound=entry.bound,
            is_small=is_small,
        )
        self.held.append(entry.held)
        if entry.held.method != "keep":
            self.gained_bytes += entry.held.plain_bytes - entry.held.held_bytes
        self.within_s = 0.0
        self.calls += 1  # when it goes

    def may_try(self) -> bool:
        """Whether there is time to compare codecs."""
        return self.tried_s <= self.trials * self.so_far_s()

    def note_trial(self, seconds: float) -> None:
        """Codecs were compared."""
        self.tried_s += seconds
        self.within_s += seconds

    def note_look(self, seconds: float) -> None:
        """Something was looked at that is not in every pass."""
        self.spent_s += seconds
        self.tried_s += seconds

    def begin_forward(self) -> None:
        """The pass is open."""
        self.spent_s += now_s() - self.start

    def end_forward(self, saved_bytes: int, kept_bytes: int) -> None:
        """The network has returned."""
        self.forward_end = now_s()
        self.saved_bytes, self.kept_bytes = saved_bytes, kept_bytes

    def note_read(self, start: float) -> None:
        """Backward has asked for a tensor at this time, and has it now."""
        now = now_s()
        if self.backward_start == 0:
            self.backward_start = start
        self.calls += 1
        self.backward_end = now
        self.spent_s += now - start

    def note_gradient(self, start: float) -> None:
        """Backward has come to a parameter at this time, and we have looked at its gradient."""
        if self.backward_start > 0:
            self.backward_end = now_s()
            self.spent_s += self.backward_end - start
            self.calls += 1

    def times(self) -> "Times":
        """What is worth remembering of it."""
        forms_s = sum(held.seconds for held in self.held)
        fixed_s = max(0.0, self.ours_s - self.tried_s - forms_s)
        return Times(plain_s=self.plain_s, ours_s=self.ours_s, fixed_s=fixed_s, forms_s=forms_s)

    def so_far_s(self) -> float:
        """Of the forward that is under way, without ours."""
        return max(0.0, now_s() - self.start - self.ours_s)
