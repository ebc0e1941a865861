"""The sections of the page: headings, figures, tables and what they say, all escaped."""

from collections.abc import Callable, Mapping, Sequence

from elbowroom.report.elements import chart, scroll
from elbowroom.report.figures import Figures, stacks_of
from elbowroom.report.listing import make_ledger
from elbowroom.report.model import Contender, Run
from elbowroom.report.timeline import Stack
from elbowroom.report.wording import (
    escape,
    say_bytes,
    say_excess,
    say_number,
    say_ratio,
    say_seconds,
    shorten,
)

_STATES = {
    "running": "still running",
    "finished": "finished",
    "stopped": "stopped by time",
    "interrupted": "interrupted",
    "failed": "failed",
}


_BROKEN = ("interrupted", "failed")

# Keys that records have, in words.
_WORDS = {"isa": "instruction set"}


def make_sections(run: Run, figures: Figures, left: Sequence[str], *, most_rows: int) -> str:
    """Return the body of the page; the ledgers share so many rows."""
    rooms = [contender for contender in run.contenders if contender.rows]
    share = most_rows // max(1, len(rooms))
    parts = [
        _header(run),
        _cards(run),
        _memory(run, figures),
        _comparison(run),
        _attempts(run),
        _curves(figures),
        _errors(run, figures),
        _times(run, figures),
        *(make_ledger(room, number, share) for number, room in enumerate(rooms)),
        _machine(run),
        _left_out(left),
        _footer(),
    ]
    return "\n".join(part for part in parts if part)


def _header(run: Run) -> str:
    state = _STATES[run.state]
    done = ", ".join(
        f"{escape(c.label)}: {len(c.steps)}"
        + (f" of {c.planned_steps} steps" if c.planned_steps else " steps")
        for c in run.contenders
    )
    notes = [(run.state, run.note), *((c.state, f"{c.label}: {c.note}") for c in run.contenders)]
    told = "".join(
        f'<p class="{"bad" if state in _BROKEN else "caption"}">{escape(note)}</p>'
        for state, note in notes
        if note and not note.endswith(": ")
    )
    about = f'<p class="lead">{escape(run.about)}</p>' if run.about else ""
    return (
        f'<header><h1>{escape(run.title)} <span class="badge {run.state}">{state}</span></h1>'
        f'{about}<p class="caption">{done or "No step has been recorded yet."}</p>{told}'
        "<noscript><p>The charts need JavaScript; every table is here without it.</p></noscript>"
        "</header>"
    )


def _pair(run: Run) -> tuple[Contender, Contender] | None:
    """What is compared: a plain training, and one with a room."""
    plain = next((c for c in run.contenders if not c.rows), None)
    room = next((c for c in run.contenders if c.rows), None)
    return None if plain is None or room is None else (plain, room)


def _cards(run: Run) -> str:
    cards: list[tuple[str, str]] = []
    pair = _pair(run)
    room = pair[1] if pair else next((c for c in run.contenders if c.rows), None)
    if pair and pair[0].memory and pair[1].memory:
        before, after = (c.memory.above_bytes for c in pair if c.memory)
        share = f", {after / before:.0%} of plain" if before else ""
        cards.append((say_bytes(after), f"peak memory above the start{share}"))
    elif room and room.memory:
        cards.append((say_bytes(room.memory.above_bytes), "peak memory above the start"))
    if room and room.saved_bytes and room.kept_bytes:
        ratio = room.saved_bytes / room.kept_bytes
        told = (
            f"{say_bytes(room.saved_bytes)} saved for backward, {say_bytes(room.kept_bytes)} kept, "
            f"in step {room.steps[-1].step}"
        )
        cards.append((f"{say_ratio(ratio)} fewer", told))
    if room and room.gradient_error is not None:
        told = "of the gradient's own variance added, predicted"
        if room.measured_error is not None:
            told += f"; measured {say_number(room.measured_error)}"
        if room.tolerance is not None:
            told += f"; tolerance {say_number(room.tolerance)}"
        cards.append((say_number(room.gradient_error), told))
    if pair and pair[0].score and pair[1].score:
        told = f"{pair[1].score.name}; plain {say_number(pair[0].score.value)}"
        told += "; higher is better" if pair[1].score.higher_is_better else "; lower is better"
        cards.append((say_number(pair[1].score.value), told))
    if pair and pair[0].step_s and pair[1].step_s:
        slower = pair[1].step_s / pair[0].step_s
        told = f"a step; plain {say_seconds(pair[0].step_s)} ({slower:.2f} times as long)"
        cards.append((say_seconds(pair[1].step_s), told))
    if not cards:
        return ""
    inside = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(told)}</span></div>'
        for value, told in cards
    )
    return f'<div class="cards">{inside}</div>'


def _comparison(run: Run) -> str:
    if not run.contenders:
        return ""
    rows: list[tuple[str, Callable[[Contender], str]]] = [
        (
            "peak memory above the start",
            lambda c: say_bytes(c.memory.above_bytes if c.memory else None),
        ),
        (
            "whole process at the peak",
            lambda c: say_bytes(c.memory.peak_bytes if c.memory else None),
        ),
        ("saved for backward, plainly", lambda c: say_bytes(c.saved_bytes)),
        ("kept instead, last step", lambda c: say_bytes(c.kept_bytes)),
        ("median step", lambda c: say_seconds(c.step_s)),
        ("last loss", lambda c: say_number(c.steps[-1].loss if c.steps else None, 4)),
        (
            "score on held-out data",
            lambda c: f"{c.score.name} {say_number(c.score.value, 4)}" if c.score else "–",
        ),
        ("gradient error, predicted", lambda c: say_number(c.gradient_error)),
        (
            "gradient error, measured",
            lambda c: say_number(c.measured_error),
        ),
        ("gradient error, tolerance", lambda c: say_number(c.tolerance)),
        ("steps", lambda c: f"{len(c.steps)}"),
    ]
    head = "".join(f'<th scope="col">{escape(c.label)}</th>' for c in run.contenders)
    lines = "".join(
        f'<tr><th scope="row" class="text">{escape(name)}</th>'
        + "".join(f"<td>{escape(say(c))}</td>" for c in run.contenders)
        + "</tr>"
        for name, say in rows
    )
    table = f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{lines}</tbody></table>"
    excess = "".join(
        f'<p class="bad">{escape(said)}</p>' for c in run.contenders if (said := say_excess(c))
    )
    return (
        f"<section><h2>Side by side</h2>{scroll('Side by side', table)}{excess}"
        '<p class="caption">The start of a process is after its libraries, data and network are '
        "in memory. Gradient errors are shares of the gradient's own variance from batch to batch; "
        "prediction and measurement are of the same batches. "
        "With one seed each, a difference of scores may be chance.</p></section>"
    )


def _memory(run: Run, figures: Figures) -> str:
    pair = stacks_of(run)
    if pair is None or "memory" not in figures:
        return ""
    (plain, before), (room, after) = pair
    names = list(dict.fromkeys([*before.names, *after.names]))
    held = [dict(zip(s.names, s.peak_at, strict=True)) for s in (before, after)]
    lines = "".join(
        f'<tr><td class="name">{escape(shorten(name))}</td>'
        + "".join(f"<td>{say_bytes(one.get(name, 0))}</td>" for one in held)
        + "</tr>"
        for name in names
    )
    lines += (
        f'<tr><th class="text" scope="row">all</th><td>{say_bytes(before.peak_bytes)}</td>'
        f"<td>{say_bytes(after.peak_bytes)}</td></tr>"
    )
    is_same = plain is room
    source = "as plain autograd would hold it" if is_same else plain.label
    table = (
        '<table><thead><tr><th class="text" scope="col">layer</th><th scope="col">before</th>'
        f'<th scope="col">after</th></tr></thead><tbody>{lines}</tbody></table>'
    )
    return (
        "<section><h2>Memory over one step</h2>"
        '<p class="caption">Bytes held for backward while one step runs, by layer: they grow in '
        "the forward pass and are let go in backward. Other steps may keep more or less: what is "
        "kept follows the noise of the gradient.</p>"
        '<button class="tool" id="scale" type="button" aria-pressed="true">same scale</button>'
        '<div class="pair">'
        + chart("before", f"Before ({source})", _say_most(plain, before))
        + chart("after", f"After ({room.label})", _say_most(room, after))
        + "</div><details><summary>What each layer holds at the peak</summary>"
        + f"{scroll('Bytes at the peak', table)}</details></section>"
    )


def _say_most(contender: Contender, curves: Stack) -> str:
    assert contender.timeline is not None
    return f"step {contender.timeline.step}: at most {say_bytes(curves.peak_bytes)} at once"


def _attempts(run: Run) -> str:
    if not run.attempts:
        return ""
    lines = "".join(
        f'<tr><td class="name">{escape(a.label)}</td><td>{say_bytes(a.limit_bytes)}</td>'
        f'<td class="text{"" if a.finished else " bad"}">'
        f"{'finished' if a.finished else 'did not finish'}</td>"
        f"<td>{a.steps}</td><td>{say_bytes(a.peak_bytes)}</td>"
        f'<td class="name">{escape(a.said)}</td></tr>'
        for a in run.attempts
    )
    heads = ("training", "limit", "ended", "steps", "peak", "")
    text = {"training", "ended", ""}
    head = "".join(
        f'<th scope="col"{" class=text" if name in text else ""}>{name}</th>' for name in heads
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
    return (
        "<section><h2>The same memory, a larger batch</h2>"
        '<p class="caption">Each ran in a process of its own, whose data the operating system '
        "limits (RLIMIT_DATA). Limit and peak are above the start.</p>"
        f"{scroll('Trainings under a limit', table)}</section>"
    )


def _curves(figures: Figures) -> str:
    charts = []
    if "loss" in figures:
        charts.append(chart("loss", "Loss", "of every step"))
    if "score" in figures:
        better = "higher" if figures["score"]["higher_is_better"] else "lower"
        told = f"on held-out data, after so many steps; {better} is better"
        charts.append(chart("score", figures["score"]["name"], told))
    if not charts:
        return ""
    inside = f'<div class="pair">{"".join(charts)}</div>' if len(charts) == 2 else charts[0]
    return f"<section><h2>Learning</h2>{inside}</section>"


def _errors(run: Run, figures: Figures) -> str:
    rows = [row for contender in run.contenders for row in contender.rows]
    if not rows:
        return ""
    free = sum(1 for row in rows if not row.gradient_error)
    charts = []
    if "error" in figures:
        told = "one dot a tensor of the last step, its area by the bytes it takes plainly"
        charts.append(chart("error", "Ratio against gradient error", told))
    if "readings" in figures:
        told = "the same batches computed with and without compression"
        charts.append(chart("readings", "Predicted and measured", told))
    inside = f'<div class="pair">{"".join(charts)}</div>' if len(charts) == 2 else "".join(charts)
    return (
        "<section><h2>What it does to the gradient</h2>"
        f'<p class="caption">{free} of {len(rows)} tensors cost no error at all: they are kept, '
        "packed exactly, or made again. Errors of the others are shares of the gradient's own "
        f"variance.</p>{inside}</section>"
    )


def _times(run: Run, figures: Figures) -> str:
    if "times" not in figures:
        return ""
    last = max(step.step for contender in run.contenders for step in contender.steps)
    told = f"medians of steps 2 to {last}" if last > 1 else "of step 1"
    shown = chart("times", "Time of a step", told, low=True)
    return f"<section><h2>Where the time goes</h2>{shown}</section>"


def _machine(run: Run) -> str:
    facts = _list_facts(run.machine)
    parts = [f"<h2>Machine and set-up</h2>{facts}" if facts else "<h2>Set-up</h2>"]
    for contender in run.contenders:
        if contender.facts:
            parts.append(f"<h3>{escape(contender.label)}</h3>{_list_facts(contender.facts)}")
    if run.command:
        parts.append(f"<h3>To reproduce</h3><pre>{escape(run.command)}</pre>")
    return f"<section>{''.join(parts)}</section>"


def _list_facts(facts: Mapping[str, str]) -> str:
    lines = "".join(
        f"<dt>{escape(_WORDS.get(key, key))}</dt><dd>{escape(value)}</dd>"
        for key, value in facts.items()
    )
    return f"<dl>{lines}</dl>" if lines else ""


def _left_out(left: Sequence[str]) -> str:
    if not left:
        return ""
    told = f"Left out, so that the page stays small: {'; '.join(left)}."
    return f'<p class="caption">{escape(told)}</p>'


def _footer() -> str:
    return (
        "<footer>Made by Elbowroom. Charts: Apache ECharts 6.1.0, © The Apache Software "
        "Foundation, Apache License 2.0; it contains zrender, © Baidu Inc., and parts of d3, "
        "© Mike Bostock, both under the BSD 3-Clause License.</footer>"
    )
