"""Notifications of an S3 server about new objects: which of our files they name.

A notification is a hint to look, never content: it may be lost, late, repeated or forged. Understood are the events of
S3 and compatible servers ("Records"), as a message of a queue or the body of a webhook, bare or in a notification of
SNS. Only batch files and schema snapshots under the deployment's bucket and prefix count. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

import orjson

from tistream.errors import InvalidInput
from tistream.ids import Tenant
from tistream.objectstore.layout import BatchKey, SchemaSnapKey, parse

BODY_BYTES_MAX = 1 << 20  #: SQS allows as much
RECORDS_MAX = 10_000
_KEY_BYTES_MAX = 1024  # S3's
_CREATED = ("ObjectCreated:", "s3:ObjectCreated:")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifiedObject:
    """What notifications name."""

    files: tuple[BatchKey, ...]  #: the newest file of each store and incarnation
    schemas: frozenset[Tenant]  #: tenants with a new schema snapshot
    ignored: int = 0  #: events about anything else


def read_events(body: bytes, bucket: str, prefix: str = "") -> NotifiedObject:
    """The files that one message names. InvalidInput when it is no message of an S3 server."""
    files: dict[tuple[Tenant, int, int], BatchKey] = {}
    schemas, ignored = set(), 0
    for record in _records(body):
        match _named(record, bucket, prefix):
            case BatchKey() as key:
                at = key.tenant, key.store_id, key.incarnation
                files[at] = max(files.get(at, key), key, key=lambda k: k.seq)
            case SchemaSnapKey(tenant=tenant):
                schemas.add(tenant)
            case _:
                ignored += 1
    return NotifiedObject(files=tuple(files.values()), schemas=frozenset(schemas), ignored=ignored)


def _records(body: bytes) -> Iterator[Any]:
    if len(body) > BODY_BYTES_MAX:
        raise InvalidInput("a notification is too long", bytes=len(body))
    try:
        message = orjson.loads(body)
        if isinstance(message, Mapping) and message.get("Type") == "Notification":  # of SNS
            message = orjson.loads(message["Message"])
        if not isinstance(message, Mapping):
            raise TypeError("not an object")
        records = message.get("Records", [] if "Event" in message or "EventName" in message else None)
        if not isinstance(records, list):
            raise TypeError("no Records")
    except (ValueError, KeyError, TypeError) as e:
        raise InvalidInput(f"not a notification of an S3 server: {e}") from e
    yield from records[:RECORDS_MAX]


def _named(record: Any, bucket: str, prefix: str) -> BatchKey | SchemaSnapKey | None:
    """The file of ours that an event names, if any."""
    try:
        event, entity = record["eventName"], record["s3"]
        if not event.startswith(_CREATED) or entity["bucket"]["name"] != bucket:
            return None
        path = unquote_plus(entity["object"]["key"])
    except (KeyError, TypeError, AttributeError):
        return None
    folder = f"{prefix}/" if prefix else ""
    if len(path) > _KEY_BYTES_MAX or not path.startswith(folder):
        return None
    key = parse(path[len(folder) :])
    return key if isinstance(key, BatchKey | SchemaSnapKey) else None
