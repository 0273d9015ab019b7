"""Dead letters: their names and bytes, their URI, and that each is written once."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from destinations.letters.core.letter import letter_of
from destinations.letters.place import LetterFiles, check_letters
from destinations.protocol import DeadLetterUnavailable, DestinationRefused, LeaseOver, Share
from destinations.storage.core.contents import File, render_or_refuse
from destinations.uri import parse_sink_uri
from reading.core.changes import TableChanges
from reading.rows.decode import decode_rows
from reading.rows.scope import Scope
from tests.kit.entry_log import Entry, entry_rows
from tests.kit.log_builder import with_broken_value
from tests.kit.recording import committed_rows, recorded_history
from tests.kit.storage_sink import MemoryFiles, forever
from tistream.clock import SystemClock
from tistream.errors import InvalidInput
from tistream.ids import Tenant
from tistream.outbound.policy import OPERATED

SHARE = Share(tenant=Tenant(7, 2), changefeed_id="dr", number=0, of=2)
TS = 470613530993491968
REFUSED = DestinationRefused("The destination refuses a change", key="6b", cause="max key size exceeded")


def test_an_entry_is_there_in_base64_under_a_name_of_its_place() -> None:
    letter = letter_of(SHARE, entry_rows([Entry(TS, b"k\xff", b"v", 1_800_000_000)]), None, REFUSED)
    # sha256 of the stored key r 00 00 01 k ff: printf 'r\0\0\001k\377' | sha256sum
    assert letter.name == f"7-2/dr/00{TS}-6656a73b4f613b0c359141f613704982.json"
    assert json.loads(letter.data) == {
        "version": 1,
        "cluster_id": 7,
        "tenant_id": 2,
        "changefeed_id": "dr",
        "commit_ts": str(TS),
        "commit_time": "2026-11-21T08:02:29.847Z",
        "cause": {"code": "TS-1101", "message": "The destination refuses a change: max key size exceeded"},
        "change": {"op": "put", "key": "a/8=", "value": "dg==", "ts": str(TS), "expire_ts": 1_800_000_000},
    }
    assert letter.data.count(b"\n") == 1
    gone = letter_of(SHARE, entry_rows([Entry(TS, b"k\xff", None)]), None, REFUSED)
    assert gone.name == letter.name
    assert json.loads(gone.data)["change"] == {
        "op": "delete", "key": "a/8=", "value": None, "ts": str(TS), "expire_ts": None,
    }  # fmt: skip


def test_a_row_is_there_as_a_pull_has_it_and_as_it_is_stored() -> None:
    history, rows = recorded_history(), committed_rows()
    ids = history.physical_ids("shop", None, history.start_ts, history.resolved_ts)
    at = next(n for n, row in enumerate(rows["table_id"].to_pylist()) if row in ids and rows["value"][n].as_py())
    why = DestinationRefused("no: too long", db="shop", table="t", key="00", commit_ts=1, cause="too long")
    good, bad = (
        json.loads(letter_of(SHARE, row, history, why).data)
        for row in (rows.slice(at, 1), with_broken_value(rows, at).slice(at, 1))
    )
    assert (good["database"], good["table"], good["cause"]["message"]) == ("shop", "t", "no: too long")
    change = good["change"]
    assert (change["database"], change["commit_ts"]) == ("shop", str(rows["commit_ts"][at].as_py()))
    assert bad["change"] is None
    assert base64.b64decode(bad["stored"]["value"]) == b"\xee not a row"
    for letter in (good, bad):
        assert base64.b64decode(letter["stored"]["key"]) == rows["key"][at].as_py() == bytes.fromhex(change["key"])
        assert letter["stored"]["op"] == "put"
    assert base64.b64decode(good["stored"]["value"]) == rows["value"][at].as_py()


def test_a_letter_that_is_there_is_left_as_it_is() -> None:
    files = MemoryFiles()
    place = LetterFiles(files, "memory")
    row = entry_rows([Entry(TS, b"k", b"v")])
    first = letter_of(SHARE, row, None, REFUSED)
    place.keep([first], forever)
    place.keep([letter_of(SHARE, row, None, DestinationRefused("of another store"))], forever)
    assert (files.objects, files.puts) == ({first.name: first.data}, 1)
    with pytest.raises(LeaseOver):
        place.keep([first], lambda: 0.0)
    place.close()


@pytest.mark.parametrize(
    ("uri", "option"),
    [
        ("tikv://pd:2379", "dead-letter"),
        ("folder", "dead-letter"),
        ("file://host/folder", "dead-letter"),
        ("s3://user@bucket/p", "dead-letter"),
        ("file:///dead?protocol=csv", "protocol"),
        ("s3://bucket/p?access-key=a", "secret-access-key"),
        ("file:///lake", "dead-letter"),
        ("file:///lake/dead", "dead-letter"),
    ],
)
def test_a_wrong_place_is_refused_by_its_option(uri: str, option: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_letters(uri, parse_sink_uri("file:///lake?protocol=csv"), "dr", SystemClock(), OPERATED)
    assert refused.value.facts["option"] == option


def test_a_place_is_tried_before_the_changefeed_starts(tmp_path: Path) -> None:
    sink = parse_sink_uri(f"file://{tmp_path}/lake?protocol=csv")
    check_letters(f"file://{tmp_path}/lake-dead", sink, "dr", SystemClock(), OPERATED)
    assert [path.name for path in (tmp_path / "lake-dead").iterdir()] == [".tmp"], "the probe is taken away"
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DeadLetterUnavailable, match="Not a directory"):
        check_letters(f"file://{tmp_path}/file", sink, "dr", SystemClock(), OPERATED)


def test_every_change_that_cannot_be_rendered_is_refused_and_no_other() -> None:
    history, rows = recorded_history(), committed_rows()
    decoded = decode_rows(history, rows.slice(0, 400), Scope(tenant=SHARE.tenant)).changes
    parts = [(part, ()) for part in decoded if len(part) > 4][:3]
    bad = {(part.key[n].as_py(), int(part.commit_ts[n])) for part, _ in parts[:2] for n in (0, 3, len(part) - 1)}

    def render(changes: TableChanges, counts: Sequence[int]) -> list[File]:
        if bad & set(zip(changes.key.to_pylist(), changes.commit_ts.tolist(), strict=True)):
            raise InvalidInput("a value has no text")
        return [(len(changes), b"x" * len(changes))]

    with pytest.raises(DestinationRefused) as refused:
        render_or_refuse(render, parts)
    found = [(bytes.fromhex(str(e.facts["key"])), e.facts["commit_ts"]) for e in refused.value.each]
    assert (set(found), len(found)) == (bad, len(bad))
    assert render_or_refuse(render, parts[2:]) == [[(len(parts[2][0]), b"x" * len(parts[2][0]))]]

    def together_only(changes: TableChanges, counts: Sequence[int]) -> list[File]:
        if len(changes) == len(parts[0][0]):
            raise InvalidInput("too much at once")
        return []

    with pytest.raises(InvalidInput, match="too much at once"):
        render_or_refuse(together_only, parts[:1])
