"""Tables on the terminal, unfolded where the output is a file or a pipe."""

import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from elbowroom.cli.wording import printable

PIPE_WIDTH = 240


def make_console() -> Console:
    """Return a console as wide as the terminal, or as any table where there is none."""
    # Python has no stdout where it was closed from outside.
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    width = None if is_terminal else PIPE_WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width)


def print_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str | None = None,
    remarks: Sequence[str] = (),
    text_columns: Sequence[int] = (0,),
) -> None:
    """Print a table whose columns hold numbers, except the named ones."""
    table = Table(title=title, box=None, pad_edge=False, title_justify="left")
    for number, heading in enumerate(headings):
        left = number in text_columns
        table.add_column(heading, justify="left" if left else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    console = make_console()
    console.print(table)
    for remark in remarks:
        console.print(printable(remark))


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names and what they stand for, in two columns."""
    make_console().print(_fact_table(facts, indent=0))


def print_sections(sections: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Print facts under headings, with an empty line between."""
    console = make_console()
    for number, (heading, facts) in enumerate(sections.items()):
        if number:
            console.print()
        console.print(heading, style="bold")
        console.print(_fact_table(facts, indent=2))


def _fact_table(facts: Sequence[tuple[str, str]], *, indent: int) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style=None if indent else "bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(" " * indent + printable(name), printable(value))
    return table
