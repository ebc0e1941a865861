"""Reads the folder of a run, finished or not, written by ourselves or by strangers."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from elbowroom.errors import CorruptData, IncompatibleFormat, InvalidArgument
from elbowroom.keep.activations.ledger import Reading, Row, layer_of
from elbowroom.report.fields import Fields
from elbowroom.report.model import (
    VERSION,
    Attempt,
    Contender,
    Memory,
    Moment,
    Run,
    Score,
    Step,
    Timeline,
)
from elbowroom.report.wording import make_writable
from elbowroom.report.writing import RUN, SUFFIX

MOST_BYTES = 256 << 20
MOST_CONTENDERS = 16


def read_run(folder: Path | str) -> Run:
    """Return what is recorded so far; what a writer has not finished writing is left out."""
    folder = Path(folder)
    if not folder.is_dir():
        found = "a file" if folder.exists() else "not there"
        raise InvalidArgument(
            f"{folder} must be the folder of a run, and is {found}: 'elbowroom demo' makes one, "
            "and so does elbowroom.report.Recorder"
        )
    paths = sorted(path for path in folder.glob(f"*{SUFFIX}") if path.is_file())
    contenders = [path for path in paths if path.stem != RUN]
    if not paths:
        raise InvalidArgument(
            f"{folder} has no file *{SUFFIX}, so it is not the folder of a run: name the folder "
            "that 'elbowroom demo' or elbowroom.report.Recorder wrote"
        )
    if len(contenders) > MOST_CONTENDERS:
        raise CorruptData(f"{folder} has {len(contenders)} contenders, more than {MOST_CONTENDERS}")
    facts = folder / f"{RUN}{SUFFIX}"
    run = _read_facts(facts, make_writable(folder.resolve().name))
    found = sorted((_read_contender(path) for path in contenders), key=_order)
    states = {contender.state for contender in found}
    if len(states) == 1 and not facts.exists():
        run["state"] = states.pop()
    run["machine"] = run.get("machine") or next((c.machine for c in found if c.machine), {})
    return Run(**run, contenders=tuple(found))


def _order(contender: Contender) -> tuple[bool, str]:
    """Plain ones come first: they are what others are compared with."""
    return (contender.name != "plain", contender.name)


def _read_facts(path: Path, name: str) -> dict[str, Any]:
    run: dict[str, Any] = {"title": name, "state": "running", "attempts": ()}
    if not path.exists():
        return run
    for record in _records(path, "run"):
        match record.kind:
            case "run":
                run |= {
                    "title": record.text("title"),
                    "command": record.text("command", ""),
                    "about": record.text("about", ""),
                    "machine": record.texts("machine"),
                }
            case "attempt":
                attempt = Attempt(
                    label=record.text("label"),
                    limit_bytes=record.count("limit_bytes"),
                    finished=record.flag("finished"),
                    said=record.text("said"),
                    steps=record.count("steps", 0),
                    peak_bytes=record.count_or_none("peak_bytes"),
                    facts=record.texts("facts"),
                )
                run["attempts"] = (*run["attempts"], attempt)
            case "end":
                run |= {"state": record.state("state"), "note": record.text("note", "")}
            case _:
                pass
    return run


def _read_contender(path: Path) -> Contender:
    found: dict[str, Any] = {"name": path.stem, "label": path.stem}
    steps: list[Step] = []
    scores: list[Score] = []
    events: list[str] = []
    for record in _records(path, "contender"):
        match record.kind:
            case "contender":
                found |= {
                    "label": record.text("label"),
                    "planned_steps": record.count_or_none("planned_steps"),
                    "tolerance": record.number_or_none("tolerance"),
                    "facts": record.texts("facts"),
                    "machine": record.texts("machine"),
                }
            case "step":
                steps.append(_read_step(record))
            case "score":
                scores.append(_read_score(record))
            case "memory":
                found["memory"] = Memory(
                    baseline_bytes=record.count("baseline_bytes"),
                    peak_bytes=record.count("peak_bytes"),
                )
            case "ledger":
                found["rows"] = tuple(_read_row(row) for row in record.records("rows"))
                found["readings"] = tuple(
                    Reading(
                        step=r.count("step"),
                        predicted=r.number("predicted"),
                        measured=r.number("measured"),
                    )
                    for r in record.records("readings")
                )
                events = record.list_of_text("events")
            case "timeline":
                found["timeline"] = _read_timeline(record)
            case "doing":
                found["doing"] = record.text("what")
            case "end":
                found |= {"state": record.state("state"), "note": record.text("note", "")}
            case _:
                # Newer writers of the same version may add kinds.
                pass
    return Contender(**found, steps=tuple(steps), scores=tuple(scores), events=tuple(events))


def _read_step(record: Fields) -> Step:
    times = ("seconds", "forward_s", "backward_s", "optimizer_s", "encode_s", "decode_s")
    return Step(
        step=record.count("step"),
        loss=record.number_or_none("loss"),
        **{name: record.number(name, 0.0) for name in times},
        saved_bytes=record.count_or_none("saved_bytes"),
        kept_bytes=record.count_or_none("kept_bytes"),
        gradient_error=record.number_or_none("gradient_error"),
    )


def _read_score(record: Fields) -> Score:
    return Score(
        step=record.count("step"),
        name=record.text("name"),
        value=record.number_or_none("value"),
        higher_is_better=record.flag("higher_is_better", True),
        baselines=record.numbers("baselines"),
    )


def _read_row(row: Fields) -> Row:
    bound, error = row.number_or_none("bound"), row.number_or_none("gradient_error")
    return Row(
        name=row.text("name"),
        readers=tuple(row.list_of_text("readers")),
        error_class=row.text("error_class"),
        method=row.text("method"),
        shape=tuple(row.counts("shape")),
        saved_bytes=row.count("saved_bytes"),
        kept_bytes=row.count("kept_bytes"),
        bound=math.nan if bound is None else bound,
        gradient_error=math.nan if error is None else error,
        encode_s=row.number("encode_s", 0.0),
        decode_s=row.number("decode_s", 0.0),
        reason=row.text("reason", ""),
    )


def _read_timeline(record: Fields) -> Timeline:
    names = record.list_of_text("names")
    moments: list[Moment] = []
    for at_s, place, plain, held in record.rows("moments", 4):
        if not 0 <= place < len(names) or place != int(place):
            record.refuse(f"moments name place {place:g} of {len(names)}")
        moments.append(
            Moment(
                at_s=at_s,
                layer=layer_of(names[int(place)]),
                plain_bytes=int(plain),
                held_bytes=int(held),
            )
        )
    return Timeline(
        step=record.count("step"), forward_s=record.number("forward_s"), moments=tuple(moments)
    )


def _records(path: Path, first: str) -> Iterator[Fields]:
    """The lines of a file, the first of which says what it is; a torn last line is left out."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise CorruptData(f"{path} has {size} bytes, more than a run can have ({MOST_BYTES})")
    text = path.read_bytes()
    lines = text.split(b"\n")
    lines.pop()  # what follows the last line end is empty, or still being written
    for number, line in enumerate(lines, 1):
        record = Fields(_parse(path, number, line), path, number)
        if number == 1:
            _check_header(record, path, first)
        yield record


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise CorruptData(f"{path}, line {number} is no record: {reason[:120]}") from None
    if not isinstance(value, dict):
        raise CorruptData(f"{path}, line {number} must be an object, and is {type(value).__name__}")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_header(record: Fields, path: Path, first: str) -> None:
    if record.kind != first:
        raise IncompatibleFormat(
            f"{path} must begin with a record of kind {first!r}, got {record.kind!r}: it was not "
            "written by elbowroom.report"
        )
    version = record.count("version")
    if version != VERSION:
        raise IncompatibleFormat(
            f"{path} is of version {version}, and this release reads version {VERSION}: use the "
            "release that wrote it, or a newer one"
        )
