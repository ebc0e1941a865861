"""The page: escaped, bounded, self-contained, and made of the files that it says."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

from elbowroom.keep.activations.ledger import Reading
from elbowroom.report import Run, read_run, render
from elbowroom.report.figures import make_figures
from elbowroom.report.model import Contender, Moment, Score, Step, Timeline
from elbowroom.report.timeline import MOST_SERIES, OTHERS, group_layers, stack

from .runs import HOSTILE, record, record_both


class Elements(HTMLParser):
    """What a browser would make of the page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return read_run(record_both(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def page(run: Run) -> str:
    return render(run)


def test_names_of_layers_cannot_become_elements(page: str) -> None:
    elements = Elements(page)
    assert "img" not in {tag for tag, _ in elements.tags}
    assert not any(name.startswith("on") for _, given in elements.tags for name in given)
    assert sum(tag == "script" for tag, _ in elements.tags) == 3
    assert HOSTILE in "".join(elements.text)


def test_only_the_two_scripts_may_run_and_nothing_is_fetched(page: str) -> None:
    policy = next(
        str(given["content"])
        for tag, given in Elements(page).tags
        if tag == "meta" and given.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'")
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts}
    assert set(re.findall(r"'sha256-([^']+)'", policy)) == hashes
    assert len(hashes) == 2
    for tag, given in Elements(page).tags:
        assert "src" not in given, tag
        assert given.get("href", "data:,") == "data:,"


def test_the_library_is_the_one_that_the_note_names() -> None:
    folder = files("elbowroom.report").joinpath("page")
    library = folder.joinpath("echarts.common.min.js").read_bytes()
    assert hashlib.sha256(library).hexdigest() in folder.joinpath("README.md").read_text()
    assert b"Apache License, Version 2.0" in library[:1000]
    for name in ("LICENSE-echarts", "NOTICE-echarts", "LICENSE-zrender", "LICENSE-d3"):
        assert folder.joinpath(name).read_text()


def test_every_chart_has_its_data(run: Run) -> None:
    figures = make_figures(run)
    assert set(figures) == {"memory", "loss", "score", "error", "readings", "times"}
    memory = figures["memory"]
    assert memory["before"]["peak_bytes"] > 4 * memory["after"]["peak_bytes"]
    assert memory["before"]["bytes"][0][-1] == 0
    assert [part["label"] for part in figures["times"]["parts"]][1] == "encode"
    assert (
        figures["times"]["parts"][1]["values_ms"][0]
        == 0
        < figures["times"]["parts"][1]["values_ms"][1]
    )


def test_a_run_of_one_contender_shows_what_plain_would_hold(tmp_path: Path) -> None:
    record(tmp_path, "elbowroom")
    run = read_run(tmp_path)
    memory = make_figures(run)["memory"]
    assert memory["before"]["peak_bytes"] == run.contenders[0].saved_bytes
    assert memory["after"]["peak_bytes"] == run.contenders[0].kept_bytes
    assert "as plain autograd would hold it" in render(run)


def test_a_run_without_anything_is_a_page_too() -> None:
    page = render(Run(title="empty"))
    assert "No step has been recorded yet" in page


def test_what_was_measured_is_json(run: Run) -> None:
    assert json.loads(json.dumps(run.to_json(), allow_nan=False))["version"] == 1


def test_layers_are_grouped_by_as_much_of_their_names_as_fits() -> None:
    names = [f"encoder.{i}.{j}" for i in range(4) for j in range(6)] + ["head"]
    groups = group_layers(names)
    assert set(groups.values()) == {"encoder.0", "encoder.1", "encoder.2", "encoder.3", "head"}
    assert group_layers(["a.b", "c"]) == {"a.b": "a.b", "c": "c"}
    assert group_layers([]) == {}


def test_stacks_hold_every_byte_whatever_is_thrown_together() -> None:
    moments = [
        Moment(at_s=(i // 2) * 1e-3, layer=f"layer{i}", plain_bytes=i + 1, held_bytes=1)
        for i in range(40)
    ]
    timeline = Timeline(step=1, forward_s=0.01, moments=tuple(moments))
    curves = stack(timeline, "plain", group_layers(m.layer for m in moments))
    assert len(curves.names) == MOST_SERIES and curves.names[-1] == OTHERS
    assert curves.peak_bytes == sum(range(1, 41)) == sum(curves.peak_at)
    assert sum(curve[-1] for curve in curves.bytes_of) == curves.peak_bytes
    assert list(curves.at_s) == sorted(set(curves.at_s))


def make_measured(measured: float) -> Run:
    reading = Reading(step=7, predicted=0.0189, measured=measured)
    step = Step(step=7, loss=1.0, seconds=1.0, gradient_error=0.00871)
    room = Contender(name="room", label="room", tolerance=0.1, steps=(step,), readings=(reading,))
    return Run(title="x", contenders=(room,))


def test_an_error_above_the_tolerance_is_said_to_be() -> None:
    shown = render(make_measured(0.24))
    assert "the measured gradient error 0.24 exceeds the tolerance 0.1" in shown
    assert "takes that for variance" in shown and "a smaller tolerance makes" in shown
    assert "0.0189" in shown and "0.00871" not in shown  # one prediction, of the same batches
    assert "exceeds the tolerance" not in render(make_measured(0.09))


def test_time_that_was_up_is_no_finish() -> None:
    page = render(Run(title="x", state="stopped", note="time was up after 7 of 30 steps"))
    assert ">stopped by time<" in page and '<p class="caption">time was up after 7' in page


@pytest.mark.parametrize("higher", [True, False])
def test_charts_say_what_is_better_and_which_step_they_are_of(higher: bool) -> None:
    score = Score(step=7, name="IoU", value=0.5, higher_is_better=higher)
    moment = Moment(at_s=0.1, layer="first", plain_bytes=8, held_bytes=1)
    timeline = Timeline(step=6, forward_s=0.1, moments=(moment,))
    steps = tuple(Step(step=i, loss=1.0, seconds=1.0) for i in (1, 2, 7))
    room = Contender(name="x", label="x", steps=steps, scores=(score,), timeline=timeline)
    page = render(Run(title="x", contenders=(room,)))
    assert f"{'higher' if higher else 'lower'} is better" in page
    assert "step 6: at most 8 B at once" in page and "medians of steps 2 to 7" in page


def test_names_are_broken_at_their_dots(run: Run) -> None:
    assert "NativeBatchNorm.<wbr>input" in render(run)


def test_facts_are_named_in_words() -> None:
    assert "<dt>instruction set</dt><dd>avx2</dd>" in render(
        Run(title="x", machine={"isa": "avx2"})
    )


def test_two_of_one_label_are_two_curves() -> None:
    step = Step(step=1, loss=1.0, seconds=1.0)
    both = tuple(Contender(name=name, label="same", steps=(step,)) for name in ("a", "b"))
    assert len(make_figures(Run(title="x", contenders=both))["loss"]["series"]) == 2
