"""Text formats of the pull API: canal-json, open-protocol, simple, csv and debezium as TiCDC writes them, and ndjson.

A format renders decoded changes as lines, column by column, without a Python object per row.
"""

from __future__ import annotations

from collections.abc import Callable

from reading.formats.canal_json import CanalJson
from reading.formats.csv import Csv
from reading.formats.debezium import Debezium
from reading.formats.ndjson import Ndjson
from reading.formats.open_protocol import OpenProtocol
from reading.formats.options import FormatOptions, format_options, parse_options
from reading.formats.protocol import Format
from reading.formats.simple import Simple
from tistream.errors import InvalidInput, did_you_mean

__all__ = ["FORMAT_NAMES", "Format", "FormatOptions", "create_format", "format_options", "parse_options"]

_FORMATS: dict[str, Callable[[FormatOptions], Format]] = {
    "canal-json": CanalJson,
    "open-protocol": OpenProtocol,
    "simple": Simple,
    "csv": Csv,
    "debezium": Debezium,
    "ndjson": Ndjson,
}

FORMAT_NAMES = tuple(_FORMATS)


def create_format(name: str, options: FormatOptions | None = None) -> Format:
    """The format of that name. InvalidInput for an unknown name."""
    make = _FORMATS.get(name)
    if make is None:
        raise InvalidInput(f"There is no format {name!r}{did_you_mean(name, _FORMATS)}", format=name)
    return make(options or FormatOptions())
