"""The documentation holds: its code runs, its links lead somewhere, its pages can be found."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

LINKING = [
    *PAGES,
    *(ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING")),
    *sorted((ROOT / "src").rglob("*.md")),
]


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


def anchors(text: str) -> set[str]:
    """Return what links may name of a page: its headings, as GitHub spells them."""
    found: dict[str, int] = {}
    for heading in HEADING.findall(FENCED.sub("", text)):
        plain = LINK.sub("]", heading).replace("[", "").replace("]", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {
        slug if not count else f"{slug}-{count}"
        for slug, last in found.items()
        for count in range(last + 1)
    }


def broken_links(page: Path) -> list[str]:
    """Return the targets that are not there, or have no such heading."""
    broken = []
    for name, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        target = page.parent / name if name else page
        is_there = target.exists() and (
            not anchor or anchor in anchors(target.read_text(encoding="utf-8"))
        )
        if not is_there:
            broken.append(f"{name}#{anchor}" if anchor else name)
    return broken


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# A `b` c!\n\n## Twice\n## Twice\n```\n# no\n```\n")
    page = tmp_path / "a.md"
    good = ["b.md", "b.md#a-b-c", "b.md#twice-1", "#here", "https://example.org/x#y"]
    bad = ["c.md", "b.md#no", "b.md#twice-2", "#there"]
    page.write_text("# Here\n" + " ".join(f"[x]({target})" for target in (*good, *bad)))
    assert broken_links(page) == bad


def test_every_page_is_in_the_list_of_pages() -> None:
    index = ROOT / "docs" / "README.md"
    named = {index.parent / name for name, _ in LINK.findall(index.read_text(encoding="utf-8"))}
    assert set(index.parent.glob("*.md")) - named == {index}


def test_blocks_are_found_where_they_are() -> None:
    text = "# T\n\n```python\na = 1\n```\n\n```\nnot this\n```\n```python\nb = 2\n```\n"
    assert python_blocks(text) == [(4, "a = 1\n"), (11, "b = 2\n")]
