"""Keys and values of raw and txn tenants in requests and answers of both clients (pure)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tistream.client.core.requests import Moment, given, wait_params
from tistream.errors import InvalidInput

IN_BYTES = {"key_format": "base64"}  #: the form in which `entry_of` expects keys and values


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFilter:
    """Which keys and values are wanted; None = all. Patterns are regular expressions, see docs/filters.md."""

    start: bytes | None = None
    end: bytes | None = None
    prefix: bytes | None = None
    key_pattern: str | None = None
    value_pattern: str | None = None

    def params(self, options: Mapping[str, str] | None) -> dict[str, str]:
        """The query of these keys, in the key format that the options ask for. Options win."""
        form = (options or {}).get("key_format", "hex")
        keys = {"start_key": self.start, "end_key": self.end, "prefix": self.prefix}
        texts = {name: None if key is None else _text(key, form) for name, key in keys.items()}
        patterns = {"key_pattern": self.key_pattern, "value_pattern": self.value_pattern}
        return given({**texts, **patterns}) | dict(options or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryQuery:
    """Entries as of a moment (`kv/rows`), or the versions of one key (`kv/history`)."""

    what: str  #: the last word of the path
    params: Mapping[str, str]
    keys: KeyFilter = KeyFilter()
    key: bytes | None = None  #: the one whose versions are asked for
    wait_s: float = 0

    def first(self, format: str, options: Mapping[str, str] | None) -> dict[str, str]:
        """The query of the first page."""
        params = self.keys.params(options)
        if "key_pattern" in params or "value_pattern" in params:
            raise InvalidInput("Patterns choose changes of keys, not their state: leave them out.")
        if self.key is not None:
            params["key"] = _text(self.key, params.get("key_format", "hex"))
        return {**self.params, **params, "format": format}

    def next(self, params: Mapping[str, str], headers: Mapping[str, str]) -> dict[str, str] | None:
        """The query of the page that follows an answer; None after the last."""
        if headers["TiStream-Has-More"] != "true":
            return None
        return {**params, "cursor": headers["TiStream-Next-Cursor"]}


def state_query(keys: KeyFilter, as_of: Moment, *, limit: int | None, allow_state: bool, wait_s: float) -> EntryQuery:
    """The entries of these keys as of a moment."""
    state = {"allow_state": "true"} if allow_state else {}
    params = given({"as_of": as_of, "limit": limit}) | state | wait_params(wait_s)
    return EntryQuery(what="rows", params=params, keys=keys, wait_s=wait_s)


def history_query(key: bytes, start: Moment | None, end: Moment | None, limit: int | None) -> EntryQuery:
    """The versions of a key."""
    params = given({"start_ts": start, "end_ts": end, "limit": limit})
    return EntryQuery(what="history", params=params, key=key)


def entry_of(line: dict[str, Any]) -> dict[str, Any]:
    """A change of an answer IN_BYTES, its key and value as bytes."""
    value = line["value"]
    return {
        **line,
        "key": base64.b64decode(line["key"]),
        "value": None if value is None else base64.b64decode(value),
    }


def _text(key: bytes, form: str) -> str:
    match form:
        case "base64":
            return base64.b64encode(key).decode()
        case "escaped":
            return "".join(f"\\x{byte:02x}" for byte in key)
        case "utf8":
            try:
                return key.decode()
            except UnicodeDecodeError as e:
                raise InvalidInput(f"The key 0x{key.hex()} is not UTF-8: use another key_format.", key=key) from e
    return key.hex()
