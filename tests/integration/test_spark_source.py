"""`format("tistream")` on a real Spark over a real API server: batch reads, streams, a driver that is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from apiserver.console.snippets import ORIGIN, keys_snippets, pull_snippets
from tests.kit.doc_blocks import IN_SPARK, Block, PagePlayer, blocks_of
from tests.kit.entry_log import Entry, EntryLog, entry_rows
from tests.kit.log_builder import recording_end
from tests.kit.served_log import ServedLog, served_log
from tests.kit.spark_session import local_session
from tistream.client import connect
from tistream.ids import Tenant

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings("ignore")
#: with more of them micro-batches are smaller, so that each meets the query in its middle
KILLS = int(os.environ.get("SPARK_KILLS", "1"))
ROOT = Path(__file__).parents[2]
KEYSPACE = Tenant(1, 2)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHOWN = [(page, block) for page in PAGES for block in blocks_of(page) if block.title == IN_SPARK]
PUSHDOWN = {"spark.sql.python.filterPushdown.enabled": "true"}


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    with local_session(PUSHDOWN) as new_session:
        yield new_session


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedLog]:
    with served_log(tmp_path_factory.mktemp("spark")) as new_log:
        new_log.log.build(12)
        yield new_log


def frame(session: SparkSession, served: ServedLog, **options: object) -> DataFrame:
    where: dict[str, Any] = {"url": served.url, "cluster": 1, "tenant": 1}
    return session.read.format("tistream").options(**(where | options)).load()


def pulled(served: ServedLog, **scope: Any) -> pa.Table:
    """The truth: pages of a pull, one after the other."""
    with connect(served.url) as client:
        read = client.tenant(1, 1).within(scope.get("database"), scope.get("table"))
        return pa.concat_tables([page.arrow() for page in read.changes(limit=200_000).pages("arrow")])


def in_order(table: pa.Table, *by: str) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in by]).combine_chunks()


def same(table: pa.Table, truth: pa.Table) -> None:
    """The same values column by column, whatever the width of integers."""
    assert table.schema.names == truth.schema.names
    by = [name for name in table.schema.names if name.lstrip("_") in ("commit_ts", "key")]
    assert in_order(table, *by).to_pylist() == in_order(truth, *by).to_pylist()


def test_a_table_in_parts(session: SparkSession, served: ServedLog) -> None:
    read = frame(session, served, database="shop", table="t_ints", numPartitions=3)
    assert read.rdd.getNumPartitions() == 3
    truth = pulled(served, database="shop", table="t_ints", format="arrow")
    assert truth.num_rows > 50
    same(read.toArrow(), truth)
    kinds = dict(read.dtypes)
    assert (kinds["_commit_ts"], kinds["_op"], kinds["_key"]) == ("bigint", "string", "binary")


def test_undecoded_rows_filters_and_the_direct_way(session: SparkSession, served: ServedLog) -> None:
    truth = pulled(served, format="raw-arrow")
    direct = {"catalog": served.catalog_url, "objectStore": served.store_url}
    same(frame(session, served, numPartitions=2, **direct).toArrow(), truth)

    def filtered(condition: str) -> DataFrame:
        return frame(session, served, pushFilters=True).where(condition)

    middle = int(truth["commit_ts"][truth.num_rows // 2].as_py())
    filtered_rows = filtered(f"database = 'shop' AND table = 'acct' AND commit_ts > {middle}")
    plan = filtered_rows._jdf.queryExecution().executedPlan().toString()
    (left,) = [line for line in plan.split("\n") if " Filter " in line]
    assert "database" in left
    assert "commit_ts" not in left, "the bound of commit_ts is applied by the source"
    keep = pc.and_(pc.equal(truth["database"], "shop"), pc.equal(truth["table"], "acct"))
    keep = pc.and_(keep, pc.greater(truth["commit_ts"], pa.scalar(middle, pa.uint64())))
    assert 20 < pc.sum(keep).as_py() < 400
    same(filtered_rows.toArrow(), truth.filter(keep))
    assert filtered("database = 'nowhere'").count() == 0
    assert filtered(f"commit_ts > {recording_end()}").count() == 0


def test_keys_of_a_keyspace_in_both_ways(session: SparkSession, served: ServedLog) -> None:
    entries = [Entry(10 * n, b"user:%d" % (n % 7), None if n % 5 == 0 else b"v%d" % n, n % 3) for n in range(1, 60)]
    entries.append(Entry(1000, b"user:1", b"newest", 0, 995))
    EntryLog(served.log.catalog, served.log.store, tenant=KEYSPACE, rows=entry_rows(entries)).build(3, upto=2000)
    direct = {"catalog": served.catalog_url, "objectStore": served.store_url}
    for more in ({}, direct):
        read = frame(session, served, tenant=2, keys=True, numPartitions=3, pushFilters=True, **more)
        assert [tuple(row) for row in read.orderBy("ts").collect()] == [
            ("put" if e.value else "delete", e.key, e.value, e.ts, e.expire_ts or None, e.scanned_from_ts)
            for e in entries
        ]
        some = frame(session, served, tenant=2, keys=True, keyFormat="utf8", prefix="user:1", pushFilters=True, **more)
        timestamps = [e.ts for e in entries if e.key == b"user:1" and e.ts > 300]
        assert sorted(row.ts for row in some.where("ts > 300").collect()) == timestamps
    with pytest.raises(Exception, match="has keys and values"):
        frame(session, served, tenant=2)


def test_what_is_refused_says_why(session: SparkSession, served: ServedLog) -> None:
    for options, words in (
        ({"tabel": "x"}, "no option 'tabel'"),
        ({"database": "shop", "table": "customerz"}, "customers"),
        ({"startTs": "5"}, "begins at"),
    ):
        with pytest.raises(Exception, match=words):
            frame(session, served, **options).count()


def start_driver(served: ServedLog, folder: Path) -> subprocess.Popen[bytes]:
    where = [served.url, str(folder / "checkpoint"), str(folder / "out"), "shop", "inter", str(250 // KILLS)]
    env: dict[str, Any] = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with (folder / "driver.log").open("ab") as log:
        command = [sys.executable, "-m", "tests.kit.spark_stream", *where]
        return subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)


def committed(folder: Path) -> int:
    """Micro-batches that the query has committed."""
    return len([p for p in (folder / "checkpoint" / "commits").glob("[0-9]*") if p.suffix == ""])


def test_a_killed_driver_resumes_from_its_checkpoint(session: SparkSession, served: ServedLog, tmp_path: Path) -> None:
    """SIGKILL of driver and executors in the middle: rows written are those of the pull, each once."""
    for kill in range(KILLS):
        driver, batches = start_driver(served, tmp_path), committed(tmp_path) + 2
        while committed(tmp_path) < batches and driver.poll() is None:
            time.sleep(0.02)
        time.sleep(random.Random(kill).random())
        os.killpg(driver.pid, signal.SIGKILL)
        assert driver.wait() == -signal.SIGKILL, (tmp_path / "driver.log").read_text("utf-8")[-3000:]
    killed_at = committed(tmp_path)
    driver = start_driver(served, tmp_path)
    assert driver.wait(250) == 0, (tmp_path / "driver.log").read_text("utf-8")[-3000:]
    assert committed(tmp_path) > killed_at >= 2
    written = session.read.parquet(str(tmp_path / "out"))  # the files that the sink has committed
    truth = pulled(served, database="shop", table="inter", format="arrow")
    assert truth.num_rows > 800
    same(written.toArrow(), truth)


def test_offsets_mean_the_same_rows_each_time(session: SparkSession, served: ServedLog, tmp_path: Path) -> None:
    """A micro-batch that is forgotten after it was written is written again with the same rows."""
    stream = session.readStream.format("tistream").options(
        url=served.url, cluster=1, tenant=1, database="shop", table="acct", maxRowsPerTrigger=300, startTs="earliest"
    )
    seen: dict[int, list[Any]] = {}
    repeated: list[int] = []

    def take(rows: DataFrame, number: int) -> None:
        batch = sorted((row["_commit_ts"], bytes(row["_key"]), row["_op"]) for row in rows.collect())
        if number in seen:
            assert seen[number] == batch
            repeated.append(number)
        seen[number] = batch

    checkpoint = tmp_path / "checkpoint"
    for _ in range(2):
        writer = stream.load().writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        assert query.exception() is None
        last = max(seen)
        for path in (checkpoint / "commits").glob(f"*{last}*"):
            path.unlink()
    assert repeated == [max(seen)]
    assert seen[0] == [], "the first one says where the query begins"
    assert len(seen) > 3
    truth = pulled(served, database="shop", table="acct", format="arrow")
    rows = sorted(row for batch in seen.values() for row in batch)
    columns = ("_commit_ts", "_key", "_op")
    assert rows == sorted(tuple(row[name] for name in columns) for row in truth.select(columns).to_pylist())


@pytest.mark.parametrize(("page", "block"), SHOWN, ids=[page.stem for page, _ in SHOWN])
def test_a_program_of_the_documentation(
    session: SparkSession, served: ServedLog, tmp_path: Path, page: Path, block: Block
) -> None:
    names: dict[str, Any] = {}
    words = {
        "http://127.0.0.1:8711": served.url,
        '"cp"': repr(str(tmp_path / "cp")),
        '"out"': repr(str(tmp_path / "out")),
    }
    text = block.text  # Java's working folder is the one of its start
    for word, instead in words.items():
        text = text.replace(word, instead)
    exec(compile(text, page.name, "exec"), names)
    for query in session.streams.active:
        query.processAllAvailable()
        query.stop()
    if "query" in names:
        with connect(served.url) as client:
            truth = client.tenant(1, 1).table("shop.customers").changes().to_arrow()
        assert session.read.parquet(str(tmp_path / "out")).count() == truth.num_rows > 0


def test_the_documentation_shows_spark_in_the_readme_too() -> None:
    assert {page.stem for page, _ in SHOWN} >= {"README", "spark", "data-frames"}


@pytest.mark.parametrize("scope", ["", "shop.customers", "keys"])
def test_the_lines_that_the_console_shows(
    session: SparkSession, served: ServedLog, tmp_path: Path, scope: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if keys := scope == "keys":
        tenant, entry = Tenant(1, 4), Entry(10, b"user:1", b"Ada")
        EntryLog(served.log.catalog, served.log.store, tenant=tenant, rows=entry_rows([entry])).build(1, upto=20)
    snippets = keys_snippets(tenant) if keys else pull_snippets(Tenant(1, 1), scope)
    lines = {each["name"]: each["text"].replace(ORIGIN, served.url) for each in snippets}
    assert set(lines) == {"curl", "CLI", "Python", "Spark"}
    player = PagePlayer(tmp_path, os.environ, {})
    try:
        mark, least, first = ('"user:1"', 1, "{'op': 'put'") if keys else ('"type"', 11, "{'type': 'insert'")
        assert player.play(Block(line=1, info="sh", text=lines["curl"])).count(mark) >= least
        assert mark in player.play(Block(line=2, info='sh title="Until Ctrl-C"', text=lines["CLI"]))
        assert first in player.play(Block(line=3, info="python", text=lines["Python"]))
    finally:
        player.close()
    exec(lines["Spark"], {})
    assert ("expire_ts" if keys else "_commit_ts" if scope else "commit_ts") in capfd.readouterr().out
