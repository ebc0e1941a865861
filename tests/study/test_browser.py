"""The page of a study in a real browser: drawn without complaint, narrow and wide, sortable."""

from pathlib import Path

import pytest

from elbowroom.study.drawing import write_page
from elbowroom.study.treatments import fixed, room

from ..report.browser import find_browser, open_browser
from .conftest import MakeRow

BROWSER = find_browser()


@pytest.mark.skipif(BROWSER is None, reason="no Chromium was found")
def test_charts_are_drawn_and_tables_sort(make_row: MakeRow, tmp_path: Path) -> None:
    rows = [make_row(seed=seed, value=0.5 + seed / 100) for seed in range(3)]
    for number, treatment in enumerate((room(0.1), room(1.0), fixed("norm", "range", 0.2))):
        rows += [
            make_row(treatment, seed, 0.5 + seed / 90, ratio=5.0 + number, gradient_error=0.01)
            for seed in range(3)
        ]
    path = write_page(rows, tmp_path)
    assert BROWSER is not None
    with open_browser(BROWSER) as page:
        page.show(path, width=360)
        page.settle()
        assert page.run("document.documentElement.dataset.drawn") == "2"
        assert page.run("document.documentElement.scrollWidth") <= 360
        dots = "document.querySelectorAll('.chart[data-figure=\"gain-0\"] svg path').length"
        assert page.run(dots) >= 3
        legend = "document.querySelector('.chart svg').textContent"
        assert "room" in page.run(legend) and "norm, range" in page.run(legend)
        heading = "[...document.querySelectorAll('th button')].find(b => b.innerText == 'smaller')"
        page.run(f"{heading}.click()")
        first = "document.querySelector('tbody tr th').textContent"
        assert page.run(first) == "norm: dense, range 0.2 dithered"
        page.run(f"{heading}.click()")
        assert page.run(first) == "room 0.1"
        assert page.complaints == []
        assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []
