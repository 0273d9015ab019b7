"""Changefeeds: what the service writes to a destination, as the catalog keeps them.

A changefeed's checkpoint is the lowest of its lanes (`tistream.catalog.work.lanes`); its lifecycle is in
`tistream.catalog.work.changefeeds`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

import orjson

from tistream.catalog.database.records import record_of
from tistream.catalog.database.tables import changefeeds
from tistream.catalog.tenancy.log_readers import LogReader, ReaderTable
from tistream.limits import CHANGEFEEDS_MAX

_SECRET = re.compile("secret|token|passw|credential", re.IGNORECASE)  # in the name of an option
_USER = re.compile(r"//[^/?#]*@")
_OPTIONS = re.compile(r"[?#]")
_HIDDEN = "***"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangefeedRow(LogReader):
    """What the service writes to a destination."""

    sink_uri: str  #: where the service writes
    options: str  #: JSON of the settings beside the URI, and of what its destination is
    dead_letters: int  #: refused changes that were written to its dead-letter place
    error: dict[str, Any] | None  #: why it is failed

    @property
    def dead_letter(self) -> str:
        """Where refused changes are written; empty = an operator decides about them."""
        return str(orjson.loads(self.options).get("dead_letter", ""))

    @property
    def shown_uri(self) -> str:
        """The sink URI without secrets."""
        return masked_uri(self.sink_uri)


def masked_uri(sink_uri: str) -> str:
    """A sink URI for people: user names with passwords, and the values of secret options, are replaced. Names are
    compared as they are read, decoded; a value ends at the next `&`."""
    begin = _OPTIONS.search(sink_uri)
    at = len(sink_uri) if begin is None else begin.end()
    options = sink_uri[at:].split("&")
    return _USER.sub(f"//{_HIDDEN}@", sink_uri[:at]) + "&".join(map(_masked_option, options))


def _masked_option(text: str) -> str:
    name, given, value = text.partition("=")
    return f"{name}={_HIDDEN}" if given and (_SECRET.search(_decoded(name)) or _USER.search(_decoded(value))) else text


def _decoded(text: str) -> str:
    while (once := unquote_plus(text)) != text:
        text = once
    return text


def _row(row: Any, common: Mapping[str, Any]) -> ChangefeedRow:
    return record_of(ChangefeedRow, row, **common, error=None if row.error is None else orjson.loads(row.error))


CHANGEFEEDS = ReaderTable(changefeeds, "changefeed", CHANGEFEEDS_MAX, _row)
