"""The page: escaped, bounded, self-contained, and made of the files that it says."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

from elbowroom.keep.activations.ledger import Row
from elbowroom.report import Run, read_run, render
from elbowroom.report.figures import make_figures
from elbowroom.report.model import Contender, Moment, Step, Timeline
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


def test_a_very_long_run_stays_below_three_megabytes(run: Run) -> None:
    row = Row(
        name="a" * 1500,
        readers=("b" * 30,) * 4,
        error_class="W",
        method="encode",
        shape=(1, 2, 3),
        saved_bytes=10,
        kept_bytes=1,
        bound=0.1,
        gradient_error=0.1,
        encode_s=0.1,
        decode_s=0.1,
    )
    moments = [
        Moment(at_s=i * 1e-3, layer=f"l{i % 97}.{i}", plain_bytes=1, held_bytes=1)
        for i in range(30_000)
    ]
    contender = Contender(
        name="long",
        label="long",
        steps=tuple(Step(step=i, loss=1 / 3, seconds=0.1) for i in range(100_000)),
        rows=(row,) * 5000,
        timeline=Timeline(step=1, forward_s=1.0, moments=tuple(moments)),
        events=("e" * 2000,) * 5000,
    )
    assert len(render(replace(run, contenders=(contender,))).encode()) < 3e6


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
