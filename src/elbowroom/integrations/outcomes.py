"""What became of the modules that were trained, in one process or in several, as sentences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elbowroom.keep.activations.anywhere import Account

BLIND = " (not predicted for compiled parts)"

# A peak that exceeds another one by less is not worth two numbers.
_APART = 1.03


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One module in one process."""

    name: str
    passes: int
    step: int
    """The pass that bytes are told of."""

    saved_bytes: int
    kept_bytes: int
    disk_bytes: int
    predicted_error: float
    """Largest of a pass; 0 where nothing was predicted."""

    measured_error: float
    """Largest that the meter has read; 0 where it has read nothing."""

    unpredicted: int
    """Passes that rounded something before an error could be predicted."""

    is_blind: bool
    """Whether some of it was rounded by compiled graphs whose errors are not known yet."""

    coding_s: float
    peak_bytes: int
    """Of the process, from its start on."""

    training_bytes: int
    """Peak of the process while it trained, as far as that is known; 0 where it is not."""

    @classmethod
    def of(cls, account: "Account", training_bytes: int = 0) -> "Outcome":
        """What an account tells."""
        ledger = account.ledger
        return cls(
            name=account.name,
            passes=account.passes,
            step=ledger.step or account.passes,
            saved_bytes=ledger.saved_bytes,
            kept_bytes=ledger.kept_bytes,
            disk_bytes=sum(row.saved_bytes for row in ledger.rows if row.method == "offload"),
            predicted_error=account.gradient_error,
            measured_error=account.measured_error,
            unpredicted=account.unpredicted,
            is_blind=any(
                "compiled" in row.readers and row.bound > 0 and row.gradient_error == 0
                for row in ledger.rows
            ),
            coding_s=account.encode_s + account.decode_s,
            peak_bytes=account.peak_bytes,
            training_bytes=max(training_bytes, account.pass_peak_bytes),
        )


def sentence_of(outcomes: Sequence[Outcome], limit_bytes: int | None = None) -> str:
    """One module, in all processes that have trained it; in rich's markup."""
    from elbowroom.keep.activations.ledger import say_bytes

    first = outcomes[0]
    ratios = [one.saved_bytes / one.kept_bytes if one.kept_bytes else 1.0 for one in outcomes]
    disk = f", {say_bytes(first.disk_bytes)} of it on disk," if first.disk_bytes else ""
    which = "the last" if first.step == first.passes else f"number {first.step}"
    where = f", in {len(outcomes)} processes" if len(outcomes) > 1 else ""
    line = (
        f"[bold]elbowroom:[/] {first.name}{where}: {say_bytes(first.saved_bytes)} saved{disk} → "
        f"{say_bytes(first.kept_bytes)} kept in memory "
        f"([bold]{_span(ratios, lambda ratio: f'{ratio:.1f}x')}[/]) in {which} "
        f"of {_span([one.passes for one in outcomes], str)} passes, {_error_of(outcomes)}, "
        f"{max(one.coding_s for one in outcomes):.1f} s in encoding and decoding"
    )
    peak_bytes = max(one.peak_bytes for one in outcomes)
    if not peak_bytes:
        return line
    training_bytes = max(one.training_bytes for one in outcomes)
    whose = "of the process" if len(outcomes) == 1 else "of a process"
    line += f", peak {whose} {_span([one.peak_bytes for one in outcomes], say_bytes)}"
    if training_bytes and peak_bytes > _APART * training_bytes:
        line += f" (about {say_bytes(training_bytes)} while training)"
    if limit_bytes is not None and peak_bytes > limit_bytes:
        line += f", [bold]above the budget of {say_bytes(limit_bytes)}[/]"
        if 0 < training_bytes <= limit_bytes:
            line += " outside of training"
    return line


def breach_of(outcomes: Sequence[Outcome], limit_bytes: int) -> str | None:
    """Why a budget was not kept to while modules were trained; None where it was."""
    from elbowroom.keep.activations.ledger import say_bytes

    if not outcomes:
        return (
            f"the budget of {say_bytes(limit_bytes)} was not kept to: no module was trained where "
            "it could be watched, so that nothing was compressed"
        )
    taken = max(one.training_bytes or one.peak_bytes for one in outcomes)
    if taken <= limit_bytes:
        return None
    return (
        f"the budget of {say_bytes(limit_bytes)} was exceeded: the process took "
        f"{say_bytes(taken)} while it trained"
    )


def _error_of(outcomes: Sequence[Outcome]) -> str:
    """The worst of all processes; the meter is believed where it has read more."""
    predicted = max(one.predicted_error for one in outcomes)
    measured = max(one.measured_error for one in outcomes)
    blind = BLIND if any(one.is_blind for one in outcomes) else ""
    seen = f", measured {measured:.2g}" if measured else ""
    if predicted and f"{measured:.2g}" != f"{predicted:.2g}" and measured > predicted:
        return (
            f"gradient error {predicted:.2g} (predicted) to {measured:.2g} (measured) of its "
            f"variance{blind}"
        )
    if predicted:
        return f"gradient error at most {predicted:.2g} of its variance by prediction{seen}{blind}"
    unpredicted = max(one.unpredicted for one in outcomes)
    if not unpredicted:
        return "gradient exact"
    seen = f"{seen} of its variance" if seen else ""
    if blind:
        return f"gradient error within tight bounds{seen}{blind}"
    passes = max(one.passes for one in outcomes)
    if unpredicted < passes:
        return f"gradient exact but for {unpredicted} of {passes} passes, not predicted yet{seen}"
    return f"gradient error not predicted yet{seen}"


def _span(values: Sequence[Any], say: Callable[[Any], str]) -> str:
    least, most = say(min(values)), say(max(values))
    return least if least == most else f"{least} to {most}"
