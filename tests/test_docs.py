"""The documentation's code runs: the python blocks of a page, in order, in one namespace."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


def python_blocks(text: str) -> list[tuple[int, str]]:
    """Return the line that each block begins on, and its code."""
    return [
        (text[: found.start(1)].count("\n") + 1, found.group(1)) for found in BLOCK.finditer(text)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_runs(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for line, code in python_blocks(page.read_text(encoding="utf-8")):
        # Empty lines in front let a traceback show the page's own line numbers.
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)
    capsys.readouterr()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_blocks_are_found_where_they_are() -> None:
    text = "# T\n\n```python\na = 1\n```\n\n```\nnot this\n```\n```python\nb = 2\n```\n"
    assert python_blocks(text) == [(4, "a = 1\n"), (11, "b = 2\n")]
