"""How answers are shown: one implementation of `-o table|json|yaml|ndjson` and `--no-color` for all commands.

Standard output is data: in JSON, YAML and NDJSON it is what the API answered. A table shows the columns that a person
needs, with the values as people read them; it is cut at the terminal's width only on a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

Column = tuple[str, Callable[[Any], object]]  #: its heading, and its value in a row
_WIDE = 1_000  #: columns of a table that is not on a terminal: nothing is cut


class Output(StrEnum):
    """Forms of the answer."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    NDJSON = "ndjson"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to show it.")]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colours; also when NO_COLOR is set.")]


def console(no_color: bool = False) -> Console:
    """Where tables and sentences go."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _WIDE
    return Console(no_color=no_color or None, width=width, highlight=False)


def show_data(value: Any, output: Output) -> None:
    """Print what is not for a table: one document, or a line for each item of a list."""
    match output:
        case Output.YAML:
            import yaml  # type: ignore[import-untyped]

            print(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), end="")
        case Output.NDJSON:
            for item in items_of(value):
                print(json.dumps(item))
        case _:
            print(json.dumps(value, indent=2))


def items_of(value: Any) -> Iterable[Any]:
    """The items of a list or of a page; anything else is one item."""
    if isinstance(value, dict) and isinstance(value.get("items"), list):
        return list(value["items"])
    return value if isinstance(value, list) else [value]


def show_rows(
    value: Any, output: Output, columns: Sequence[Column], *, no_color: bool = False, empty: str = "", title: str = ""
) -> None:
    """Print a list: as a table of these columns, or as data."""
    if output is not Output.TABLE:
        show_data(value, output)
        return
    rows = list(items_of(value))
    out = console(no_color)
    if not rows:
        out.print(empty or "nothing", style="dim")
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading, _ in columns:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(escape(_text(get(row))) for _, get in columns))
    out.print(table)


def show_facts(value: dict[str, Any], output: Output, *, no_color: bool = False) -> None:
    """Print one thing: a line for each fact, or as data."""
    if output is not Output.TABLE:
        show_data(value, output)
        return
    plain = {name: fact for name, fact in value.items() if not isinstance(fact, list | dict)}
    show_rows(list(plain.items()), output, [("fact", lambda p: p[0]), ("value", lambda p: p[1])], no_color=no_color)


def lag(ms: float | None) -> str:
    """A duration in milliseconds for people."""
    if ms is None:
        return "-"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    return f"{ms / 60_000:.1f} min" if ms < 3_600_000 else f"{ms / 3_600_000:.1f} h"


def size(amount: float | None) -> str:
    """A number of bytes for people."""
    if amount is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
