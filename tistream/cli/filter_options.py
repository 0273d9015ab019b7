"""Filters on the command line of `tistream pull`: an option for each, and the `[filter]` section of a TiCDC changefeed.

    --tables 'shop.*' --tables '!shop.audit_*' --where "price > 10"
    --filter-file changefeed.toml

    [filter]                                     rules and event filters as `tiup cdc cli changefeed create` reads them
    rules = ['shop.*', '!shop.audit_*']
    [[filter.event-filters]]
    matcher = ['shop.orders']
    ignore-event = ['delete']

An option of the command line takes precedence over the file.

Options of keys are those of `tistream pull --keys` and `tistream snapshot --keys`: the entries of a raw or txn tenant.

A TiCDC changefeed's configuration file: what of it is applied here, what has no meaning, and what is refused.

applied     [filter] rules and event-filters; column-selectors of all tables; of [sink] what the URI of a storage
            destination takes as well
no meaning  what tunes TiCDC itself, or another kind of destination: the command names it on standard error
refused     everything else: a setting that is dropped without a word would change what is delivered
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

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
    Path | None, typer.Option(help="A TiCDC changefeed's TOML: rules and event-filters of its 'filter' section.")
]
_IN_TIKV_CDC = {"key-prefix": "key_prefix", "key-pattern": "key_pattern", "value-pattern": "value_pattern"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterOptions:
    """What of the changes of tables is wanted."""

    tables: Tables = None
    columns: Columns = None
    ops: Ops = None
    where: Where = None
    changed: Changed = None


def filters_of(
    query: Mapping[str, str], file: Path | None, options: FilterOptions, *, pulls: bool = True
) -> dict[str, str]:
    """The filters of a pull as the query has them: from an address, a file, and options, which win. `pulls`: as
    `read_filter_file` has it."""
    from tistream.client.core.requests import FILTERS, filter_text

    filters = {name: query[name] for name in FILTERS if name in query}
    if file is not None:
        filters |= {name: filter_text(value) for name, value in read_filter_file(file, pulls=pulls).items()}
    return filters | {name: filter_text(value) for name, value in asdict(options).items() if value}


def read_key_filter(path: Path) -> dict[str, str]:
    """The filter of a TiKV-CDC changefeed's configuration, as the API has it; empty for one of TiCDC."""
    section = _section_of(path, read_toml(path))
    options = {_IN_TIKV_CDC[name]: value for name, value in section.items() if name in _IN_TIKV_CDC}
    if options and (options.keys() != {_IN_TIKV_CDC.get(name) for name in section}):
        raise InvalidInput(f"{path}: [filter] is about tables or about keys, not both.", file=str(path))
    return {name: str(value) for name, value in options.items()} | ({"key_format": "escaped"} if options else {})


def _section_of(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    section = content.get("filter")
    if not isinstance(section, dict) or not section:
        raise InvalidInput(f"{path} has no [filter] section.", file=str(path))
    return section


def read_filter_file(path: Path, *, pulls: bool = True) -> dict[str, Any]:
    """The filters of a changefeed's configuration. InvalidInput for a file that has none, or a setting that cannot be
    applied. `pulls`: there is no destination, and what the file says of one is named on standard error."""
    content = read_toml(path)
    _section_of(path, content)
    changefeed = parse_changefeed(path, content)
    unused = (
        [f"{path}: {name} of [sink] is not used, there is no destination." for name in changefeed.sink] if pulls else []
    )
    for note in (*changefeed.notes, *unused):
        typer.echo(note, err=True)
    return changefeed.filters


Keys = Annotated[
    bool, typer.Option("--keys", help="Keys and values of a raw or txn tenant; any option of keys means it.")
]
StartKey = Annotated[str | None, typer.Option(help="Only keys from this one on, in the key format.")]
EndKey = Annotated[str | None, typer.Option(help="Only keys below this one, in the key format.")]
Prefix = Annotated[str | None, typer.Option(help="Only keys that begin with this, in the key format.")]
FormatOfKeys = Annotated[
    str | None, typer.Option("--key-format", help="escaped (default; k1\\x00), hex, base64 or utf8.")
]
KeyPattern = Annotated[str | None, typer.Option(help="Only keys with a match of this regular expression over bytes.")]
ValuePattern = Annotated[str | None, typer.Option(help="Only deletes, and values with a match of this expression.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOptions:
    """The keys that are read."""

    keys: Keys = False
    start_key: StartKey = None
    end_key: EndKey = None
    prefix: Prefix = None
    key_format: FormatOfKeys = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFilterOptions(KeyOptions):
    """The keys and values whose changes are read."""

    key_pattern: KeyPattern = None
    value_pattern: ValuePattern = None


def chosen_keys(
    options: KeyOptions, *, others: Mapping[str, object], keys: bool = False, address: bool = False, **more: str | None
) -> dict[str, str] | None:
    """The part of the query that is about keys; None when tables are pulled. `address`: a whole URL says so itself.
    `others`: what only tables have. `keys`: another option means keys."""
    given = {**asdict(options), **more}
    keys = given.pop("keys") or keys
    chosen = {name: text for name, text in given.items() if text is not None}
    if not (keys or chosen):
        return None
    if refused := [name for name, value in others.items() if value]:
        raise InvalidInput(f"Keys have no {' and no '.join(refused)}: leave that out with --keys.")
    return chosen if address else {"key_format": "escaped", **chosen}


_FILTERS = {"rules": "tables", "event-filters": "event_filters"}
#: options that tune TiCDC itself, or a destination that is not written here
WITHOUT_MEANING = frozenset(
    {
        "memory-quota", "force-replicate", "check-gc-safe-point", "ignore-ineligible-table", "enable-table-monitor",
        "changefeed-error-stuck-duration", "sync-point-interval", "sync-point-retention", "synced-status", "mounter",
        "scheduler", "sql-mode", "sink.encoder-concurrency", "sink.advance-timeout-in-sec", "sink.kafka-config",
        "sink.pulsar-config", "sink.mysql-config", "sink.enable-kafka-sink-v2", "sink.schema-registry",
        "sink.transaction-atomicity", "sink.safe-mode", "sink.send-bootstrap-interval-in-sec",
        "sink.send-bootstrap-in-msg-count", "sink.send-bootstrap-to-all-partition",
    }
)  # fmt: skip
#: options of which only this value is how things are here
ONLY: Mapping[str, object] = {
    "case-sensitive": False,
    "enable-sync-point": False,
    "bdr-mode": False,
    "consistent.level": "none",
    "integrity.integrity-check-level": "none",
    "sink.delete-only-output-handle-key-columns": False,
}
#: options of [sink] that the URI of a destination takes under the same name
IN_URI = frozenset(
    {
        "protocol", "terminator", "date-separator", "enable-partition-separator", "file-index-digit",
        "only-output-updated-columns", "content-compatible", "debezium-disable-schema",
    }
)  # fmt: skip
_SECTIONS_IN_URI = ("csv", "cloud-storage-config")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangefeedFile:
    """What of a file is used."""

    filters: dict[str, Any]  #: as the API has them
    sink: dict[str, str]  #: options for the URI of the destination
    notes: tuple[str, ...]  #: about options without a meaning here


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a file. InvalidInput when it cannot be read."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise InvalidInput(f"{path} cannot be read: {e}.", file=str(path)) from e


def parse_changefeed(path: Path, parsed: Mapping[str, Any]) -> ChangefeedFile:
    """What of a changefeed's file is used. InvalidInput names an option that cannot be applied."""
    filters, sink, ignored = dict[str, Any](), dict[str, str](), list[str]()
    for name, value in _options(parsed):
        section, _, rest = name.partition(".")
        if name == "filter":
            filters |= _filters(path, value)
        elif name == "sink.column-selectors":
            filters["columns"] = _columns(path, value)
        elif name in ONLY:
            if value != ONLY[name]:
                raise _refused(path, name, f"only {ONLY[name]!r} can be applied here".lower())
        elif section == "sink" and (rest in IN_URI or rest.partition(".")[0] in _SECTIONS_IN_URI):
            sink[rest.rpartition(".")[2]] = str(value).lower() if isinstance(value, bool) else str(value)
        elif any(name == each or name.startswith(each + ".") for each in WITHOUT_MEANING):
            ignored.append(name)
        elif section in ("consistent", "integrity") and rest:
            ignored.append(name)  # without their level they mean nothing
        else:
            raise _refused(path, name, "it has no counterpart here")
    notes = (f"{path}: no meaning here: {', '.join(ignored)}.",) if ignored else ()
    return ChangefeedFile(filters=filters, sink=sink, notes=notes)


def with_options(uri: str, options: Mapping[str, str]) -> str:
    """The URI with these options added to its own, which win."""
    parts = urlsplit(uri)
    own = {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
    more = urlencode({name: value for name, value in options.items() if name not in own})
    return urlunsplit(parts._replace(query="&".join(filter(None, (parts.query, more)))))


def _options(section: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """(dotted name, value) of each option; the section `filter` is one."""
    options = []
    for name, value in section.items():
        whole = before + name
        options += (
            [(whole, value)] if whole == "filter" or not isinstance(value, dict) else _options(value, f"{whole}.")
        )
    return options


def _filters(path: Path, section: Any) -> dict[str, Any]:
    if not isinstance(section, dict) or not section:
        raise InvalidInput(f"{path} has no [filter] section.", file=str(path))
    if unknown := sorted(section.keys() - _FILTERS.keys()):
        names = ", ".join(unknown)
        raise InvalidInput(f"{path}: {names} of [filter] has no counterpart here; remove it.", file=str(path))
    if not all(isinstance(value, list) for value in section.values()):
        raise InvalidInput(f"{path}: rules and event-filters of [filter] are lists.", file=str(path))
    return {_FILTERS[name]: value for name, value in section.items()}


def _columns(path: Path, selectors: Any) -> list[str]:
    """The rules of one selector for all tables."""
    one = selectors[0] if isinstance(selectors, list) and len(selectors) == 1 else None
    if not isinstance(one, dict) or one.get("matcher") != ["*.*"] or not isinstance(one.get("columns"), list):
        raise _refused(path, "sink.column-selectors", "only one selector with matcher = ['*.*'] can be applied here")
    return [str(rule) for rule in one["columns"]]


def _refused(path: Path, name: str, cause: str) -> InvalidInput:
    return InvalidInput(f"{path}: {name} cannot be applied: {cause}. Remove it.", file=str(path), option=name)
