"""The demo's last act: compacts what was pushed, and reads it before and after.

    read both tenants up to a timestamp -> merge their files (by Spark in a separate process, or by threads here)
    -> read again up to the same timestamp -> the changes must be equal, byte for byte

    python -m simulator.demo.compaction CATALOG BUCKET SCRATCH      one Spark session for both; figures into SCRATCH

The service runs on meanwhile. A job that loses its work to another one is repeated.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from compactor.core.plan import PlanSettings
from compactor.job import JobEnd, JobSettings, compact_tenant
from compactor.local import LocalExecutor
from tistream.catalog.database.engine import Catalog
from tistream.client import Client
from tistream.clock import SystemClock
from tistream.errors import TiStreamError
from tistream.ids import Tenant
from tistream.objectstore.factory import open_store

if TYPE_CHECKING:
    from compactor.job import Executor
    from simulator.demo.fetching import Fetching

_SETTINGS = JobSettings(lag_ms=0, plan=PlanSettings(inputs_min=2))
_TRIES = 5
_MERGED = "merged.json"
_SPARK = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What compaction replaced by what."""

    files_before: int = 0
    bytes_before: int = 0
    files_after: int = 0
    bytes_after: int = 0

    def __add__(self, other: Merged) -> Merged:
        return Merged(
            files_before=self.files_before + other.files_before,
            bytes_before=self.bytes_before + other.bytes_before,
            files_after=self.files_after + other.files_after,
            bytes_after=self.bytes_after + other.bytes_after,
        )

    def __str__(self) -> str:
        before = f"{self.files_before:,} files of {self.bytes_before:,} bytes"
        return f"{before} became {self.files_after:,} files of {self.bytes_after:,} bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of the act."""

    merged: Merged
    by: str  #: what did the work
    changes: int  #: read before, up to a timestamp
    equal: bool  #: whether the same were read after

    def __str__(self) -> str:
        again = f"the same {self.changes:,} changes" if self.equal else f"not the same {self.changes:,} changes"
        return f"{self.merged}, by {self.by}; read again: {again}"


@dataclass(frozen=True, slots=True)
class Where:
    """The service that is compacted."""

    url: str
    catalog_url: str
    store_url: str
    scratch: Path | None = None  #: a folder for Spark


class LastAct:
    """The act, in a thread. `step` is called a few times a second."""

    def __init__(
        self, where: Where, tenants: Sequence[Tenant], say: Callable[[str], None], fetching: Fetching | None
    ) -> None:
        """`fetching`: Spark, in case it can be had; None: threads compact."""
        self.outcome: Outcome | None = None
        self._where, self._tenants, self._say, self._fetching = where, tenants, say, fetching
        self._error: Exception | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._due_s: float | None = None
        self._is_told = False

    @property
    def is_over(self) -> bool:
        """Whether it was played to its end, which has been said."""
        return self._is_told

    def fetch(self) -> None:
        """Begin to fetch what Spark needs and this machine lacks."""
        if self._fetching is not None:
            self._fetching.start()
            if missing := " and ".join(self._fetching.missing):
                self._say(f"{missing} will be fetched meanwhile: the last act compacts the log on Spark")

    def step(self, now_s: float, *, due: bool, wait_s: float) -> None:
        """Check once. It begins when it is `due`, and waits so long for what is still being fetched. Raises the error
        that ended it."""
        if self._thread is None:
            if due and self._due_s is None:
                self._due_s = now_s
            is_fetched = self._fetching is None or self._fetching.is_over
            if self._due_s is not None and (is_fetched or now_s >= self._due_s + wait_s):
                self._begin()
            return
        if self._thread.is_alive() or self._is_told:
            return
        self._is_told = True
        if self._error is not None:
            raise self._error
        self._say(f"compaction: {self.outcome}")

    def finish(self, now_s: float) -> None:
        """Play it to its end, begun or not."""
        self.step(now_s, due=True, wait_s=0)
        if self._thread is not None:
            self._thread.join()
        self.step(now_s, due=True, wait_s=0)

    def stop(self) -> None:
        """Give up: end what runs, and wait. Nothing happens when it has ended."""
        self._stopped.set()
        if self._fetching is not None:
            self._fetching.stop()
        if (process := self._process) is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        if self._thread is not None:
            self._thread.join()

    def _begin(self) -> None:
        fetching = self._fetching
        reason = "" if fetching is None else fetching.reason if fetching.is_over else "Spark is still being fetched."
        by_spark = fetching is not None and not reason
        words = "Spark compacts the log, usually 30 s" if by_spark else "threads compact the log, usually 5 s"
        self._say(f"the last act: {words}. {reason}".rstrip())
        self._thread = threading.Thread(target=self._run, args=(by_spark,), name="last-act", daemon=True)
        self._thread.start()

    def _run(self, by_spark: bool) -> None:
        try:
            self.outcome = self._play(by_spark)
        except Exception as e:  # noqa: BLE001 - whatever it is, the thread that shows things raises it
            if not self._stopped.is_set():
                self._error = e

    def _play(self, by_spark: bool) -> Outcome | None:
        with Client(self._where.url) as client:
            upto = {tenant: _resolved_ts(client, tenant) for tenant in self._tenants}
            before = {tenant: _changes(client, tenant, ts) for tenant, ts in upto.items()}
            by, merged = "threads", None
            if by_spark and self._where.scratch is not None:
                by, merged = "Spark", self._spark(self._where.scratch)
            if self._stopped.is_set():
                return None
            if merged is None:
                by, merged = "threads", compacted(self._where, self._tenants, None)
            after = {tenant: _changes(client, tenant, ts) for tenant, ts in upto.items()}
        changes = sum(count for count, _ in before.values())
        return Outcome(merged=merged, by=by, changes=changes, equal=before == after)

    def _spark(self, scratch: Path) -> Merged | None:
        """By a separate process; None when it failed, which is said."""
        where = self._where
        scratch.mkdir(exist_ok=True)
        said = scratch / "said"
        command = [sys.executable, "-m", __name__, where.catalog_url, where.store_url, str(scratch)]
        with said.open("wb") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        if self._stopped.is_set():
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.wait() == 0:
            return Merged(**orjson.loads((scratch / _MERGED).read_bytes()))
        if not self._stopped.is_set():
            lines = said.read_text(errors="replace").strip().splitlines()
            self._say(f"Spark failed, so threads compact: {lines[-1] if lines else 'it said nothing'}")
        return None


def compacted(where: Where, tenants: Sequence[Tenant], executor: Executor | None) -> Merged:
    """Merge the files of these tenants; `executor` None: in threads."""
    catalog = Catalog(where.catalog_url)
    try:
        chosen = executor or LocalExecutor(open_store(where.store_url))
        return sum((_compacted(catalog, tenant, chosen) for tenant in tenants), Merged())
    finally:
        catalog.close()


def _compacted(catalog: Catalog, tenant: Tenant, executor: Executor) -> Merged:
    for _ in range(_TRIES):
        report = compact_tenant(catalog, tenant, executor, _SETTINGS, SystemClock())
        if report.end is JobEnd.NOTHING_TO_DO:
            return Merged()
        if report.end is JobEnd.COMMITTED and not report.failed:
            return Merged(
                files_before=report.files_before,
                bytes_before=report.bytes_before,
                files_after=report.files_after,
                bytes_after=report.bytes_after,
            )
    raise TiStreamError("the demo's log cannot be compacted", tenant=tenant, end=report.end, failed=report.failed)


def _resolved_ts(client: Client, tenant: Tenant) -> int:
    return client.tenant(tenant.cluster_id, tenant.tenant_id).page(start="latest", limit=1).resolved_ts


def _changes(client: Client, tenant: Tenant, upto_ts: int) -> tuple[int, str]:
    """(number, hash) of all changes up to a timestamp, in their order."""
    count, digest = 0, hashlib.sha256()
    if not upto_ts:
        return count, digest.hexdigest()  # the tenant has no watermark yet
    pages = client.tenant(tenant.cluster_id, tenant.tenant_id).changes(end=upto_ts).pages()
    for line in (line for page in pages for line in page.lines()):
        if orjson.loads(line)["type"] != "resolved":
            count += 1
            digest.update(line + b"\n")
    return count, digest.hexdigest()


def _main() -> None:
    from compactor.session import new_session
    from compactor.spark import SparkExecutor
    from simulator.demo import TENANT
    from simulator.demo.load import TENANT as LOAD_TENANT

    catalog_url, store_url, scratch = sys.argv[1:]
    session = new_session("local[2]", {**_SPARK, "spark.local.dir": scratch}, "tistream demo")
    where = Where("", catalog_url, store_url)
    merged = compacted(where, [TENANT, LOAD_TENANT], SparkExecutor(session, store_url, SystemClock()))
    (Path(scratch) / _MERGED).write_bytes(orjson.dumps(merged))
    session.stop()


if __name__ == "__main__":
    _main()
