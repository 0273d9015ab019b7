"""The matrix of API versions against what stores of each version answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tistream.tikv.core.api_versions import Api, Interface, can_follow, refusal, server_version

RECORDED = Path(__file__).parents[2] / "data" / "real_tikv" / "matrix"
KEYS = {"plain key": b"plainkey", "key r…": b"r\0\0\0mx", "TiDB key t…": b"t\0\0", "key x…": b"x\0\0\0mx"}
SERVERS = {"V1": Api.V1, "V1TTL": Api.V1TTL, "V2": Api.V2}
#: refused for another reason than the version: a list of the wrong length, a column family, a commit of nothing
OTHER = ("RawBatchPut", "RawPut cf=write", "KvCommit")


def recorded(server: str) -> Iterator[tuple[str, str, str]]:
    """(request as 'version interface key', command, answer) of what was sent to a server."""
    with (RECORDED / f"matrix_{server}.ndjson.zst").open("rb") as file:
        for line in zstandard.ZstdDecompressor().stream_reader(file).read().splitlines():
            entry: dict[str, Any] = json.loads(line)
            if entry["dir"] == "kv" and " V3 " not in entry["label"]:
                _, request, command = entry["label"].split(" | ")
                if not command.startswith(OTHER):
                    yield request, command, entry.get("resp", "")


@pytest.mark.parametrize("server", SERVERS)
def test_a_store_serves_what_the_matrix_says(server: str) -> None:
    seen = set()
    for request, command, answer in recorded(server):
        version, kind, *words = request.split(" ")
        reason = refusal(
            SERVERS[server],
            SERVERS[version],
            Interface.RAW if kind == "raw" else Interface.TXN,
            KEYS[" ".join(words)],
            expiry="ttl" in command.lower(),
        )
        refused = "error" in answer
        assert bool(reason) is refused, (request, command, reason, answer)
        if "ersion" in answer and refused:
            assert server_version(answer) is SERVERS[server], answer
        seen.add((version, kind, bool(reason)))
    assert len(seen) >= 6, seen
    assert {refused for _, _, refused in seen} == {True, False}


def test_a_server_that_has_no_expiry_is_never_asked_for_one() -> None:
    """RawGetKeyTTL ends the process of such a server, so no recording has it."""
    assert "no expiry" in refusal(Api.V1, Api.V1, Interface.RAW, b"k", expiry=True)
    assert not refusal(Api.V1TTL, Api.V1, Interface.RAW, b"k", expiry=True)
    assert not refusal(Api.V2, Api.V2, Interface.RAW, b"r\0\0\0k", expiry=True)


def test_an_error_of_another_kind_names_no_version() -> None:
    assert server_version("region 5 is missing") is None


def test_only_servers_with_transactions_can_be_followed() -> None:
    assert {api: can_follow(api)[0] for api in Api} == {Api.V1: True, Api.V1TTL: False, Api.V2: True}
