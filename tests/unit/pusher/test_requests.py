"""Requests of the change feed, against bytes that a real client sent to a real store."""

from __future__ import annotations

from pathlib import Path

import pytest

from pusher.tikv.core.requests import Deregister, Header, KvApi, Register, encode_request
from tests.kit.real_tikv import lines
from tistream.codec.memcomparable import decode_bytes
from tistream.codec.protobuf import BYTES, VARINT, fields
from tistream.keyrange import KeyRange

DATA = Path(__file__).parents[2] / "data" / "real_tikv"
CLUSTER = 7710532567073277423
HEADER = Header(cluster_id=CLUSTER)


def test_a_registration_of_the_published_example() -> None:
    whole = KeyRange(bytes.fromhex("7480000000000000725f72"), bytes.fromhex("7480000000000000725f73"))
    register = Register(
        request_id=1, region_id=2, conf_ver=1, version=38, range=whole, checkpoint_ts=467996279696261139
    )
    assert encode_request(Header(cluster_id=7), register).hex() == (
        "0a0908071205382e352e3410021a040801102620938080bcb084aabf062a127480000000000000ff725f720000000000fa"
        "32127480000000000000ff725f730000000000fa380140014a00"
    )


def test_raw_data_and_loops_are_asked_for() -> None:
    register = Register(request_id=1, region_id=2, conf_ver=1, version=1, range=KeyRange(), checkpoint_ts=5)
    plain = encode_request(Header(cluster_id=7), register)
    assert encode_request(Header(cluster_id=7, kv_api=KvApi.RAW, filter_loop=True), register) == plain + b"\x58\1\x60\1"


@pytest.mark.parametrize("name", ["txn_quiet", "txn_dev"])
def test_every_request_that_was_recorded(name: str) -> None:
    seen = {Register: 0, Deregister: 0}
    for line in lines(DATA / name / "stream.ndjson.zst"):
        if line["dir"] != "send":
            continue
        sent = bytes.fromhex(line["msg_hex"])
        types = {1: BYTES, 2: VARINT, 3: BYTES, 4: VARINT, 5: BYTES, 6: BYTES, 7: VARINT, 13: BYTES}
        said = dict(fields(sent, types))
        header = Header(cluster_id=dict(fields(said[1], {1: VARINT}))[1])
        request: Register | Deregister
        if 13 in said:
            request = Deregister(request_id=said[7], region_id=said.get(2, 0))
        else:
            epoch = dict(fields(said[3], {1: VARINT, 2: VARINT}))
            request = Register(
                request_id=said[7],
                region_id=said[2],
                conf_ver=epoch[1],
                version=epoch[2],
                range=KeyRange(decode_bytes(said[5])[0], decode_bytes(said[6])[0]),
                checkpoint_ts=said[4],
            )
        assert encode_request(header, request) == sent
        seen[type(request)] += 1
    assert seen[Register] > 1
    assert name == "txn_quiet" or seen[Deregister] > 1
