"""Filters on the command line of `tistream pull`: an option for each, and the `[filter]` section of a TiCDC changefeed.

    --tables 'shop.*' --tables '!shop.audit_*' --where "price > 10"
    --filter-file changefeed.toml

    [filter]                                     rules and event filters as `tiup cdc cli changefeed create` reads them
    rules = ['shop.*', '!shop.audit_*']
    [[filter.event-filters]]
    matcher = ['shop.orders']
    ignore-event = ['delete']

An option of the command line takes precedence over the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tistream.errors import InvalidInput

Tables = Annotated[
    list[str] | None,
    typer.Option(help="Only tables of these rules: 'shop.*', '!shop.audit_*'. The last match decides."),
]
Columns = Annotated[
    list[str] | None, typer.Option(help="Only columns of these rules, and the key: id,name or '*,!photo'.")
]
Ops = Annotated[list[str] | None, typer.Option(help="Only these kinds: insert, update, delete, ddl.")]
Where = Annotated[str | None, typer.Option(help="Only rows for which this is true: \"price > 10 AND state = 'new'\".")]
Changed = Annotated[
    list[str] | None, typer.Option(help="Of updates only those that change a column of these rules: '*,!seen_at'.")
]
FilterFile = Annotated[
    Path | None, typer.Option(help="A TiCDC changefeed's TOML: rules and event-filters of its [filter] section.")
]
_IN_TIKV_CDC = {"key-prefix": "key_prefix", "key-pattern": "key_pattern", "value-pattern": "value_pattern"}
_IN_TICDC = {"rules": "tables", "event-filters": "event_filters"}


def filters_of(
    query: Mapping[str, str],
    file: Path | None,
    *,
    tables: Sequence[str] | None,
    columns: Sequence[str] | None,
    ops: Sequence[str] | None,
    where: str | None,
    changed: Sequence[str] | None,
) -> dict[str, str]:
    """The filters of a pull as the query has them: from an address, a file, and options, which win."""
    from tistream.client.core.requests import FILTERS, filter_text

    given = {"tables": tables, "columns": columns, "ops": ops, "where": where, "changed": changed}
    found = {name: query[name] for name in FILTERS if name in query}
    if file is not None:
        found |= {name: filter_text(value) for name, value in read_filter_file(file).items()}
    return found | {name: filter_text(value) for name, value in given.items() if value}


def read_key_filter(path: Path) -> dict[str, str]:
    """The filter of a TiKV-CDC changefeed's configuration, as the API has it; empty for one of TiCDC."""
    section = _section_of(path)
    found = {_IN_TIKV_CDC[name]: value for name, value in section.items() if name in _IN_TIKV_CDC}
    if found and (found.keys() != {_IN_TIKV_CDC.get(name) for name in section}):
        raise InvalidInput(f"{path}: [filter] is about tables or about keys, not both.", file=str(path))
    return {name: str(value) for name, value in found.items()} | ({"key_format": "escaped"} if found else {})


def _section_of(path: Path) -> dict[str, Any]:
    try:
        section = tomllib.loads(path.read_text("utf-8")).get("filter")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise InvalidInput(f"{path} cannot be read: {e}.", file=str(path)) from e
    if not isinstance(section, dict) or not section:
        raise InvalidInput(f"{path} has no [filter] section.", file=str(path))
    return section


def read_filter_file(path: Path) -> dict[str, Any]:
    """`tables` and `event_filters` of a changefeed's configuration. InvalidInput for a file that has none, or has
    something else in its `[filter]` section."""
    section = _section_of(path)
    if unknown := sorted(section.keys() - _IN_TICDC.keys()):
        names = ", ".join(unknown)
        raise InvalidInput(f"{path}: {names} of [filter] has no counterpart here; remove it.", file=str(path))
    if not all(isinstance(value, list) for value in section.values()):
        raise InvalidInput(f"{path}: rules and event-filters of [filter] are lists.", file=str(path))
    return {_IN_TICDC[name]: value for name, value in section.items()}
