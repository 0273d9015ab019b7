"""Options of formats, named as in TiCDC's sink URI, so that a changefeed's settings carry over unchanged."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from tistream.errors import InvalidInput

_BINARY_ENCODINGS = ("base64", "hex")
_INTERNAL = frozenset({"built_ms"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatOptions:
    """Options of all formats; each format reads its own."""

    enable_tidb_extension: bool = False  #: canal-json, debezium: commit_ts in messages, watermark messages
    content_compatible: bool = False  #: canal-json: full column types, only changed columns in `old`
    only_output_updated_columns: bool = False  #: canal-json, open-protocol: only changed columns of the old row
    debezium_disable_schema: bool = False
    cluster_name: str = "default"  #: debezium: source.name
    delimiter: str = ","  #: csv
    quote: str = '"'  #: csv; empty = escape with a backslash instead
    null: str = "\\N"  #: csv
    terminator: str = "\r\n"  #: csv
    include_commit_ts: bool = False  #: csv
    output_old_value: bool = False  #: csv: an update as two records
    binary_encoding_method: str = "base64"  #: csv: base64 or hex
    output_raw_change_event: bool = False  #: never split an update
    built_ms: int = 0  #: Unix milliseconds, the build time of messages


def parse_options(query: Mapping[str, str], *, built_ms: int = 0) -> FormatOptions:
    """Options from query parameters such as `enable-tidb-extension=true`.

    InvalidInput for an unknown option or value.
    """
    kinds = {f.name.replace("_", "-"): f for f in fields(FormatOptions) if f.name not in _INTERNAL}
    chosen: dict[str, bool | str] = {}
    for word, text in query.items():
        field = kinds.get(word)
        if field is None:
            raise InvalidInput(f"There is no option {word!r}{did_you_mean(word, kinds)}", option=word)
        chosen[field.name] = _boolean(word, text) if isinstance(field.default, bool) else text
    options = replace(FormatOptions(built_ms=built_ms), **chosen)  # type: ignore[arg-type]
    _check(options)
    return options


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the nearest known ones, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(word.lower().replace("_", "-"), names, n=2, cutoff=0.6)
    return f". Did you mean {' or '.join(close)}?" if close else f". Known: {', '.join(names)}."


def _boolean(word: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidInput(f"Option {word} is true or false, not {text!r}.", option=word, value=text)
    return text.lower() == "true"


def _check(options: FormatOptions) -> None:
    method = options.binary_encoding_method
    if method not in _BINARY_ENCODINGS:
        hint = did_you_mean(method, _BINARY_ENCODINGS)
        raise InvalidInput(f"There is no binary encoding {method!r}{hint}", option="binary-encoding-method")
    if len(options.quote.encode()) > 1:
        raise InvalidInput("A quote is one ASCII character or empty.", option="quote", value=options.quote)
    if not 1 <= len(options.delimiter) <= 3 or options.delimiter.strip("\r\n") != options.delimiter:
        raise InvalidInput("A delimiter is one to three characters, no line end.", option="delimiter")
    if options.quote and options.quote in options.delimiter:
        raise InvalidInput("The delimiter contains the quote.", option="delimiter", value=options.delimiter)
    if not options.quote and (len(options.delimiter.encode()) != 1 or options.delimiter in "nr\\"):
        raise InvalidInput(
            "Without a quote the delimiter is one ASCII character, not n, r or a backslash.", option="quote"
        )
    if not options.terminator:
        raise InvalidInput("A terminator is at least one character.", option="terminator")
