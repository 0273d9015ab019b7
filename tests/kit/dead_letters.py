"""A changefeed of the recording's shop.acct, with two rows that cannot be decoded: what is in its folder, and what is
in that of its dead letters."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.kit.log_builder import with_broken_value
from tests.kit.recording import committed_rows, expected
from tests.kit.ticdc import message_text

CANAL = "protocol=canal-json&enable-tidb-extension=true&enable-partition-separator=false"
ACCT = {"tables": "shop.acct"}


def broken() -> tuple[pa.Table, set[tuple[str, int]]]:
    """The recording with two rows of shop.acct that cannot be decoded; (key in hex, commit ts) of these."""
    rows = committed_rows()
    of_acct = {(e["key_hex"], int(e["commit_ts"])) for e in expected("ticdc-canal-json-tidb") if is_of_acct(e)}
    places = list(zip((key.hex() for key in rows["key"].to_pylist()), rows["commit_ts"].to_pylist(), strict=True))
    chosen = [n for n, place in enumerate(places) if place in of_acct and rows["value"][n].as_py()][100:102]
    for at in chosen:
        rows = with_broken_value(rows, at)
    return rows, {places[at] for at in chosen}


def is_of_acct(entry: dict[str, Any]) -> bool:
    return (entry["kind"], entry.get("db"), entry.get("table")) == ("row", "shop", "acct")


def messages_but(bad: set[tuple[str, int]]) -> list[dict[str, Any]]:
    """TiCDC's messages of shop.acct without those of these changes."""
    entries = [entry for entry in expected("ticdc-canal-json-tidb") if is_of_acct(entry)]
    return without_build_time(message_text(e["msg"]) for e in entries if (e["key_hex"], int(e["commit_ts"])) not in bad)


def messages_in(folder: Path) -> list[dict[str, Any]]:
    paths = sorted(folder.glob("shop/acct/*/*/CDC0*.json"))
    return without_build_time(line.decode() for path in paths for line in path.read_bytes().split(b"\r\n")[:-1])


def without_build_time(lines: Iterator[str]) -> list[dict[str, Any]]:
    messages = [json.loads(line) for line in lines]
    for message in messages:
        del message["ts"]
    return messages


def letters_in(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.glob("*/**/*.json")}


def places_of(letters: dict[str, bytes]) -> list[tuple[str, int]]:
    """What the letters of rows are about."""
    letters_read = [json.loads(data) for data in letters.values()]
    return [(b64decode(letter["stored"]["key"]).hex(), int(letter["commit_ts"])) for letter in letters_read]
