"""Events of S3 servers: which of our files they name."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote_plus

import orjson
import pytest

from tistream.errors import InvalidInput
from tistream.ids import Tenant
from tistream.objectstore.layout import BatchKey, CommittedKey, SchemaSnapKey
from tistream.objectstore.notifications import BODY_BYTES_MAX, NotifiedObject, read_events

T = Tenant(3, 4)
NOTHING = NotifiedObject(files=(), schemas=frozenset())
#: as AWS documents it ("Event message structure"), with a key of ours
OF_AWS: dict[str, Any] = {
    "eventVersion": "2.1",
    "eventSource": "aws:s3",
    "awsRegion": "us-west-2",
    "eventTime": "1970-01-01T00:00:00.000Z",
    "eventName": "ObjectCreated:Put",
    "userIdentity": {"principalId": "AIDAJDPLRKLG7UEXAMPLE"},
    "requestParameters": {"sourceIPAddress": "127.0.0.1"},
    "responseElements": {"x-amz-request-id": "C3D13FE58DE4C810"},
    "s3": {
        "s3SchemaVersion": "1.0",
        "configurationId": "testConfigRule",
        "bucket": {"name": "changes", "ownerIdentity": {"principalId": "A3NL1KOZZKExample"}, "arn": "arn:aws:s3:::x"},
        "object": {"key": "", "size": 1024, "eTag": "d41d8cd98f00b204e9800998ecf8427e", "sequencer": "0055AED6DCD9"},
    },
}


def file(seq: int, store: int = 7, incarnation: int = 1) -> BatchKey:
    return BatchKey(tenant=T, store_id=store, incarnation=incarnation, seq=seq)


def event(key: object, name: str = "ObjectCreated:Put", bucket: str = "changes", prefix: str = "log/a b/") -> Any:
    s3 = {**OF_AWS["s3"], "bucket": {"name": bucket}, "object": {"key": quote_plus(f"{prefix}{key}")}}
    return {**OF_AWS, "eventName": name, "s3": s3}


def read(*records: Any) -> NotifiedObject:
    return read_events(orjson.dumps({"Records": records}), "changes", "log/a b")


def test_the_newest_file_of_each_store_and_the_tenants_with_schemas_are_found() -> None:
    snapshot = event(SchemaSnapKey(tenant=Tenant(5, 6), ts=1))
    names = ("s3:ObjectCreated:Put", "ObjectCreated:CompleteMultipartUpload", "ObjectCreated:Copy")
    events = [event(file(seq), name) for seq, name in zip((2, 9, 3), names, strict=True)]
    written = read(*events, event(file(1, store=8)), snapshot)
    assert written == NotifiedObject(files=(file(9), file(1, store=8)), schemas=frozenset({Tenant(5, 6)}))


@pytest.mark.parametrize(
    "record",
    [
        event(file(1), name="ObjectRemoved:Delete"),
        event(file(1), bucket="another"),
        event(file(1), prefix=""),
        event(file(1), prefix="log/a+b/"),
        event(CommittedKey(tenant=T, sorter="s", incarnation=1, seq=1)),
        event(f"{file(1)}.tmp"),
        event("data_change_buffer/cluster-3/tenant-4/store-7/000001/file-" + "9" * 5000 + ".seg"),
        event("../" * 100),
        {},
        {"eventName": 3},
        {"eventName": "ObjectCreated:Put", "s3": []},
        {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "changes"}, "object": {"key": None}}},
        None,
        [],
    ],
)
def test_everything_else_is_ignored(record: Any) -> None:
    assert read(record) == NotifiedObject(files=(), schemas=frozenset(), ignored=1)
    assert read(record, event(file(4))).files == (file(4),)


#: what versitygw 1.8 sends to a webhook: at its start, and for a put
OF_VERSITYGW_FIRST = b'{"Bucket":"Test-Bucket","Event":"s3:TestEvent","Service":"S3","Time":"2026-11-24T17:30:28Z"}'
OF_VERSITYGW = (
    b'{"Records":[{"eventVersion":"2.2","eventSource":"aws:s3","awsRegion":"us-east-1","eventTime":'
    b'"2026-11-24T17:30:35Z","eventName":"s3:ObjectCreated:Put","userIdentity":{"PrincipalId":"tistream-test"},'
    b'"requestParameters":{"sourceIPAddress":"127.0.0.1"},"responseElements":{"x-amz-request-id":"","x-amz-id-2":""},'
    b'"s3":{"s3SchemaVersion":"1.0","configurationId":"webhook-global","bucket":{"name":"changes","ownerIdentity":'
    b'{"PrincipalId":"tistream-test"},"arn":"arn:aws:s3:::/changes/log/of=this/data_change_buffer/cluster-3/tenant-4/'
    b'store-7/000001/file-000000000001.seg"},"object":{"key":"log/of=this/data_change_buffer/cluster-3/tenant-4/'
    b'store-7/000001/file-000000000001.seg","size":1,"eTag":"\\"9dd4e461268c8034f5c8564e155c67a6\\"","versionId":null,'
    b'"sequencer":"1"}},"glacierEventData":{"restoreEventData":{"lifecycleRestorationExpiryTime":"",'
    b'"lifecycleRestoreStorageClass":""}}}]}'
)


def test_the_events_of_an_s3_compatible_server_are_read() -> None:
    assert read_events(OF_VERSITYGW, "changes", "log/of=this").files == (file(1),)
    assert read_events(OF_VERSITYGW_FIRST, "changes", "log/of=this") == NOTHING


@pytest.mark.parametrize("body", [{"Service": "Amazon S3", "Event": "s3:TestEvent"}, {"Records": []}])
def test_a_test_event_names_nothing(body: Any) -> None:
    assert read_events(orjson.dumps(body), "changes") == NOTHING


def test_a_message_of_sns_is_unpacked() -> None:
    message = orjson.dumps({"Records": [event(file(5), prefix="")]}).decode()
    wrapped = orjson.dumps({"Type": "Notification", "TopicArn": "arn:aws:sns:x", "Message": message})
    assert read_events(wrapped, "changes").files == (file(5),)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"<xml/>",
        b'{"Records": 3}',
        b'{"Type": "Notification"}',
        b'{"Type": "Notification", "Message": "x"}',
        b'{"Records":' + b"[" * 100_000,
        b" " * (BODY_BYTES_MAX + 1),
    ],
)
def test_what_is_no_notification_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        read_events(body, "changes")
