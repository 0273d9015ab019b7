"""The TiKV destination against stores that answer over gRPC: what is written, in which order, and for how long it
lives there; and broken rules, which are noticed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager

import numpy as np
import pyarrow as pa
import pytest

from destinations.protocol import DestinationRefused, DestinationUnavailable, LeaseOver, Share, Stretch
from destinations.tikv.core import writes
from destinations.tikv.destination import TikvDestination, open_tikv
from destinations.uri import parse_sink_uri
from simulator.dst.mutants import replaced
from simulator.raw_workload import RawProfile, RawWorkload, raw_cluster
from simulator.serve.core.raw import Applied
from simulator.serve.faults import CALM, STORM, Faults
from simulator.serve.served import CLUSTER_ID, ServedCluster
from tests.kit.lane_feed import scanned
from tests.kit.made_rows import table_of
from tests.kit.manual_clock import ManualClock
from tistream import ts as tso
from tistream.catalog.rows.kinds import Keyspace
from tistream.clock import Clock, SystemClock
from tistream.errors import InvalidInput
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.model.change import COMMITTED, Op
from tistream.outbound.policy import OPERATED
from tistream.tikv.core import raw_messages
from tistream.tikv.core.api_versions import Api
from tistream.tikv.raw_client import RawClient

SOURCE, THERE = 7, 2  # keyspaces
BY_ID = Keyspace(id=SOURCE)
OPTIONS = "keyspace=2&backoff-base=10ms&backoff-max=200ms"
AHEAD_S = 1000
Change = tuple[bytes, bytes | None, int]  # key, value or None for a delete, expiry
forever = lambda: 1e9  # noqa: E731


class FastClock(SystemClock):
    """A clock of a cluster that is ahead of this host's."""

    def unix_ms(self) -> int:
        return super().unix_ms() + AHEAD_S * 1000


@contextmanager
def a_cluster(
    api: Api = Api.V2, *, faults: Faults = CALM, storm: bool = False, clock: Clock | None = None, old_pd: bool = False
) -> Iterator[ServedCluster]:
    profile = RawProfile(keyspaces=(THERE,), keys=400)
    cluster = raw_cluster(profile, floor_ts=tso.compose(SystemClock().unix_ms()), regions=6)
    workload = None
    if storm:  # regions, leaders and stores change; nothing else is written
        calm = tuple((name, n) for name, n in profile.actions if name not in ("put", "pd_away"))
        workload = RawWorkload(4, cluster, RawProfile(keyspaces=(THERE,), keys=400, actions=calm))
    with ServedCluster(
        cluster,
        raw=workload,
        api=api,
        plain_boundaries=api is not Api.V2,
        keyspaces={"there": THERE, "ours": SOURCE},
        old_pd=old_pd,
        steps_per_s=15 if storm else 0,
        faults=faults,
        seed=9,
        clock=clock,
    ) as served:
        yield served


def opened(served: ServedCluster, options: str = OPTIONS, *, of: int = 1, source: Keyspace = BY_ID) -> TikvDestination:
    share = Share(tenant=Tenant(1, 1), changefeed_id="c", number=0, of=of)
    return open_tikv(parse_sink_uri(f"tikv://{served.pd_address}?{options}"), share, source, SystemClock(), OPERATED)


def stretch_of(changes: Sequence[Change], after: int = 0) -> Stretch:
    rows = len(changes)
    stamps = np.arange(after + 1, after + rows + 1).astype(np.uint64)
    table = table_of(
        COMMITTED,
        op=[Op.DELETE if value is None else Op.PUT for _, value, _ in changes],
        key=[b"r\0\0\7" + key for key, _, _ in changes],
        start_ts=stamps,
        commit_ts=stamps,
        value=[value for _, value, _ in changes],
        expire_ts=[expire_ts for _, _, expire_ts in changes],
        flags=2,
    )
    return Stretch(after=after, upto=after + rows, rows=table)


def state(served: ServedCluster) -> dict[bytes, bytes]:
    """By RawScan of the keyspace there."""
    with closing(opened(served)) as destination:
        _, client = destination._connect()
        return scanned(client)


def test_lanes_in_a_storm() -> None:
    """Each lane writes stretch after stretch, some of them twice; the newest version of each key stays."""
    newest: dict[bytes, Change] = {}
    seen: dict[bytes, list[int]] = {}
    lock, now_s, until = threading.Lock(), int(time.time()), time.monotonic() + 60
    keys = [b"k%08d" % n for n in range(400)]

    def lane(served: ServedCluster, part: KeyRange, number: int) -> None:
        rand, after = random.Random(number), 0
        own = [key for key in keys if key in part]
        with closing(opened(served, OPTIONS + "&write-timeout=1s", of=3)) as destination:
            for _ in range(15):
                changes: list[Change] = []
                for at in range(rand.randrange(1, 120)):
                    value = None if rand.random() < 0.2 else b"%d" % (after + at)
                    expire_ts = 0 if value is None else rand.choice((0, now_s - 5, now_s + 900))
                    changes.append((rand.choice(own), value, expire_ts))
                stretch = stretch_of(changes, after)
                for _ in range(rand.choice((1, 1, 2))):
                    plan = destination.plan(stretch, "")
                    while True:
                        try:
                            destination.write(plan, forever)
                            break
                        except DestinationUnavailable:
                            assert time.monotonic() < until
                after = stretch.upto
                with lock:
                    newest.update((change[0], change) for change in changes)

    with a_cluster(faults=STORM, storm=True) as served:
        served.raw_kv.on_write = lambda write: seen.setdefault(write.key, []).append(int(write.value or -1))
        with closing(opened(served)) as destination:
            parts = destination.ranges(KeyRange(), 3)
        assert len(parts) == 3
        with ThreadPoolExecutor(3) as threads:
            for done in [threads.submit(lane, served, part, number) for number, part in enumerate(parts)]:
                done.result(timeout=100)
        served.settle()
        assert state(served) == {
            key: value for key, value, expire_ts in newest.values() if value is not None and expire_ts != now_s - 5
        }
        assert served.raw is not None
        assert set(seen) <= set(served.raw.versions), "every write has a timestamp and can be followed"
    for key, versions in seen.items():
        puts = [version for version in versions if version >= 0]
        assert puts == sorted(puts), key


def lives_wrongly() -> list[str]:
    """What is wrong with the times to live there, where the PD's clock is ahead of this host's."""
    applied: list[Applied] = []
    with a_cluster(clock=FastClock()) as served, closing(opened(served)) as destination:
        there_s = FastClock().unix_ms() // 1000
        served.raw_kv.on_write = applied.append
        changes = [(b"long", b"v", there_s + 100), (b"over", b"v", there_s - 10), (b"ever", b"v", 0)]
        destination.write(destination.plan(stretch_of(changes), ""), forever)
    ttls = {write.key[4:]: write.ttl for write in applied if write.value is not None}
    deleted = {write.key[4:] for write in applied if write.value is None}
    wrong = [] if deleted == {b"over"} else [f"deleted: {deleted}"]
    if not 90 <= ttls.get(b"long", 0) <= 100:
        wrong.append(f"a time to live of {ttls.get(b'long')}")
    if set(ttls) != {b"long", b"ever"}:
        wrong.append(f"put: {set(ttls)}")
    return wrong


def test_entries_live_as_long_as_they_have_left_by_the_time_of_pd() -> None:
    assert lives_wrongly() == []


def without_deletes(expires: raw_messages.Seconds, now_s: int) -> tuple[raw_messages.Seconds, np.ndarray]:
    left = np.maximum(expires.astype(np.int64) - now_s, 0).astype(np.uint64)
    return left, np.zeros(len(expires), np.bool_)


@pytest.mark.parametrize(
    "mutant",
    [
        replaced(RawClient, "pd_time", lambda self, allowed: lambda: int(time.time())),
        replaced(raw_messages, "remaining", without_deletes),
    ],
    ids=["time of the host", "no time left is for ever"],
)
def test_wrong_times_to_live_are_noticed(mutant: AbstractContextManager[None]) -> None:
    with mutant:
        assert lives_wrongly()


def goes_back() -> bool:
    """Whether a key shows an older version after a newer one, when answers take different times."""
    rand, seen = random.Random(2), list[int]()
    with a_cluster() as served, closing(opened(served, OPTIONS + "&batch-size=1")) as destination:
        served.raw_kv.on_write = lambda write: seen.append(int(write.value or b""))
        served.raw_latency_s = lambda store_id: rand.random() / 50
        stretch = stretch_of([(b"k", b"%d" % at, 0) for at in range(60)])
        destination.write(destination.plan(stretch, ""), forever)
    assert seen
    return seen != sorted(seen)


def test_the_versions_of_a_key_keep_their_order() -> None:
    assert not goes_back()


def test_versions_of_a_key_sent_at_once_are_noticed() -> None:
    def all_rows(keys: pa.ChunkedArray) -> pa.Array:
        return pa.array(range(len(keys)))

    rising = property(lambda self: True)
    with replaced(writes, "newest_rows", all_rows), replaced(raw_messages.Columns, "is_rising", rising):
        assert goes_back()


def test_what_the_stores_cannot_take_is_refused_with_its_key() -> None:
    there_s = int(time.time())
    with a_cluster(Api.V1) as served, closing(opened(served, "concurrency=1")) as destination:
        assert any("no expiry" in note for note in destination.check())
        plan = destination.plan(stretch_of([(b"a", b"v", there_s - 9), (b"b", b"v", there_s + 99)]), "")
        with pytest.raises(DestinationRefused) as refused:
            destination.write(plan, forever)
        assert refused.value.facts["key"] == b"b".hex()
        destination.write(destination.plan(stretch_of([(b"a", b"v", there_s - 9), (b"c", b"v", 0)]), ""), forever)
        _, client = destination._connect()
        assert (client.get(b"a"), client.get(b"c")) == (None, b"v")
    with a_cluster() as served, closing(opened(served)) as destination:
        with pytest.raises(DestinationRefused, match="refuses a change") as refused:
            destination.write(destination.plan(stretch_of([(b"x" * 9000, b"v", 0)]), ""), forever)
        assert refused.value.facts["key"] == (b"x" * 9000).hex()
        assert "max key size exceeded" in str(refused.value.facts["cause"])
        with pytest.raises(LeaseOver):
            destination.write(destination.plan(stretch_of([(b"x", b"v", 0)]), ""), lambda: 0.0)


@pytest.mark.parametrize(
    ("options", "api", "keyspace"),
    [
        ("", Api.V2, SOURCE),
        ("keyspace=0", Api.V2, 0),
        ("keyspace=there", Api.V2, THERE),
        ("keyspace=2", Api.V2, THERE),
        ("", Api.V1TTL, None),
    ],
)
def test_a_check_says_what_the_destination_is(options: str, api: Api, keyspace: int | None) -> None:
    with a_cluster(api) as served, closing(opened(served, options)) as destination:
        facts = destination.look()
        assert (facts.cluster_id, facts.api, facts.keyspace_id) == (CLUSTER_ID, api, keyspace)
        assert facts.has_expiry
        assert not any("too old" in note for note in destination.check())


@pytest.mark.parametrize(
    ("options", "api", "words"),
    [
        ("keyspace=nowhere", Api.V2, "no keyspace 'nowhere'"),
        ("keyspace=3", Api.V2, "no keyspace with id 3"),
        ("keyspace=8", Api.V2, "no keyspace with id 8"),
        ("keyspace=there", Api.V1, "has no keyspaces"),
        ("keyspace=16777216", Api.V2, "ids end at 16777215"),
        ("keyspace=ours", Api.V2, "'ours' of the destination is not enabled"),
        ("", Api.V2, "with id 7 of the destination is not enabled"),
    ],
)
def test_a_keyspace_that_is_not_there_is_refused(options: str, api: Api, words: str) -> None:
    with a_cluster(api) as served, closing(opened(served, options)) as destination:
        served.pd.disabled.add("ours")
        with pytest.raises(InvalidInput, match=words) as refused:
            destination.check()
    assert refused.value.facts["option"] == "keyspace"


@pytest.mark.parametrize(
    ("source", "keyspace_id", "unlike", "words"),
    [
        (BY_ID, SOURCE, Keyspace(id=6), "no keyspace with id 6, as the source is called"),
        (Keyspace(name="there"), THERE, Keyspace(name="here"), "no keyspace 'here', as the source is called"),
        (Keyspace(id=SOURCE, name="there"), THERE, Keyspace(id=THERE, name="2"), "no keyspace '2', as the source"),
    ],
    ids=["by its id", "by its name, before a pusher began", "by its name"],
)
def test_the_default_keyspace_is_called_as_the_source_is(
    source: Keyspace, keyspace_id: int, unlike: Keyspace, words: str
) -> None:
    """A name is the same in two clusters; the id of a name is given by each PD."""
    with a_cluster() as served:
        with closing(opened(served, "", source=source)) as destination:
            assert destination.look().keyspace_id == keyspace_id
        with closing(opened(served, "", source=unlike)) as destination, pytest.raises(InvalidInput, match=words):
            destination.look()


def test_an_old_pd_cannot_say_which_keyspaces_there_are() -> None:
    with a_cluster(old_pd=True) as served, closing(opened(served, "keyspace=9")) as destination:
        assert destination.look().keyspace_id == 9
        assert any("too old to say" in note for note in destination.check())


def test_a_cluster_that_is_away_can_be_tried_again() -> None:
    share = Share(tenant=Tenant(1, 1), changefeed_id="c", number=0, of=1)
    uri = parse_sink_uri("tikv://127.0.0.1:1")
    with (
        closing(open_tikv(uri, share, BY_ID, ManualClock(), OPERATED)) as destination,
        pytest.raises(DestinationUnavailable),
    ):
        destination.check()
