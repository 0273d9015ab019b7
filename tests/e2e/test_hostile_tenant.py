"""A tenant that writes objects made to exhaust the service: they are problems of that tenant, and another is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.chaos.servers.processes import TiStreamProcess, Up, client, pull_all, register
from tests.kit.hostile_bytes import ATTACKS, GIB, empty, file_of, identity, zeros
from tests.kit.ticdc import CANAL, compare_canal
from tests.kit.waiting import problem_of
from tistream.ids import Tenant
from tistream.model.change import REGIONS
from tistream.objectstore.layout import BatchKey, SchemaSnapKey, buffer_prefix, parse

pytestmark = pytest.mark.timeout(600)

HOSTILE = Tenant(1, 2)
SNAPSHOTS = ("schema-of-empty-lists", "schema-of-columns", "schema-of-zeros", "schema-nested")
PEAK_MIB_MAX = 2000  #: of the process with all services; the ordinary work for two tenants takes 1,250
BATCH_MIB_MAX = 256  #: by which a hostile batch file may raise it


def put(bucket: Path, key: str, data: bytes) -> None:
    """As its session credentials allow the tenant."""
    path = bucket / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def push(up: Up, recording: Path, tenant: Tenant) -> None:
    of = ("-c", str(tenant.cluster_id), "-t", str(tenant.tenant_id))
    args = ("push", "--capture", str(recording), "--url", up.url, *of, "--speed", "max")
    with TiStreamProcess(*args, log=up.log.with_name(f"push-{tenant.tenant_id}.log")) as pusher:
        assert pusher.wait(180) == 0, pusher.output()


def peak_mib(up: Up) -> int:
    return int(Path(f"/proc/{up.pid}/status").read_text("ascii").split("VmHWM:")[1].split()[0]) >> 10


def batch_keys(bucket: Path) -> list[BatchKey]:
    """Of the hostile tenant's files."""
    paths = (bucket / buffer_prefix(HOSTILE)).rglob("*.seg")
    keys = (parse(path.relative_to(bucket).as_posix()) for path in paths)
    return [key for key in keys if isinstance(key, BatchKey)]


def check_neighbour(up: Up, expected: Path, last_resolved_ts: int) -> None:
    body = pull_all(up.url, last_resolved_ts, format="canal-json", **CANAL)
    assert compare_canal(expected, body.splitlines()) > 12_000


def test_a_tenant_that_writes_nonsense_hurts_itself(
    tmp_path: Path, recording: Path, expected: Path, last_resolved_ts: int
) -> None:
    bucket = tmp_path / "data" / "bucket"
    snapshots = [str(SchemaSnapKey(tenant=HOSTILE, ts=n + 1)) for n in range(len(SNAPSHOTS))]
    with Up(tmp_path) as up:
        with client(up.url) as c:
            c.tenant(HOSTILE.cluster_id, HOSTILE.tenant_id).register()
        for key, name in zip(snapshots, SNAPSHOTS, strict=True):
            put(bucket, key, ATTACKS[name].make())
        register(up.url)  # the neighbour, while those are parsed
        push(up, recording, Tenant(1, 1))
        check_neighbour(up, expected, last_resolved_ts)
        for key in snapshots:
            problem = problem_of(up.url, key)
            assert problem["code"] == "TS-1020"
            assert problem["contained"]
            assert str(HOSTILE) in problem["source"]
        push(up, recording, HOSTILE)  # a good snapshot replaces the bad ones
        last = max(batch_keys(bucket), key=lambda key: (key.store_id, key.incarnation, key.seq))
        bad = BatchKey(tenant=HOSTILE, store_id=last.store_id, incarnation=last.incarnation, seq=last.seq + 1)
        before = peak_mib(up)
        put(bucket, str(bad), file_of(identity(bad), ("rows", zeros(GIB), 1, GIB), ("regions", *empty(REGIONS))))
        problem = problem_of(up.url, str(bad))
        assert "too large" in problem["message"]
        assert f"{HOSTILE}/store-{bad.store_id}" in problem["source"]
        assert peak_mib(up) < min(before + BATCH_MIB_MAX, PEAK_MIB_MAX)
    with Up(tmp_path) as up:
        assert problem_of(up.url, str(bad))["code"] == "TS-1020"
        check_neighbour(up, expected, last_resolved_ts)
