"""Keys of a raw tenant as of a timestamp and the history of one key over HTTP, against the writes themselves."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from apiserver.app import create_app
from compactor.base_job import BaseSettings, build_tenant_bases
from compactor.local import LocalExecutor
from reading.log import memory
from tests.kit.api_world import ApiWorld, api_world, arrow_of, events_of, has_more, next_cursor
from tests.kit.entry_log import Entry, EntryLog, entry_rows
from tests.kit.log_builder import TENANT
from tests.kit.stream_world import served
from tistream import ts as tso
from tistream.catalog.log.retention import raise_floor
from tistream.client import connect, connect_async
from tistream.clock import SystemClock
from tistream.errors import StateNotKnown

BEGIN_S = 1_800_000_000
STEPS = 400


def at(step: float) -> int:
    """The timestamp of a step of half a second."""
    return tso.compose(int(BEGIN_S * 1000 + step * 500))


def writes() -> list[Entry]:
    """Every write of `STEPS` steps: puts, some with an expiry of few seconds, and deletes of 30 keys."""
    dice, entries = Random(29), []
    for step in range(1, STEPS + 1):
        key = b"k%02d\x00\xff" % dice.randrange(30)
        expire_ts = BEGIN_S + step // 2 + dice.randrange(1, 60) if dice.random() < 0.4 else 0
        entries.append(Entry(at(step), key, b"v%d" % step if dice.random() < 0.8 else None, expire_ts))
    return entries


WRITES = writes()
LOST = range(150, 251)  #: no subscription was open in these steps; the next scan came after them


def recorded() -> list[Entry]:
    """What the log has: of the writes while nothing was subscribed only the newest of each key, from a scan."""
    newest = {entry.key: entry for entry in WRITES[LOST.start - 1 : LOST.stop - 1]}
    scanned = [entry._replace(scanned_from_ts=at(LOST.start) - 1) for entry in newest.values()]
    live = [entry for entry in WRITES if not at(LOST.start) <= entry.ts < at(LOST.stop)]
    return sorted([*live, *scanned])


LOG = recorded()
MISSED = [entry for entry in WRITES if entry.ts not in {kept.ts for kept in LOG}]


@pytest.fixture(scope="module")
def kv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    with api_world(tmp_path_factory.mktemp("kvrows"), rows=entry_rows(LOG), builder=EntryLog) as new_world:
        new_world.log.build(9, upto=at(STEPS + 1))
        yield new_world


def truth(ts: int) -> dict[str, tuple[str, str, int | None, int | None]]:
    """key -> (value, ts, expire_ts, seconds left) of what a reader at `ts` sees."""
    newest = {entry.key: entry for entry in WRITES if entry.ts <= ts}
    now_s = tso.physical_ms(ts) // 1000
    return {
        key.hex(): (entry.value.hex(), str(entry.ts), entry.expire_ts or None, entry.expire_ts - now_s or None)
        if entry.expire_ts
        else (entry.value.hex(), str(entry.ts), None, None)
        for key, entry in sorted(newest.items())
        if entry.value is not None and not 0 < entry.expire_ts <= now_s
    }


def shown(lines: list[dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    return {line["key"]: (line["value"], line["ts"], line["expire_ts"], line["expires_in_s"]) for line in lines}


@pytest.mark.parametrize("step", [1, 60.5, 149, 251, 300.5, STEPS])
def test_where_nothing_is_missing_the_keys_are_those_of_the_writes(kv: ApiWorld, step: float) -> None:
    lines = events_of(kv.ok("/kv/rows", as_of=at(step)))
    assert all(line["exact"] for line in lines)
    assert shown(lines) == truth(at(step))
    assert [line["key"] for line in lines] == sorted(truth(at(step)))
    assert arrow_of(kv.ok("/kv/rows", as_of=at(step), format="arrow"))["value"].to_pylist() == [
        bytes.fromhex(line["value"]) for line in lines
    ]


@pytest.mark.parametrize("step", [170, 200, 230.5])
def test_in_a_gap_only_the_keys_whose_versions_may_be_missing_are_refused(kv: ApiWorld, step: float) -> None:
    ts, exact, refused = at(step), 0, 0
    problem = kv.get("/kv/rows", as_of=ts)
    facts = problem.json()["facts"]
    assert (problem.status_code, problem.json()["code"]) == (409, "TS-1095")
    for key in sorted({entry.key for entry in WRITES}):
        answer = kv.get("/kv/rows", as_of=ts, start_key=key.hex(), end_key=(key + b"\0").hex())
        gap = next((e for e in LOG if e.key == key and e.scanned_from_ts and e.scanned_from_ts < ts < e.ts), None)
        assert answer.status_code == (200 if gap is None else 409)
        if gap is None:
            assert shown(events_of(answer)) == {k: v for k, v in truth(ts).items() if k == key.hex()}
            exact += 1
            continue
        assert gap.scanned_from_ts is not None
        gap_facts = answer.json()["facts"]
        around = [str(gap.scanned_from_ts), str(gap.ts)]
        assert [*gap_facts["keys"], gap_facts["before_ts"], gap_facts["after_ts"]] == [key.hex(), *around]
        assert gap_facts["keys"] + gap_facts["keys_before_ts"] + gap_facts["keys_after_ts"] == [key.hex(), *around]
        assert gap_facts["before_time"] == tso.to_text(gap.scanned_from_ts)
        refused += 1
    assert min(exact, refused) > 0
    assert int(facts["unknown"]) == refused
    for moment in (facts["before_ts"], facts["after_ts"]):
        assert shown(events_of(kv.ok("/kv/rows", as_of=moment))) == truth(int(moment))
    marked = events_of(kv.ok("/kv/rows", as_of=ts, allow_state="true"))
    assert sum(not line["exact"] for line in marked) == refused
    assert shown([line for line in marked if line["exact"]]).items() <= truth(ts).items()


def test_pages_keep_their_timestamp_while_the_log_grows(tmp_path: Path) -> None:
    with api_world(tmp_path, rows=entry_rows(LOG), builder=EntryLog) as world:
        world.log.build(3, upto=at(300))
        answer = world.ok("/kv/rows", limit=7, prefix=b"k".hex())
        lines, pages = events_of(answer), 1
        world.log.flush(at(STEPS + 1))
        while has_more(answer):
            answer = world.ok("/kv/rows", limit=7, prefix=b"k".hex(), cursor=next_cursor(answer))
            lines, pages = lines + events_of(answer), pages + 1
        assert pages > 3
        assert shown(lines) == truth(at(300))
        later = world.get("/kv/rows", as_of=at(STEPS + 2), wait=0.1)
        assert (later.status_code, later.json()["code"]) == (
            409,
            world.get("/kv/rows", as_of="2090-01-01").json()["code"],
        )
        assert world.get("/kv/changes", cursor=next_cursor(world.ok("/kv/rows", limit=7))).json()["code"] == "TS-1003"


def test_the_history_of_a_key_has_its_versions_and_says_where_others_may_be_missing(kv: ApiWorld) -> None:
    key = max({entry.key for entry in MISSED}, key=lambda k: sum(entry.key == k for entry in MISSED))
    own = [entry for entry in LOG if entry.key == key]
    params: dict[str, Any] = {"key": key.hex(), "limit": 2}
    lines: list[dict[str, Any]] = []
    answer = kv.ok("/kv/history", **params)
    while True:
        lines += events_of(answer)
        if not has_more(answer):
            break
        answer = kv.ok("/kv/history", **params, cursor=next_cursor(answer))
    assert [(e["ts"], e["op"], e["value"], e["expire_ts"]) for e in lines] == [
        (str(e.ts), "delete" if e.value is None else "put", e.value and e.value.hex(), e.expire_ts or None) for e in own
    ]
    assert [e.get("scanned_from_ts") for e in lines] == [e.scanned_from_ts and str(e.scanned_from_ts) for e in own]
    gap = next(e for e in own if e.scanned_from_ts)
    within = kv.ok("/kv/history", key=key.hex(), end_ts=gap.ts - 1)
    assert within.headers["TiStream-Gap"] == f"{gap.scanned_from_ts}-{gap.ts - 1}"
    assert "TiStream-Gap" not in kv.ok("/kv/history", key=key.hex(), end_ts=gap.ts).headers


@pytest.mark.parametrize("path", ["/kv/rows", "/kv/history"])
def test_memory_is_admitted_before_segments_are_fetched(
    kv: ApiWorld, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    params = {"key": LOG[0].key.hex()} if path == "/kv/history" else {"as_of": at(STEPS)}
    small = memory.ReadMemory(2, wait_s=0.01)
    monkeypatch.setattr(kv.services.reader, "memory", small)
    kv.services.reader._cache.clear()
    with small.held(TENANT) as other:
        other.take(1)
        kv.store.gets.clear()  # type: ignore[attr-defined]
        refused = kv.get(path, **params)
        assert (refused.status_code, refused.json()["code"]) == (429, "TS-1118")
        assert not kv.store.gets, "nothing was fetched for it"  # type: ignore[attr-defined]
    kv.ok(path, **params)
    assert small.taken == 0


def test_tables_and_keys_are_told_apart(kv: ApiWorld, tmp_path: Path) -> None:
    assert kv.get("/databases/shop/tables/acct/rows").json()["code"] == "TS-1093"
    with api_world(tmp_path) as tables:
        tables.log.build(1)
        for answer in (tables.get("/kv/rows"), tables.get("/kv/history", key="00")):
            assert answer.json()["code"] == "TS-1093"


def test_an_expiry_of_64_bits_is_shown(tmp_path: Path) -> None:
    with api_world(tmp_path, rows=entry_rows([Entry(300, b"", b"x", 2**64 - 1)]), builder=EntryLog) as world:
        world.log.build(1, upto=400)
        (line,) = events_of(world.ok("/kv/rows"))
        assert (line["key"], line["expire_ts"], line["expires_in_s"]) == ("", 2**64 - 1, 2**64 - 1)
        assert [event["expire_ts"] for event in events_of(world.ok("/kv/history", key=""))] == [2**64 - 1]


def test_both_clients_and_the_command_read_the_same_keys(kv: ApiWorld) -> None:
    ts, gap_ts = at(149), at(200)
    lines = events_of(kv.ok("/kv/rows", as_of=ts, prefix=b"k0".hex()))
    want = [{**line, **{name: bytes.fromhex(line[name]) for name in ("key", "value")}} for line in lines]
    key = want[0]["key"]
    versions = events_of(kv.ok("/kv/history", key=key.hex(), end_ts=ts))
    with served(create_app(kv.services)) as server:
        with connect(server.url) as client:
            keys = client.tenant(1, 1).keys(prefix=b"k0")
            assert [*keys.rows(as_of=ts, limit=2)] == want
            assert keys.rows(as_of=ts, limit=2).to_arrow()["key"].to_pylist() == [line["key"] for line in want]
            assert [line["ts"] for line in keys.history(key, end=ts, limit=1)] == [line["ts"] for line in versions]
            with pytest.raises(StateNotKnown) as refused:
                [*keys.rows(as_of=gap_ts)]
            assert int(str(refused.value.facts["after_ts"])) > gap_ts
            assert not all(line["exact"] for line in keys.rows(as_of=gap_ts, allow_state=True))

        async def read() -> list[dict[str, Any]]:
            async with connect_async(server.url) as client:
                keyspace = client.tenant(1, 1).keys(prefix=b"k0")
                assert [line["ts"] async for line in keyspace.history(key, end=ts)] == [line["ts"] for line in versions]
                return [line async for line in keyspace.rows(as_of=ts, limit=3)]

        assert asyncio.run(read()) == want
        command = [str(Path(sys.executable).with_name("tistream")), "snapshot", "--url", server.url, "--as-of", str(ts)]
        out, of_key = (
            subprocess.run([*command, *words], capture_output=True, check=True).stdout
            for words in (["--prefix", "k0"], ["--history", key.hex(), "--key-format", "hex"])
        )
    assert [line["ts"] for line in map(orjson.loads, out.splitlines())] == [line["ts"] for line in want]
    assert [orjson.loads(line) for line in of_key.splitlines()] == versions


def test_reads_begin_at_a_base_once_the_log_below_it_is_given_up(tmp_path: Path) -> None:
    with api_world(tmp_path, rows=entry_rows(LOG), builder=EntryLog) as world:
        floor = at(140)
        world.log.build(2, upto=floor)
        build = LocalExecutor(world.store).bases
        build_tenant_bases(
            world.catalog, world.services.registry, TENANT, build, BaseSettings(lag_ms=0, due_ms=1), SystemClock()
        )
        world.log.flush(at(STEPS + 1))
        refused = world.get("/kv/rows", as_of=at(200)).json()["facts"]
        assert raise_floor(world.catalog, TENANT, seen_floor=0, to_ts=floor)
        for step in (140, 149, 251, STEPS):
            assert shown(events_of(world.ok("/kv/rows", as_of=at(step)))) == truth(at(step))
        assert shown(events_of(world.ok("/kv/rows", as_of="earliest", limit=4))).items() <= truth(floor).items()
        assert world.get("/kv/rows", as_of=floor - 1).status_code == 410
        assert world.get("/kv/rows", as_of=at(200)).json()["facts"] == refused
