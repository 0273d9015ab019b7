"""What a release has left behind is served by this version: its catalog is migrated, its objects are read, and what its
clients hold stays valid."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import orjson
import pytest

from apiserver.openapi.breaking import broken
from simulator.chaos.servers.mariadb import mariadb, new_database
from tests.kit.later_release import FIRST, NEXT_MINOR, later
from tests.kit.old_release import MixedCluster, installed
from tests.kit.recording import EXPECTED
from tests.kit.release import (
    CHANGES,
    FOLDER,
    MESSAGES,
    Service,
    digests,
    kept_catalog,
    read,
    recorded,
    reflected,
    restore,
    service,
    write_rows,
)
from tests.kit.replica import moments, same_rows
from tests.kit.ticdc import compare_canal
from tests.kit.waiting import WAIT_S
from tistream.catalog.database.compatibility import demand
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import metadata
from tistream.catalog.work.features import Feature, living, switch_on
from tistream.catalog.work.leader import get_leader
from tistream.cli.main import EXIT
from tistream.errors import ErrorKind
from tistream.http.auth.core.roles import Role
from tistream.http.auth.issue import issue_key
from tistream.release import THIS_RELEASE, Release

RELEASES = sorted(path.name for path in FOLDER.iterdir())
NEIGHBOURS = [each for each in RELEASES if Release.parse(each) >= THIS_RELEASE.neighbour]  #: run beside this one


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with mariadb() as url:
        yield url


@contextmanager
def left_by(version: str, catalog_url: str, folder: Path) -> Iterator[Service]:
    """A service of this version over what the release has left."""
    restore(version, catalog_url, folder)
    with service(catalog_url, folder) as left:
        yield left


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("database", ["sqlite", "mariadb"])
def test_what_it_left_is_served(version: str, database: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = f"sqlite:///{tmp_path}/catalog.db"
    if database == "mariadb":
        url = new_database(request.getfixturevalue("server"), f"release_{version.replace('.', '_')}")
    release = read(version, "held.json")
    with left_by(version, url, tmp_path / "bucket") as left:
        messages, _ = left.messages(release["key"], start_ts="earliest", limit="200000")
        assert compare_canal(EXPECTED, messages) > 12_000
        after, _ = left.messages(release["key"], cursor=release["cursor"], limit="200000")
        assert len(after) > 1000
        later_messages = messages[release["messages_before"] :]
        assert list(map(content, after)) == list(map(content, later_messages)), "a cursor continues where it was"
        rows_are_those_of_tidb(left, release["key"])
        headers = {"Authorization": f"Bearer {release['key']}"}
        name, at = release["consumer"]
        (consumer,) = left.http.get(CHANGES.replace("changes", "consumers"), headers=headers).json()["items"]
        assert (consumer["consumer_id"], consumer["checkpoint_ts"]) == (name, at)
        assert left.http.get(CHANGES, headers={"Authorization": f"Bearer {release['key'][:-1]}x"}).status_code == 401


def content(message: bytes) -> dict[str, Any]:
    """Without the time at which the message was made."""
    return {name: value for name, value in orjson.loads(message).items() if name != "ts"}


def rows_are_those_of_tidb(release: Service, key: str) -> None:
    """Every table at the end: from a base, compacted files and files that are not."""
    for moment in (m for m in moments(EXPECTED) if m.label == "end"):
        for table in (t for t in moment.tables if t["kind"] == "table"):
            place = "/".join(quote(table[name], safe="") for name in ("db", "table"))
            path = CHANGES.replace("changes", f"databases/{place.replace('/', '/tables/')}/rows")
            params = {"as_of": str(moment.ts), "format": "ndjson"}
            answer = release.http.get(path, params=params, headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == 200, answer.text
            same_rows(moment, table, [orjson.loads(line)["columns"] for line in answer.content.splitlines()])


@pytest.mark.parametrize("version", RELEASES)
def test_its_catalog_becomes_the_one_of_this_version(version: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/catalog.db"
    restore(version, url, tmp_path / "bucket")
    catalog = Catalog(url)
    catalog.migrate()
    columns = {name: set(table["columns"]) for name, table in kept_catalog(catalog)["tables"].items()}
    catalog.close()
    assert columns == {name: set(table.columns.keys()) for name, table in metadata.tables.items()}


@pytest.mark.parametrize("version", NEIGHBOURS)
@pytest.mark.parametrize("database", ["sqlite", "mariadb"])
def test_what_it_writes_fits_the_tables_of_this_version(
    version: str, database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Migrations only add: a process of the release, which knows its own columns, reads and inserts rows as before."""
    url = f"sqlite:///{tmp_path}/catalog.db"
    if database == "mariadb":
        url = new_database(request.getfixturevalue("server"), f"expanded_{version.replace('.', '_')}")
    catalog = Catalog(url)
    catalog.migrate()
    assert list(lacking(version, catalog)) == []
    write_rows(version, catalog)
    rows = {name: len(table["rows"]) for name, table in kept_catalog(catalog)["tables"].items()}
    assert {name: rows[name] for name in rows_of(version)} == rows_of(version)
    catalog.close()


@pytest.mark.parametrize(
    ("step", "noticed"),
    [
        ('op.add_column("workers", sa.Column("zone", sa.String(8), nullable=False))', "workers.zone must be given"),
        ('op.add_column("workers", sa.Column("zone", sa.String(8)))', ""),
        ('op.drop_column("workers", "address")', "workers.address is gone"),
        ('op.drop_table("lanes")', "lanes is gone"),
    ],
)
def test_a_migration_that_takes_something_from_it_is_noticed(step: str, noticed: str, tmp_path: Path) -> None:
    catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db", release=NEXT_MINOR, migrations=later(tmp_path, FIRST, step))
    catalog.migrate()
    assert list(lacking("0.1.0", catalog)) == [noticed] * bool(noticed)
    catalog.close()


def lacking(version: str, catalog: Catalog) -> Iterator[str]:
    """What a process of the release misses in the tables, or would have to give when it inserts."""
    now = {table.name: table.columns for table in reflected(catalog)}
    for name, was in read(version, "catalog.json.zst")["tables"].items():
        if name not in now:
            yield f"{name} is gone"
            continue
        yield from (f"{name}.{column} is gone" for column in was["columns"] if column not in now[name])
        for column in now[name]:
            if column.name not in was["columns"] and not column.nullable and column.server_default is None:
                yield f"{name}.{column.name} must be given"


def rows_of(version: str) -> dict[str, int]:
    """How many rows the release has left in each table."""
    return {name: len(was["rows"]) for name, was in read(version, "catalog.json.zst")["tables"].items()}


@pytest.mark.parametrize("version", NEIGHBOURS)
def test_its_servers_serve_the_catalog_of_this_version(version: str, tmp_path: Path) -> None:
    """Beside those of this version, each reads what the other has written. A feature waits for them, and once they may
    run no longer they end and say what to start."""
    url, bucket, release = f"sqlite:///{tmp_path}/catalog.db", tmp_path / "bucket", read(version, "held.json")
    restore(version, url, bucket)
    settings = {"TISTREAM_CATALOG_URL": url, "TISTREAM_OBJECT_STORE_URL": f"file://{bucket}"}
    cluster = MixedCluster(
        tmp_path, {**settings, "TISTREAM_SERVER_AUTH": "keys"}, installed(version, tmp_path / "installed")
    )
    headers = {"Authorization": f"Bearer {release['key']}"}
    first, consumers = {"start_ts": "earliest", "limit": "2000"}, CHANGES.replace("changes", "consumers")
    try:
        with service(url, bucket) as here, httpx2.Client(base_url=cluster.url_of("api-1"), headers=headers) as there:
            cluster.run("meta-1", "api-1", old=True)
            assert set(living(here.parts.catalog).values()) == {Release.parse(version)}
            messages, _ = here.messages(release["key"], **first)
            answer = there.get(CHANGES, params={**MESSAGES, **first}, timeout=60)
            assert list(map(content, answer.content.splitlines())) == list(map(content, messages))
            new = {"consumer_id": "made-here", "start_ts": "earliest"}
            owner = issue_key(here.parts.catalog, name="an owner", role=Role.OWNER).text
            made = here.http.post(consumers, json=new, headers={"Authorization": f"Bearer {owner}"})
            assert made.status_code == 201, made.text
            leader = get_leader(here.parts.catalog)
            assert leader is not None
            assert (leader.name, leader.release) == ("meta-1", Release.parse(version))
            names = [item["consumer_id"] for item in there.get(consumers).json()["items"]]
            assert names == ["a-consumer", "made-here"]
            feature = Feature(name="parcels", since=THIS_RELEASE, changes="files are written as parcels")
            assert switch_on(here.parts.catalog, [feature], leader_epoch=leader.epoch) == frozenset()
            with here.parts.catalog.transaction() as conn:
                demand(conn, by=THIS_RELEASE, lowest=THIS_RELEASE)
            for process in cluster.processes.values():
                assert process.wait(WAIT_S) == EXIT[ErrorKind.FENCED]
                assert f"Start {THIS_RELEASE} or later" in process.output()
                assert "Traceback" not in process.output()
    finally:
        cluster.kill()


@pytest.mark.parametrize("version", RELEASES)
def test_its_clients_find_what_they_ask_for(version: str, tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with service(f"sqlite:///{tmp_path}/catalog.db", tmp_path / "bucket") as left:
        now = left.http.app.openapi()  # type: ignore[attr-defined]
    assert broken(read(version, "openapi.json.zst"), now) == []


@pytest.mark.parametrize("version", RELEASES)
def test_its_files_are_as_they_were_released(version: str) -> None:
    assert digests(FOLDER / version) == recorded(FOLDER / version), "a release's files never change"


def test_a_changed_a_missing_and_an_added_file_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "held.json").write_text("{}", "ascii")
    (tmp_path / "SHA256SUMS").write_text(f"{digests(tmp_path)['held.json']}  held.json\n", "ascii")
    assert digests(tmp_path) == recorded(tmp_path)
    done = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, "the usual tool reads it"
    (tmp_path / "more.json").touch()
    assert digests(tmp_path) != recorded(tmp_path)
    (tmp_path / "more.json").unlink()
    (tmp_path / "held.json").write_text("{ }", "ascii")
    assert digests(tmp_path) != recorded(tmp_path)
    (tmp_path / "held.json").unlink()
    assert digests(tmp_path) != recorded(tmp_path)


def test_there_is_one_for_each_release() -> None:
    """The changelog names the releases."""
    lines = (FOLDER.parents[1] / "CHANGELOG.md").read_text("utf-8").splitlines()
    named = [line[4:].partition("]")[0] for line in lines if line.startswith("## [")]
    assert sorted(named[1:]) == RELEASES
    assert named[0] == "Unreleased"
