"""A deployment on this machine: MariaDB, an S3 server (or a folder, or SQLite), and the services as processes.

with Deployment(folder, Shape(sorters=2)) as d:
    d.metrics("sorter-1")             everything that it measures of itself
    d.usage()                         processor seconds and memory of every process
"""

from __future__ import annotations

import os
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

from simulator.chaos.servers.durable_s3 import DurableS3
from simulator.chaos.servers.mariadb import MariaDBServer
from simulator.chaos.servers.s3server import CREDENTIALS
from simulator.chaos.servers.services import Services
from tistream.catalog.database.engine import Catalog

_BUCKET = "load"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The processes to run."""

    dispatchers: int = 1
    sorters: int = 2
    apis: int = 1
    replicators: int = 0
    executor: str = ""  #: the role that does maintenance jobs, `maintain` or `spark`; none without it
    mariadb: bool = True  #: else SQLite
    s3: bool = True  #: else a folder
    settings: tuple[tuple[str, str], ...] = ()  #: TISTREAM_* variables of every process

    def __str__(self) -> str:
        where = f"{'MariaDB' if self.mariadb else 'SQLite'}, {'S3 server' if self.s3 else 'folder'}"
        return (
            f"{where}; 1 meta server, {self.dispatchers} dispatchers, {self.sorters} sorters, {self.apis} API servers"
            f"{f', {self.replicators} replicators' if self.replicators else ''}"
            f"{self.executor and f', 1 executor ({self.executor})'}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Of one process, so far."""

    cpu_s: float
    rss_mb: float
    threads: int


class Deployment(Services):
    """Use it as a context: at its end every process is killed."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        super().__init__(folder, lambda _: self.environment)
        self.shape = shape
        self.url = self.url_of("api-1")
        self._servers: dict[str, int] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def metrics(self, name: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """(family and suffix, labels) -> value."""
        with urllib.request.urlopen(f"{self.url_of(name)}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        return {
            (s.name, tuple(sorted(s.labels.items()))): s.value
            for family in text_string_to_metric_families(text)
            for s in family.samples
        }

    def counters(self) -> dict[str, Counter[str]]:
        """Of each process: statements, transactions, and requests to the store by operation."""
        return {name: _counted(self.metrics(name)) for name in self.processes}

    def usage(self) -> dict[str, Usage]:
        """Every process, the servers' too."""
        pids = {name: p.pid for name, p in self.processes.items() if p.alive}
        pids |= {name: pid for name, pid in self._servers.items() if pid}
        return {name: usage_of(pid) for name, pid in pids.items()}

    # -- inside ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        shape = self.shape
        catalog_url, bucket_url = f"sqlite:///{self.folder}/catalog.db", f"file://{self.folder}/bucket"
        (self.folder / "bucket").mkdir()
        if shape.mariadb:
            (self.folder / "db").mkdir()
            database = MariaDBServer(self.folder / "db")
            database.start()
            self._open.callback(database.kill)
            catalog_url, self._servers["mariadb"] = database.url(), database.pid
        if shape.s3:
            bucket = DurableS3(self.folder / "s3")
            bucket.start()
            self._open.callback(bucket.kill)
            bucket.server.create_bucket(_BUCKET)
            bucket_url, self._servers["s3"] = bucket.server.url(_BUCKET), bucket.pid
            os.environ.update(CREDENTIALS)
        self.bucket_url = bucket_url
        self.environment = {
            **CREDENTIALS,
            "TISTREAM_CATALOG_URL": catalog_url,
            "TISTREAM_OBJECT_STORE_URL": bucket_url,
            "TISTREAM_LOG_LEVEL": "warning",
            **dict(shape.settings),
        }
        self.catalog = Catalog(catalog_url)
        self._open.callback(self.catalog.close)
        self.catalog.migrate()
        self._open.callback(self.kill)
        self.start("meta-1", *(f"api-{n + 1}" for n in range(shape.apis)))
        self.start(*(f"dispatcher-{n + 1}" for n in range(shape.dispatchers)))
        self.start(*(f"sorter-{n + 1}" for n in range(shape.sorters)))
        self.start(*(f"replicate-{n + 1}" for n in range(shape.replicators)))
        if shape.executor:
            self.start(f"{shape.executor}-1")
        self.wait_until_ready()


def usage_of(pid: int) -> Usage:
    """The resources a process has used so far; zeros when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return Usage(cpu_s=0, rss_mb=0, threads=0)
    return Usage(
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        rss_mb=int(fields[21]) * _PAGE_BYTES / 1e6,
        threads=int(fields[17]),
    )


def _counted(samples: Mapping[tuple[str, tuple[tuple[str, str], ...]], float]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for (name, labels), value in samples.items():
        match name:
            case "tistream_catalog_statements_total":
                counts["SQL"] += int(value)
            case "tistream_catalog_transactions_total":
                counts["transactions"] += int(value)
            case "tistream_object_store_requests_total":
                counts[dict(labels)["operation"].upper()] += int(value)
            case "tistream_http_requests_total":
                counts["HTTP"] += int(value)
    return counts


def wait_for(what: str, is_so: Callable[[], bool], seconds: float = 600.0, *, pause_s: float = 0.1) -> float:
    """Wait until it is so, looking each `pause_s`; how many seconds that took."""
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"{what} did not happen within {seconds:.0f} s")
        time.sleep(pause_s)
    return time.monotonic() - began


def load_now() -> float:
    """The machine's load of the last minute."""
    return os.getloadavg()[0]
