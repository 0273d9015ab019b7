"""What a release leaves behind, kept for the tests of later versions: a catalog, a bucket, and what clients hold.

`python tools/release.py` writes tests/releases/VERSION with the code of this tree; once, at the release.

    catalog.json.zst   revision; columns and rows of every table
    bucket.tar.zst     the objects: schema snapshot, seed, committed files, compacted files, bases
    held.json          what clients hold: an API key, a cursor and how many messages it has passed, a consumer
    openapi.json.zst   the description of the API
    *.whl              the distributions, which an upgrade is tested from
    SHA256SUMS         of these files, as sha256sum writes and checks them

The log is that of the recording, so what must come out is what TiDB and TiCDC gave. A release's files never change.
"""

from __future__ import annotations

import base64
import io
import json
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import sqlalchemy as sa
import zstandard
from starlette.testclient import TestClient

from compactor.base_job import BaseSettings, build_tenant_bases
from compactor.core.base_plan import BasePlanSettings
from compactor.core.plan import PlanSettings
from compactor.job import JobEnd, JobSettings, compact_tenant
from compactor.local import LocalExecutor
from schemas.registry.schema_registry import SchemaRegistry
from tests.kit.log_builder import TENANT, LogBuilder, recording_end
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.consumers import add_consumer
from tistream.cli import assembly
from tistream.cli.running import Parts
from tistream.config import CatalogSettings, ObjectStoreSettings, ServerSettings, Settings
from tistream.http.auth.core.roles import Role
from tistream.http.auth.issue import issue_key

SUMS = "SHA256SUMS"
FOLDER = Path(__file__).parents[1] / "releases"
CHANGES = "/v1/clusters/1/tenants/1/changes"
MESSAGES = {"format": "canal-json", "enable-tidb-extension": "true"}
_EVER_MS = 10 * 365 * 24 * 3_600_000


@dataclass
class Service:
    """A service over a folder or a database, that asks for keys."""

    parts: Parts
    http: TestClient

    def messages(self, key: str, **params: str) -> tuple[list[bytes], str]:
        """(the messages of one page, the cursor behind it)."""
        answer = self.http.get(CHANGES, params={**MESSAGES, **params}, headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code == 200, answer.text
        return answer.content.splitlines(), answer.headers["TiStream-Next-Cursor"]


@contextmanager
def service(catalog_url: str, bucket: Path) -> Iterator[Service]:
    """What `tistream serve --auth keys` serves; the catalog is migrated."""
    settings = Settings(
        catalog=CatalogSettings(url=catalog_url),
        object_store=ObjectStoreSettings(url=f"file://{bucket}"),
        server=ServerSettings(auth="keys"),
    )
    parts = assembly.open_parts(settings)
    try:
        with TestClient(assembly._api(parts, []), raise_server_exceptions=False) as http:
            yield Service(parts, http)
    finally:
        parts.catalog.close()


def make(version: str, wheels: Iterable[Path]) -> None:
    """Write the release's folder."""
    out = FOLDER / version
    out.mkdir(parents=True)
    with TemporaryDirectory() as temporary:
        bucket, url = Path(temporary) / "bucket", f"sqlite:///{temporary}/catalog.db"
        bucket.mkdir()
        with service(url, bucket) as left:
            _fill(left.parts)
            facts = _hold(left)
            description = left.http.app.openapi()  # type: ignore[attr-defined]
        catalog = Catalog(url)
        _write(out / "catalog.json.zst", kept_catalog(catalog))
        catalog.close()
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(bucket, ".")
        (out / "bucket.tar.zst").write_bytes(zstandard.compress(packed.getvalue(), 19))
    (out / "held.json").write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    _write(out / "openapi.json.zst", description)
    for wheel in wheels:
        shutil.copy(wheel, out)
    (out / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in digests(out).items()), "ascii")


def digests(folder: Path) -> dict[str, str]:
    """Each file of a release's folder and its SHA-256, without the list of them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS)
    return {path.relative_to(folder).as_posix(): sha256(path.read_bytes()).hexdigest() for path in files}


def recorded(folder: Path) -> dict[str, str]:
    """As `digests`, by SHA256SUMS."""
    lines = (folder / SUMS).read_text("ascii").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _fill(parts: Parts) -> None:
    """The recording as a log with a seed, bases, compacted files, and files that are not compacted."""
    log = LogBuilder(parts.catalog, parts.store).activate().seed()
    executor, registry = LocalExecutor(parts.store), SchemaRegistry(parts.catalog, parts.store)
    *first, last = log.cuts(6)
    for ts in first:
        log.flush(ts)
    plan = BasePlanSettings(tail_ratio=0, tail_bytes_min=0, group_bytes=20_000)
    settings = BaseSettings(lag_ms=0, window_ms=_EVER_MS, plan=plan)
    based = build_tenant_bases(parts.catalog, registry, TENANT, executor.bases, settings, parts.clock)
    merge = JobSettings(lag_ms=0, plan=PlanSettings(inputs_min=2))
    assert (based.end, compact_tenant(parts.catalog, TENANT, executor, merge, parts.clock).end) == (
        JobEnd.COMMITTED,
    ) * 2
    log.flush(last)
    log.flush(recording_end())


def _hold(left: Service) -> dict[str, Any]:
    """What clients keep."""
    key = issue_key(left.parts.catalog, name="a reader", role=Role.CONSUMER, tenant=TENANT).text
    messages, cursor = left.messages(key, start_ts="earliest", limit="5000")
    (at,) = LogBuilder(left.parts.catalog, left.parts.store).cuts(1)
    add_consumer(left.parts.catalog, TENANT, "a-consumer", at, partitions=2)
    return {"key": key, "cursor": cursor, "messages_before": len(messages), "consumer": ["a-consumer", str(at)]}


def kept_catalog(catalog: Catalog) -> dict[str, Any]:
    """Revision, columns and rows of all tables."""
    contents: dict[str, Any] = {"revision": catalog.revision(), "tables": {}}
    for table in reflected(catalog):
        with catalog.reading() as conn:
            rows = [dict(row) for row in conn.execute(sa.select(table)).mappings()]
        contents["tables"][table.name] = {
            "columns": [column.name for column in table.columns],
            "rows": [{name: _as_json(value) for name, value in row.items()} for row in rows],
        }
    return contents


def reflected(catalog: Catalog) -> list[sa.Table]:
    """The tables as the database has them, without Alembic's."""
    metadata = sa.MetaData()
    with catalog.reading() as conn:
        metadata.reflect(conn)
    return [table for table in metadata.sorted_tables if table.name != "alembic_version"]


def restore(version: str, catalog_url: str, bucket: Path) -> None:
    """The release's tables in an empty database, of the release's revision, and its objects in a folder."""
    contents = read(version, "catalog.json.zst")
    catalog = Catalog(catalog_url)
    catalog.migrate(contents["revision"])
    columns = {table.name: sorted(table.columns.keys()) for table in reflected(catalog)}
    assert columns == {name: sorted(was["columns"]) for name, was in contents["tables"].items()}, "a released migration"
    write_rows(version, catalog)
    catalog.close()
    packed = zstandard.decompress((FOLDER / version / "bucket.tar.zst").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        unpack_archive(tar, bucket)


def write_rows(version: str, catalog: Catalog) -> None:
    """The release's rows in place of those of the catalog: with the columns that the release has."""
    tables = {table.name: table for table in reflected(catalog)}
    with catalog.transaction() as conn:
        for name, was in read(version, "catalog.json.zst")["tables"].items():
            conn.execute(tables[name].delete())
            for row in was["rows"]:
                conn.execute(tables[name].insert(), {column: _from_json(value) for column, value in row.items()})


def read(version: str, name: str) -> dict[str, Any]:
    """One of the release's JSON files."""
    data = (FOLDER / version / name).read_bytes()
    return cast(dict[str, Any], json.loads(zstandard.decompress(data) if name.endswith(".zst") else data))


def _write(path: Path, content: Any) -> None:
    path.write_bytes(zstandard.compress(json.dumps(content).encode(), 19))


def _as_json(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _from_json(value: Any) -> Any:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else value


def unpack_archive(archive: tarfile.TarFile, folder: Path) -> None:
    """All of it into the folder. Python before 3.11.4, which Debian 12 has, knows no filters."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
    else:
        archive.extractall(folder)
