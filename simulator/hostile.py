"""Unusable schema snapshots that a tenant may push: each keeps its own tenant waiting, and no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: fault -> the document, made from a good one
HOSTILE: Mapping[str, Callable[[dict[str, Any]], object]] = {
    "a database that is nothing": lambda good: {**good, "dbs": [None]},
    "a database that is a text": lambda good: {**good, "dbs": ["x"]},
    "a version that is a text": lambda good: {**good, "schema_version": "x"},
    "a table that is nothing": lambda good: {**good, "tables": [None]},
    "no tables": lambda good: {**good, "tables": []},
    "a ts beyond 63 bits": lambda good: {**good, "ts": str((1 << 63) + 5)},
    "a list": lambda good: [good],
}
