"""Runs as they are read: finished, running, torn, foreign and hostile."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.errors import CorruptData, ElbowroomError, IncompatibleFormat, InvalidArgument
from elbowroom.keep.activations.ledger import Row
from elbowroom.report import read_run, render
from elbowroom.report.writing import Writer

HEADER: dict[str, Any] = {"label": "x", "planned_steps": 3, "facts": {}}


def start(folder: Path, name: str = "x") -> Writer:
    return Writer(folder, name, "contender", HEADER)


def add(path: Path, *lines: str | dict[str, Any], end: str = "\n") -> None:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    with path.open("a", encoding="utf-8") as file:
        file.write("\n".join(texts) + end)


def test_a_run_that_has_just_begun_can_be_read(tmp_path: Path) -> None:
    with start(tmp_path):
        run = read_run(tmp_path)
    assert (run.state, run.contenders[0].steps, run.contenders[0].planned_steps) == (
        "running",
        (),
        3,
    )
    assert run.title == tmp_path.name
    assert "No step" not in render(run) and "0 of 3 steps" in render(run)


def test_a_torn_last_line_is_left_out_and_comes_with_its_end(tmp_path: Path) -> None:
    writer = start(tmp_path)
    writer.append("step", step=1, loss=0.5, seconds=0.1)
    whole = json.dumps({"kind": "step", "step": 2, "loss": 0.4, "seconds": 0.1})
    for cut in (1, len(whole) // 2, len(whole)):
        text = writer.path.read_text(encoding="utf-8")
        add(writer.path, whole[:cut], end="")
        assert [step.step for step in read_run(tmp_path).contenders[0].steps] == [1]
        writer.path.write_text(text, encoding="utf-8")
    add(writer.path, whole)
    assert [step.loss for step in read_run(tmp_path).contenders[0].steps] == [0.5, 0.4]


def test_losses_that_are_not_finite_are_none(tmp_path: Path) -> None:
    with start(tmp_path) as writer:
        writer.append("step", step=1, loss=float("nan"), seconds=0.1)
        writer.append("score", step=1, name="IoU", value=float("inf"), baselines={})
    (contender,) = read_run(tmp_path).contenders
    assert (contender.steps[0].loss, contender.scores[0].value) == (None, None)
    render(read_run(tmp_path))


def test_errors_that_are_not_finite_are_shown_as_unknown(tmp_path: Path) -> None:
    row = Row(
        name="first: conv2d[0]",
        readers=("ConvolutionBackward0.0",),
        error_class="W",
        method="encode",
        shape=(2, 3),
        saved_bytes=24,
        kept_bytes=8,
        bound=math.inf,
        gradient_error=math.nan,
        encode_s=0.001,
        decode_s=0.25,
    )
    with start(tmp_path) as writer:
        writer.append("ledger", step=1, rows=[asdict(row)], readings=[], events=[])
    run = read_run(tmp_path)
    (found,) = run.contenders[0].rows
    assert math.isnan(found.bound) and math.isnan(found.gradient_error)
    assert replace(found, bound=0.0, gradient_error=0.0) == replace(
        row, bound=0.0, gradient_error=0.0
    )
    assert (found.layer, found.ratio) == ("first", 3.0)
    page = render(run)
    assert "0 of 1 tensors cost no error" in page
    assert "nan" not in page.partition('id="ledger"')[2].partition("</table>")[0]
    (told,) = run.to_json()["contenders"][0]["rows"]
    assert (told["bound"], told["gradient_error"], told["decode_s"]) == (None, None, 0.25)
    json.dumps(run.to_json(), allow_nan=False)


def test_states_of_contenders_are_the_run_s_where_it_has_none(tmp_path: Path) -> None:
    with start(tmp_path) as writer:
        writer.end("interrupted", "by me")
    assert read_run(tmp_path).state == "interrupted"
    with start(tmp_path, "y") as writer:
        assert read_run(tmp_path).state == "running"


def test_plain_comes_first(tmp_path: Path) -> None:
    for name in ("aaa", "plain", "zzz"):
        start(tmp_path, name).close()
    assert [c.name for c in read_run(tmp_path).contenders] == ["plain", "aaa", "zzz"]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="not there"):
        read_run(tmp_path / "none")
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InvalidArgument, match="a file"):
        read_run(file)
    with pytest.raises(InvalidArgument, match=r"\*\.jsonl"):
        read_run(tmp_path)


def test_a_foreign_file_and_a_newer_one_are_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text('{"level": "info"}\n')
    with pytest.raises(IncompatibleFormat, match=r"foreign.*not\s+written by elbowroom"):
        read_run(tmp_path)
    foreign.write_text('{"kind": "contender", "version": 99}\n')
    with pytest.raises(IncompatibleFormat, match="version 99"):
        read_run(tmp_path)


def test_unknown_kinds_of_records_are_passed_over(tmp_path: Path) -> None:
    writer = start(tmp_path)
    writer.append("weather", sun=True)
    assert read_run(tmp_path).contenders[0].steps == ()


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "{",
        "null",
        "\x00",
        "[" * 100_000,
        '{"kind": "step"}',
        '{"kind": "step", "step": -1, "seconds": 1}',
        '{"kind": "step", "step": true, "seconds": 1}',
        '{"kind": "step", "step": 1, "loss": NaN, "seconds": 1}',
        '{"kind": "step", "step": 1, "loss": "big", "seconds": 1}',
        '{"kind": "step", "step": 1, "loss": 1e999, "seconds": 1}',
        '{"kind": "step", "step": ' + "9" * 5000 + "}",
        '{"kind": "ledger", "rows": [1]}',
        '{"kind": "ledger", "rows": [{"name": 7}]}',
        '{"kind": "timeline", "step": 1, "forward_s": 0, "names": [""], "moments": [[0, 1, 2, 3]]}',
        '{"kind": "timeline", "step": 1, "forward_s": 0, "names": ["a"], "moments": [[0, 0, 2]]}',
        '{"kind": "end", "state": "fine"}',
    ],
)
def test_damage_names_file_and_line(tmp_path: Path, line: str) -> None:
    writer = start(tmp_path)
    add(writer.path, line)
    with pytest.raises(CorruptData, match=r"x\.jsonl, line 2"):
        read_run(tmp_path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
KINDS = ("contender", "step", "score", "memory", "ledger", "timeline", "end")
NAMES = ("step", "loss", "seconds", "rows", "readings", "events", "moments", "names", "state")


@given(
    kind=st.sampled_from(KINDS),
    fields=st.dictionaries(st.sampled_from((*NAMES, "forward_s", "value", "baselines")), VALUES),
)
def test_any_record_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, kind: str, fields: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    with start(folder) as writer:
        add(writer.path, json.dumps({**fields, "kind": kind}))
    try:
        run = read_run(folder)
    except ElbowroomError:
        return
    render(run)


def test_a_long_text_is_cut(tmp_path: Path) -> None:
    with start(tmp_path) as writer:
        writer.end("failed", "x" * 10**6)
    assert len(read_run(tmp_path).contenders[0].note) == 2000


def test_half_characters_become_marks(tmp_path: Path) -> None:
    with start(tmp_path) as writer:
        add(writer.path, '{"kind": "end", "state": "failed", "note": "a\\ud800b"}')
    add(
        tmp_path / "y.jsonl",
        '{"kind": "contender", "version": 1, "label": "\\udfff", "facts": {"\\ud800": "\\ud801"}}',
    )
    first, second = read_run(tmp_path).contenders
    assert (first.note, second.label, second.facts) == ("a?b", "?", {"?": "?"})
    render(read_run(tmp_path)).encode()


def test_long_names_of_facts_and_baselines_are_cut(tmp_path: Path) -> None:
    with start(tmp_path) as writer:
        writer.append("score", step=1, name="IoU", value=0.5, baselines={"x" * 10**6: 0.1})
    (name,) = read_run(tmp_path).contenders[0].scores[0].baselines
    assert len(name) == 200
