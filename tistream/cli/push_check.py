"""`tistream push --check`: everything that a push with the same options needs, looked at without pushing."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from tistream.diagnostics.findings import Finding, Look, Verdict, check

if TYPE_CHECKING:
    from tistream.ids import Tenant
    from tistream.tikv.channels import Tls


def check_push(
    url: str,
    tenant: Tenant,
    capture: Path | None,
    replay: Path | None,
    log_backup: str | None,
    pd: list[str] | None,
    tls: Tls | None,
    keyspace: str | None,
) -> list[Finding]:
    """What the service and the bucket say, and then the source, if one is given."""
    from pusher.control import HttpControl
    from pusher.examine import examine_push
    from pusher.tenant_store import opening

    control = HttpControl(url, tenant)
    try:
        found = examine_push(control, opening(control), uuid.uuid4().hex[:16])
    finally:
        control.close()
    if capture is not None:
        found.append(check("recording", lambda: _recording(capture)))
    if replay is not None:
        found.append(check("recording", lambda: _traffic(replay)))
    if log_backup is not None:
        found.append(check("log backup", lambda: _log_backup(log_backup)))
    if pd is not None:
        found += examine_cluster(pd, tls, keyspace)
    return found


def _recording(folder: Path) -> Look:
    from simulator.capture import Capture

    capture = Capture(folder)
    capture.schema_snapshot()
    meta = capture.meta
    words = f"{folder}: {meta.workload}, {meta.ticks:,} ticks of {len(meta.store_ids)} stores"
    return Verdict.OK, words, {"start_ts": str(meta.start_ts), "last_resolved_ts": str(meta.last_resolved_ts)}


def _traffic(folder: Path) -> Look:
    from simulator.replay.recording import read_recording

    found = read_recording(folder)
    words = f"{folder}: the traffic of a cluster of {len(found.stores)} stores, {len(found.lines):,} messages"
    return Verdict.OK, words, {"start_ts": str(found.start_ts)}


def _log_backup(url: str) -> Look:
    from pusher.logbackup.checkpoint import read_checkpoint
    from pusher.logbackup.core.metadata import META_PREFIX
    from tistream.objectstore.factory import open_store
    from tistream.ts import to_text

    store = open_store(url, foreign=True)
    if next(iter(store.list(META_PREFIX)), None) is None:
        return Verdict.FAIL, f"{url} can be listed, and no log backup has written below {META_PREFIX} there", {}
    checkpoint = read_checkpoint(store)
    if checkpoint is None:
        return Verdict.WARN, f"{url} has no global checkpoint yet: nothing of it is promised", {}
    words = f"{url} is complete up to {checkpoint.ts} ({to_text(checkpoint.ts)})"
    return Verdict.OK, words, {"checkpoint": str(checkpoint.ts)}


def examine_cluster(pd: list[str], tls: Tls | None, keyspace: str | None) -> list[Finding]:
    """What `tistream doctor --pd` finds."""
    from pusher.tikv.examine import examine
    from tistream.clock import SystemClock
    from tistream.tikv.core.ranges import whole_cluster
    from tistream.tikv.pd import PdClient

    client = PdClient(pd, tls=tls, patience_s=5.0)
    try:
        return examine(client, whole_cluster(), tls=tls, clock=SystemClock(), keyspace=keyspace)
    finally:
        client.close()
