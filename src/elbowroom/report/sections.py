"""The sections of the page: headings, figures, tables and what they say, all escaped."""

import math
from collections.abc import Callable, Sequence

from elbowroom.keep.activations.ledger import Row
from elbowroom.report.figures import Figures, stacks_of
from elbowroom.report.model import Contender, Run
from elbowroom.report.wording import (
    escape,
    say_bytes,
    say_number,
    say_ratio,
    say_seconds,
    shorten,
)

MOST_ROWS = 800

_STATES = {
    "running": "still running",
    "finished": "finished",
    "interrupted": "interrupted",
    "failed": "failed",
}


def make_sections(run: Run, figures: Figures) -> str:
    """Return the body of the page."""
    parts = [
        _header(run),
        _cards(run),
        _memory(run, figures),
        _comparison(run),
        _attempts(run),
        _curves(figures),
        _errors(run, figures),
        _times(figures),
        *(_ledger(contender) for contender in run.contenders if contender.rows),
        _machine(run),
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
        f'<p class="{"caption" if state == "finished" else "bad"}">{escape(note)}</p>'
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
            f"{say_bytes(room.saved_bytes)} saved for backward, {say_bytes(room.kept_bytes)} kept"
        )
        cards.append((f"{say_ratio(ratio)} fewer", told))
    if room and room.gradient_error is not None:
        told = "of the gradient's own variance added, predicted"
        if room.readings:
            told += f"; measured {say_number(room.readings[-1].measured)}"
        cards.append((say_number(room.gradient_error), told))
    if pair and pair[0].score and pair[1].score:
        told = f"{pair[1].score.name}; plain {say_number(pair[0].score.value)}"
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
        ("kept instead", lambda c: say_bytes(c.kept_bytes)),
        ("median step", lambda c: say_seconds(c.step_s)),
        ("last loss", lambda c: say_number(c.steps[-1].loss if c.steps else None, 4)),
        (
            "score on held-out data",
            lambda c: f"{c.score.name} {say_number(c.score.value, 4)}" if c.score else "–",
        ),
        ("gradient error, predicted", lambda c: say_number(c.gradient_error)),
        (
            "gradient error, measured",
            lambda c: say_number(c.readings[-1].measured if c.readings else None),
        ),
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
    return (
        f"<section><h2>Side by side</h2>{_scroll('Side by side', table)}"
        '<p class="caption">The start of a process is after its libraries, data and network are '
        "in memory. Gradient errors are shares of the gradient's own variance from batch to batch. "
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
        f'<tr><td class="name">{escape(name)}</td><td>{say_bytes(held[0].get(name, 0))}</td>'
        f"<td>{say_bytes(held[1].get(name, 0))}</td></tr>"
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
        "<section><h2>Memory over the step</h2>"
        '<p class="caption">Bytes held for backward while a step runs, by layer: they grow in '
        "the forward pass and are let go in backward.</p>"
        '<button class="tool" id="scale" type="button" aria-pressed="true">same scale</button>'
        '<div class="pair">'
        + _chart("before", f"Before ({source})", f"at most {say_bytes(before.peak_bytes)} at once")
        + _chart("after", f"After ({room.label})", f"at most {say_bytes(after.peak_bytes)} at once")
        + "</div><details><summary>What each layer holds at the peak</summary>"
        + f"{_scroll('Bytes at the peak', table)}</details></section>"
    )


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
        f"{_scroll('Trainings under a limit', table)}</section>"
    )


def _curves(figures: Figures) -> str:
    charts = []
    if "loss" in figures:
        charts.append(_chart("loss", "Loss", "of every step"))
    if "score" in figures:
        charts.append(_chart("score", figures["score"]["name"], "on held-out data"))
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
        told = "one dot a tensor, its area by the bytes it takes plainly"
        charts.append(_chart("error", "Ratio against gradient error", told))
    if "readings" in figures:
        told = "the same batches computed with and without compression"
        charts.append(_chart("readings", "Predicted and measured", told))
    inside = f'<div class="pair">{"".join(charts)}</div>' if len(charts) == 2 else "".join(charts)
    return (
        "<section><h2>What it does to the gradient</h2>"
        f'<p class="caption">{free} of {len(rows)} tensors cost no error at all: they are kept, '
        "packed exactly, or made again. Errors of the others are shares of the gradient's own "
        f"variance.</p>{inside}</section>"
    )


def _times(figures: Figures) -> str:
    if "times" not in figures:
        return ""
    chart = _chart("times", "Time of a step", "", low=True)
    return f"<section><h2>Where the time goes</h2>{chart}</section>"


def _ledger(contender: Contender) -> str:
    rows = sorted(contender.rows, key=lambda row: -row.saved_bytes)
    shown = rows[:MOST_ROWS]
    heads = (
        *("tensor", "read by", "class", "how", "shape"),
        *("saved", "kept", "ratio", "error", "encode", "decode"),
    )
    text = {"tensor", "read by", "class", "how", "shape"}
    head = "".join(
        f'<th scope="col"{" class=text" if name in text else ""}'
        f"{' aria-sort=descending' if name == 'saved' else ''}>"
        f'<button type="button">{name}</button></th>'
        for name in heads
    )
    left = f" The {len(shown)} largest of {len(rows)} are shown." if len(shown) < len(rows) else ""
    table = (
        f'<table class="wide" id="ledger"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(_ledger_line(row) for row in shown)}</tbody></table>"
    )
    events = "".join(f"<li>{escape(shorten(event, 400))}</li>" for event in contender.events[-50:])
    return (
        f'<section class="long"><h2>The ledger of {escape(contender.label)}</h2>'
        '<p class="caption">Every tensor that autograd saved in the last step recorded. Classes: '
        "W, an error stays in one weight's gradient; P, it travels on; M, only a mask is read; "
        f"E, exact.{left} A heading sorts.</p>"
        '<p id="sorted" class="caption" aria-live="polite"></p>'
        f"{_scroll('Ledger', table, tall=True)}"
        + (f"<h3>Events</h3><ul>{events}</ul>" if events else "")
        + "</section>"
    )


def _ledger_line(row: Row) -> str:
    # What is not known sorts with the largest.
    error = row.gradient_error if math.isfinite(row.gradient_error) else None
    cells: Sequence[tuple[str, float, str]] = (
        (say_bytes(row.saved_bytes), row.saved_bytes, ""),
        (say_bytes(row.kept_bytes), row.kept_bytes, ""),
        (say_ratio(row.ratio), row.ratio or 1e18, ""),
        (say_number(error), 1e18 if error is None else error, ""),
        (say_seconds(row.encode_s), row.encode_s, ""),
        (say_seconds(row.decode_s), row.decode_s, ""),
    )
    shape = "×".join(str(size) for size in row.shape) or "scalar"
    return (
        f'<tr><td class="name">{escape(shorten(row.name))}</td>'
        f'<td class="name">{escape(shorten(", ".join(row.readers)))}</td>'
        f'<td class="text">{escape(row.error_class)}</td><td class="text">{escape(row.method)}</td>'
        f'<td class="text">{shorten(shape, 60)}</td>'
        + "".join(f'<td data-value="{value:.9g}">{said}</td>' for said, value, _ in cells)
        + "</tr>"
    )


def _machine(run: Run) -> str:
    facts = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in run.machine.items())
    parts = [f"<h2>Machine and set-up</h2><dl>{facts}</dl>" if facts else "<h2>Set-up</h2>"]
    for contender in run.contenders:
        if contender.facts:
            lines = "".join(
                f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>"
                for key, value in contender.facts.items()
            )
            parts.append(f"<h3>{escape(contender.label)}</h3><dl>{lines}</dl>")
    if run.command:
        parts.append(f"<h3>To reproduce</h3><pre>{escape(run.command)}</pre>")
    return f"<section>{''.join(parts)}</section>"


def _footer() -> str:
    return (
        "<footer>Made by Elbowroom. Charts: Apache ECharts 6.1.0, © The Apache Software "
        "Foundation, Apache License 2.0; it contains zrender, © Baidu Inc., and parts of d3, "
        "© Mike Bostock, both under the BSD 3-Clause License.</footer>"
    )


def _chart(figure: str, title: str, told: str, *, low: bool = False) -> str:
    label = f"{title}: {told}" if told else title
    return (
        f'<figure style="margin:0;min-width:0"><h3>{escape(title)}</h3>'
        + (f'<p class="caption">{escape(told)}</p>' if told else "")
        + f'<div class="chart{" low" if low else ""}" data-figure="{figure}" role="img" '
        f'aria-label="{escape(label)}"></div></figure>'
    )


def _scroll(name: str, table: str, *, tall: bool = False) -> str:
    """A table that scrolls by itself, with the keyboard too, where the page is narrow."""
    kind = "scroll tall" if tall else "scroll"
    return f'<div class="{kind}" tabindex="0" role="region" aria-label="{name}">{table}</div>'
