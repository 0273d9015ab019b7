"""Options of formats, named as in TiCDC's sink URI, so that a changefeed's settings carry over unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from tistream.errors import InvalidInput, did_you_mean

_BINARY_ENCODINGS = ("base64", "hex")
_MEANING, _BYTES_MAX = "meaning", "bytes_max"


def _option(default: bool | str, meaning: str, bytes_max: int = 5) -> Any:
    """`bytes_max`: of the option's text in UTF-8: it may be written once for each value of each row."""
    return field(default=default, metadata={_MEANING: meaning, _BYTES_MAX: bytes_max})


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatOptions:
    """Options of all formats; each format reads its own."""

    enable_tidb_extension: bool = _option(
        False, "canal-json, debezium: commit_ts in messages, and watermark messages: true or false"
    )
    content_compatible: bool = _option(
        False, "canal-json: full column types, and only changed columns in `old`: true or false"
    )
    only_output_updated_columns: bool = _option(
        False, "canal-json, open-protocol: only changed columns of the old row: true or false"
    )
    debezium_disable_schema: bool = _option(False, "debezium: messages without their schema: true or false")
    cluster_name: str = _option("default", "debezium: `source.name`", 256)
    delimiter: str = _option(",", "csv: between two columns", 12)
    quote: str = _option('"', "csv: around text; empty = escape with a backslash instead", 12)
    null: str = _option("\\N", "csv: the text for NULL", 64)
    terminator: str = _option("\r\n", "csv: the end of a line", 16)
    include_commit_ts: bool = _option(False, "csv: a column with the commit_ts: true or false")
    output_old_value: bool = _option(False, "csv: an update as two records: true or false")
    binary_encoding_method: str = _option("base64", "csv: base64 or hex", 16)
    output_raw_change_event: bool = _option(False, "never split an update: true or false")
    built_ms: int = 0  #: Unix milliseconds, the build time of messages
    built_at_commit: bool = False  #: canal-json: the build time of a row is that of its commit
    snapshot: bool = False  #: the messages are rows of a snapshot, not changes


class Option(NamedTuple):
    """What an option means, and how long its text may be."""

    meaning: str
    bytes_max: int


def format_options() -> dict[str, Option]:
    """By the name that an option has in a query."""
    return {f.name.replace("_", "-"): Option(**f.metadata) for f in fields(FormatOptions) if f.metadata}


def parse_options(query: Mapping[str, str], *, built_ms: int = 0, built_at_commit: bool = False) -> FormatOptions:
    """Options from query parameters such as `enable-tidb-extension=true`.

    InvalidInput for an unknown option or value.
    """
    kinds = {f.name.replace("_", "-"): f for f in fields(FormatOptions) if f.metadata}
    chosen: dict[str, bool | str] = {}
    for word, text in query.items():
        kind = kinds.get(word)
        if kind is None:
            raise InvalidInput(f"There is no option {word!r}{did_you_mean(word, kinds)}", option=word)
        is_boolean = isinstance(kind.default, bool)
        chosen[kind.name] = _boolean(word, text) if is_boolean else _text(word, text, kind.metadata[_BYTES_MAX])
    options = replace(FormatOptions(built_ms=built_ms, built_at_commit=built_at_commit), **chosen)  # type: ignore[arg-type]
    _check(options)
    return options


def _text(word: str, text: str, bytes_max: int) -> str:
    if len(text.encode("utf-8", "surrogatepass")) > bytes_max:
        cause = f"Option {word} has {len(text)} characters, and its text is at most {bytes_max} bytes."
        raise InvalidInput(cause, option=word, bytes_max=bytes_max)
    return text


def _boolean(word: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidInput(f"Option {word} is true or false, not {text[:40]!r}.", option=word, value=text[:40])
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
