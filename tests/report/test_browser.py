"""The page in a real browser: what is drawn, sorted, printed, and whether it complains."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elbowroom.report import read_run, render

from .browser import Page, find_browser, open_browser
from .runs import HOSTILE, record, record_both

BROWSER = find_browser()
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium was found: install it (Debian: apt install chromium)"
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shown")
    path = folder / "report.html"
    path.write_text(render(read_run(record_both(folder))), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    assert BROWSER is not None
    with open_browser(BROWSER) as page:
        yield page


@pytest.fixture
def page(browser: Page) -> Page:
    browser.complaints.clear()
    browser.requests.clear()
    return browser


def series_drawn(page: Page, figure: str) -> list[str]:
    """The colours of the shapes of a chart, in the order in which they were drawn."""
    script = f"""[...document.querySelectorAll('[data-figure="{figure}"] svg path')]
        .map(p => p.getAttribute('fill')).filter(f => f && f !== 'none' && f !== 'transparent')"""
    return page.run(script)


def column(page: Page, number: int) -> list[float]:
    return page.run(
        "[...document.querySelector('#ledger').tBodies[0].rows]"
        f".map(row => Number(row.cells[{number}].dataset.value))"
    )


@pytest.mark.parametrize("width", [360, 1600])
@pytest.mark.parametrize("dark", [False, True])
def test_it_opens_from_disk_without_complaint(
    page: Page, report: Path, width: int, dark: bool
) -> None:
    page.show(report, width=width, dark=dark)
    page.settle()
    assert page.run("document.documentElement.dataset.drawn") == "7"
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.complaints == []
    assert page.requests == [report.resolve().as_uri()[:100]]
    sizes: list[Any] = page.run(
        "[...document.querySelectorAll('.chart')].map(c => "
        "[c.dataset.figure, c.querySelectorAll('svg path').length, c.clientWidth])"
    )
    for figure, shapes, wide in sizes:
        assert shapes >= 5, figure
        assert 200 <= wide <= width, figure


def test_tables_can_be_read_on_a_telephone(page: Page, report: Path) -> None:
    page.show(report, width=360)
    page.settle()
    lines: list[float] = page.run(
        "[...document.querySelectorAll('th[scope=row]')].filter(h => h.offsetParent).map(h => "
        "h.getBoundingClientRect().height / parseFloat(getComputedStyle(h).lineHeight))"
    )
    assert len(lines) > 8 and max(lines) < 3.5
    # A name goes on in the next line after its dot, not within the word.
    broken: int = page.run(
        """[...document.querySelectorAll('#ledger .name')].flatMap(cell => [...cell.childNodes])
        .filter(node => node.nodeType === 3 && node.data === 'NativeBatchNorm.')
        .map(node => { const range = document.createRange(); range.selectNode(node);
                       return range.getClientRects().length; })
        .reduce((most, count) => Math.max(most, count), 0)"""
    )
    assert broken == 1
    shades: str = page.run(
        "getComputedStyle(document.querySelector('[aria-label=Ledger]')).backgroundImage"
    )
    assert shades.count("linear-gradient") == 4
    # What is asked for, not what is drawn: round numbers of milliseconds depend on the clock.
    ticks = (
        "echarts.getInstanceByDom(document.querySelector('[data-figure=before]'))"
        ".getOption().xAxis[0].splitNumber"
    )
    few: int = page.run(ticks)
    page.show(report, width=1600)
    assert few < page.run(ticks)


def test_text_and_tables_are_there_before_any_script_has_run(page: Page, report: Path) -> None:
    # What is painted first then waits for nothing; docs/report.md has the times.
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.show(report)
        page.call("Emulation.setScriptExecutionDisabled", value=False)
        assert page.run("document.querySelector('#ledger').getClientRects()[0].height") > 100
        assert page.run("document.querySelectorAll('.card').length") == 5
        assert page.run("document.querySelectorAll('svg').length") == 0
    finally:
        page.call("Emulation.setScriptExecutionDisabled", value=False)


def test_memory_is_stacked_by_layer_before_and_after(page: Page, report: Path) -> None:
    page.show(report)
    names: list[str] = page.run(
        "JSON.parse(document.getElementById('data').textContent).memory.before.names"
    )
    assert len(names) >= 3
    for figure in ("before", "after"):
        assert len(set(series_drawn(page, figure))) >= len(names)
        legend: str = page.run(f"document.querySelector('[data-figure=\"{figure}\"]').textContent")
        assert "first" in legend and "backward" in legend


def test_own_scale_makes_the_small_one_large(page: Page, report: Path) -> None:
    page.show(report)
    labels = "document.querySelector('[data-figure=\"after\"]').textContent"
    before = page.run(labels)
    page.run("document.getElementById('scale').focus()")
    page.press("Enter", text="\r", code=13)
    page.settle()
    assert page.run("document.getElementById('scale').getAttribute('aria-pressed')") == "false"
    assert page.run(labels) != before
    assert page.complaints == []


def test_the_ledger_is_sorted_by_keyboard(page: Page, report: Path) -> None:
    page.show(report)
    saved = column(page, 5)
    assert len(saved) > 5 and saved == sorted(saved, reverse=True)
    kept = "document.querySelectorAll('#ledger th')[6]"
    page.run(f"{kept}.querySelector('button').focus()")
    for key, text, code, ordering in (
        ("Enter", "\r", 13, "descending"),
        (" ", " ", 32, "ascending"),
    ):
        page.press(key, text=text, code=code)
        page.settle()
        assert page.run(f"{kept}.getAttribute('aria-sort')") == ordering
        found = column(page, 6)
        assert found == sorted(found, reverse=ordering == "descending")
    assert page.run("document.querySelectorAll('#ledger th[aria-sort]').length") == 1
    assert "kept" in page.run("document.querySelector('.sorted').textContent")


def test_tab_reaches_the_scale_the_headings_and_the_tables(page: Page, report: Path) -> None:
    page.show(report)
    reached = set()
    for _ in range(24):
        page.press("Tab", code=9)
        reached.add(page.run("document.activeElement.id || document.activeElement.textContent"))
        reached.add(page.run("document.activeElement.getAttribute('aria-label')"))
    assert {"scale", "tensor", "Ledger", "Side by side"} <= reached


def test_hostile_names_are_text_and_nothing_runs(page: Page, report: Path) -> None:
    page.show(report)
    assert page.run("document.images.length") == 0
    assert HOSTILE in page.run("document.querySelector('#ledger').textContent")
    assert HOSTILE in page.run("document.querySelector('h1').textContent")
    # Were it an element after all, the policy would still not let it run.
    page.run(
        "document.body.insertAdjacentHTML('beforeend', "
        '\'<img src="data:," onerror="window.ran = true">\')'
    )
    page.settle()
    page.settle()
    assert page.run("window.ran === undefined") is True
    assert any("Content Security Policy" in said for said in page.complaints)


def test_colours_follow_the_scheme_while_it_is_open(page: Page, report: Path) -> None:
    page.show(report)
    colour = "getComputedStyle(document.body).backgroundColor"
    chart = "document.querySelector('[data-figure=\"loss\"] text').getAttribute('fill')"
    light = page.run(colour), page.run(chart)
    page.prefer(dark=True)
    page.settle()
    dark = page.run(colour), page.run(chart)
    assert light[0] != dark[0] and light[1] != dark[1]


def test_it_prints(page: Page, report: Path) -> None:
    page.show(report)
    assert page.print_pdf().startswith(b"%PDF")
    assert page.complaints == []


def test_a_run_that_goes_on_is_shown_as_it_stands(page: Page, tmp_path: Path) -> None:
    record(tmp_path, "elbowroom", steps=3, end=False)
    path = tmp_path / "report.html"
    path.write_text(render(read_run(tmp_path)), encoding="utf-8")
    page.show(path)
    assert page.run("document.querySelector('.badge').textContent") == "still running"
    assert page.complaints == []
