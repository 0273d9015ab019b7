"""Opening a saved schema history of 100,000 tables, one lookup and one DDL: lazily, against parsing all of it.

Both sides read the same tables of ten columns from memory. The lazy side opens the base, finds one table, and applies
one DDL (job and meta range) to a copy; the other parses every table into a history and does the same. Also yielded: the
cost of a copy for each catch-up against copying an index of all tables.

    python -m benchmarks.schema_history     milliseconds and memory of one opening each, in separate processes
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import orjson
import zstandard

from benchmarks.harness import Result, compare
from schemas import saved
from schemas.ddl import Job
from schemas.history import History
from schemas.meta import Definition, MetaCommit
from schemas.model import Column, Database, Index, IndexColumn, Table
from schemas.snapshot import SchemaSnapshot

TABLES = 100_000
DATABASES = 50
START = 1_000
_TYPES = (8, 15, 15, 246, 5, 12, 3, 15, 7, 1)
_WORDS = ("id", "name", "email", "amount", "score", "created_at", "count", "note", "updated_at", "flag")


def table(n: int) -> Table:
    """A table of ten columns and two indexes; every second one has unique names."""
    columns = tuple(
        Column(
            id=i + 1,
            name=word if n % 2 else f"{word}_{n % 97}",
            offset=i,
            tp=tp,
            flag=3 if i == 0 else 0,
            flen=20 + n % 40,
            decimal=2 if tp == 246 else 0,
            charset="utf8mb4" if tp == 15 else "binary",
            collate="utf8mb4_bin" if tp == 15 else "binary",
        )
        for i, (word, tp) in enumerate(zip(_WORDS, _TYPES, strict=True))
    )
    by_name = Index(id=1, name="by_name", columns=(IndexColumn(name="name", offset=1),), unique=False, primary=False)
    by_mail = Index(id=2, name="by_email", columns=(IndexColumn(name="email", offset=2),), unique=True, primary=False)
    db = 1 + n * DATABASES // TABLES
    return Table(
        id=1_000 + 2 * n,
        db_id=db,
        db=f"tenant_{db}",
        name=f"orders_{n}",
        charset="utf8mb4",
        collate="utf8mb4_bin",
        columns=columns,
        indexes=(by_name, by_mail),
        pk_is_handle=True,
        is_common_handle=False,
        update_ts=450_000_000_000_000_000 + n,
    )


def drop(n: int) -> MetaCommit:
    """DROP TABLE of the n-th table."""
    dropped = table(n)
    job = Job(
        id=1,
        type=4,
        state=4,
        schema_id=dropped.db_id,
        table_id=dropped.id,
        schema_name=dropped.db,
        query="DROP TABLE t",
        start_ts=START + 1,
        commit_ts=START + 2,
        schema_version=2,
        db_info=None,
        table_info=None,
        table_infos=(),
        args=None,
    )
    meta = Definition(start_ts=START + 1, commit_ts=START + 2, db_id=dropped.db_id, table_id=dropped.id, info=None)
    return MetaCommit(start_ts=START + 1, commit_ts=START + 2, jobs=(job,), definitions=(meta,))


def databases() -> dict[int, Database]:
    """By id."""
    return {i: Database(id=i, name=f"tenant_{i}") for i in range(1, DATABASES + 1)}


def objects() -> tuple[bytes, bytes]:
    """(a base, one JSON document) of the same tables, both zstd."""
    tables = {t.id: t for t in map(table, range(TABLES))}
    history = History(SchemaSnapshot(ts=START, databases=databases(), tables=tables), table(0))
    return history.dump(), zstandard.compress(saved.dumps(list(tables.values())), 3)


def lazily(base: bytes) -> History:
    """Open the base."""

    def fetch(offset: int, length: int) -> bytes:
        return base[offset : offset + length]

    return History.open(saved.open_object("base", fetch), fetch)


def whole(document: bytes) -> History:
    """Parse everything."""
    tables = [saved.table_of(t) for t in orjson.loads(zstandard.decompress(document))]
    snapshot = SchemaSnapshot(ts=START, databases=databases(), tables={t.id: t for t in tables})
    return History(snapshot, tables[0])


def used(history: History) -> tuple[Table, set[int]]:
    """One lookup and one DDL: the table found, and the ids of another after it was dropped."""
    other = history.find("tenant_40", "orders_79000", START)
    grown = history.copy()
    grown.take(drop(5))
    grown.advance(START + 10)
    return other, grown.physical_ids("tenant_1", "orders_5", START + 2, START + 10)


def run() -> Iterator[Result]:
    """Two ratios."""
    base, document = objects()
    yield compare(
        "schema-history/open-lookup-ddl-vs-whole-parse",
        lambda: used(lazily(base)),
        lambda: used(whole(document)),
        proof=lambda a, b: a == b,
        target=20,
        runs=5,
    )
    history = lazily(base)
    entries = {i: n for n, i in enumerate(range(TABLES))}
    yield compare(
        "schema-history/copy-vs-copy-of-an-index",
        history.copy,
        entries.copy,
        proof=lambda a, b: len(a.physical_ids("tenant_1", None, START, START)) * DATABASES == len(b),
        target=20,
    )


def _measure(side: str, base: bytes, document: bytes) -> None:
    """Print milliseconds and the growth of the peak resident memory of one opening, lookup and DDL."""
    sides: dict[str, Callable[[], History]] = {"lazily": lambda: lazily(base), "whole": lambda: whole(document)}
    before = _resident_mb()
    start = time.perf_counter()
    history = sides[side]()
    opened = time.perf_counter()
    used(history)
    done = time.perf_counter()
    print(
        f"{side}: open {1e3 * (opened - start):.1f} ms, lookup and DDL {1e3 * (done - opened):.1f} ms, "
        f"{_resident_mb() - before:.0f} MB more resident; base {len(base) / 1e6:.1f} MB, "
        f"whole {len(document) / 1e6:.1f} MB stored"
    )


def _resident_mb() -> float:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))


def main() -> None:
    """Both sides, each in a fresh process that reads the objects from its standard input."""
    if len(sys.argv) > 1:
        size = int(sys.stdin.buffer.readline())
        base = sys.stdin.buffer.read(size)
        _measure(sys.argv[1], base, sys.stdin.buffer.read())
        return
    base, document = objects()
    for side in ("lazily", "whole"):
        data = b"%d\n" % len(base) + base + document
        subprocess.run([sys.executable, "-m", "benchmarks.schema_history", side], input=data, check=True)


if __name__ == "__main__":
    main()
