"""How answers are printed: `--format table|json|yaml|ndjson`, `--json` and `--no-color` of all commands.

JSON, YAML and NDJSON are what the API answered. A table has the columns that a person needs, with readable values; it
is cut at the terminal's width only on a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tistream.cli.terminal import clean, clean_lines

if TYPE_CHECKING:
    from rich.console import Console

Column = str | tuple[str, Callable[[Any], object]]  #: heading, and its value in a row, or its name there
_WIDE = 1_000  #: columns of a table that is not on a terminal: nothing is cut
_NAME_WIDTH = 20  #: columns that a narrow terminal leaves to the first one


class OutputForm(StrEnum):
    """Forms of the answer."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    NDJSON = "ndjson"


OutputOption = Annotated[OutputForm, typer.Option("--format", help="Form of the answer.")]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colours; also when NO_COLOR is set.")]


def console(no_color: bool = False) -> Console:
    """Where tables and sentences go."""
    from tistream.cli.printable_console import PrintableConsole

    width = None if sys.stdout.isatty() else _WIDE
    return PrintableConsole(file=sys.stdout, no_color=no_color or None, width=width, highlight=False)


def show_data(value: Any, output: OutputForm = OutputForm.JSON) -> None:
    """Print one document, or a line for each item of a list."""
    match output:
        case OutputForm.YAML:
            print(_yaml(value), end="")
        case OutputForm.NDJSON:
            for item in items_of(value):
                print(json.dumps(item), flush=True)
        case _:
            print(json.dumps(value, indent=2), flush=True)


def _yaml(value: Any) -> str:
    """YAML with other alphabets as they are, and characters that steer a terminal as escapes."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: Dumper, text: str) -> Any:
        text = str(text)  # of an enumeration
        quotes = '"' if clean_lines(text) != text else None  # only between these are there escapes
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=quotes)

    Dumper.add_multi_representer(str, text)
    Dumper.add_representer(str, text)
    return clean_lines(str(yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True)))


def items_of(value: Any) -> Iterable[Any]:
    """The items of a list or of a page; anything else is one item."""
    if isinstance(value, dict) and isinstance(value.get("items"), list):
        return list(value["items"])
    return value if isinstance(value, list) else [value]


def show_rows(
    value: Any,
    output: OutputForm,
    columns: Sequence[Column],
    *,
    no_color: bool = False,
    empty: str = "",
    title: str = "",
    numbers: Collection[str] = (),
) -> None:
    """Print a list: as a table of these columns, or as data. `numbers`: headings that are aligned to the right."""
    if output is not OutputForm.TABLE:
        show_data(value, output)
        return
    rows = list(items_of(value))
    if not rows and empty:
        console(no_color).print(empty, style="dim")
        return
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(clean(title)) if title else None, title_justify="left", box=None, pad_edge=False)
    table.header_style = "bold"
    cells_of = [(each, itemgetter(each)) if isinstance(each, str) else each for each in columns]
    for heading, _ in cells_of:
        table.add_column(Text(clean(heading)), overflow="fold", justify="right" if heading in numbers else "left")
    for row in rows:
        cells = [get(row) for _, get in cells_of]
        table.add_row(*(cell if isinstance(cell, Text) else Text(clean(_text(cell))) for cell in cells))
    names = table.columns[0]  # they are copied: a narrow terminal folds the other columns first
    names.min_width = min(_NAME_WIDTH, max((cell_len(str(name)) for name in names.cells), default=0))
    console(no_color).print(table)


def show_facts(value: dict[str, Any], output: OutputForm, *, no_color: bool = False) -> None:
    """Print one thing: a line for each fact, or as data."""
    if output is not OutputForm.TABLE:
        show_data(value, output)
        return
    plain = {name: said for name, fact in value.items() if (said := _flat(fact)) is not _NESTED}
    show_rows(list(plain.items()), output, [("fact", lambda p: p[0]), ("value", lambda p: p[1])], no_color=no_color)


_NESTED = object()


def _flat(fact: Any) -> Any:
    """A fact as one text; _NESTED for what needs its own table."""
    parts = fact.values() if isinstance(fact, dict) else fact if isinstance(fact, list) else ()
    if any(isinstance(part, dict | list) for part in parts):
        return _NESTED
    if isinstance(fact, dict):
        return ", ".join(f"{name}={_text(part)}" for name, part in fact.items()) or None
    return (", ".join(map(_text, fact)) or None) if isinstance(fact, list) else fact


def _text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
