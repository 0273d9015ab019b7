"""Runbooks that change a deployment do what they say, command by command, on real servers of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pymysql
import pytest

from simulator.chaos.servers.mariadb import MariaDBServer
from simulator.chaos.servers.ports import free_port
from simulator.chaos.servers.processes import TiStreamProcess, Up, client
from simulator.chaos.servers.s3server import CREDENTIALS, REGION, s3_server
from tests.kit.doc_blocks import Block, PagePlayer, runnable
from tests.kit.waiting import eventually
from tistream.client import Client, connect
from tistream.errors import NotFound, StateForbids, StoreUnavailable, TiStreamError, Unauthenticated

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
pytestmark = pytest.mark.timeout(600)


def is_ready(url: str) -> bool:
    """Whether a service that the page has started answers."""
    try:
        with connect(url, retry_s=0) as http:
            http.get("/readyz")
    except TiStreamError:
        return False
    return True


def environment(**more: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TISTREAM_", "AWS_"))}
    return {**clean, **more}


@contextmanager
def player(folder: Path, words: Mapping[str, str], **env: str) -> Iterator[PagePlayer]:
    playing = PagePlayer(folder, environment(**env), words)
    try:
        yield playing
    finally:
        playing.close()


def blocks(page: str) -> Iterator[Block]:
    return runnable(RUNBOOKS / page)


def orders(c: Client) -> list[bytes]:
    """Lines of the sample's orders; none while there is no such table yet."""
    try:
        return c.tenant(1, 1).table("shop.orders").page().lines()[1:]
    except (NotFound, StateForbids, StoreUnavailable):
        return []


def sample_over(folder: Path, *where: str, **env: str) -> Up:
    """A whole service whose sample shop writes."""
    return Up(folder, *where, "--sample", env=env)


def test_a_database_with_the_grants_of_the_page_carries_a_service(tmp_path: Path) -> None:
    server = MariaDBServer(_made(tmp_path / "server"))
    try:
        server.start()
        with pymysql.connect(host="127.0.0.1", port=server.port, user="root") as conn, conn.cursor() as cursor:
            cursor.execute("DROP DATABASE tistream")  # that each server of the tests has
        with player(tmp_path, {"db.example": "127.0.0.1", "3306": str(server.port)}) as page:
            said = [page.play(block) for block in blocks("create-database.md")]
        assert (tmp_path / "owner.key").read_text("utf-8").startswith("tsk_")
        assert "what the server confirms is on its disk" in said[-1], "the doctor has looked at the server"
        url = f"mysql+pymysql://tistream:word-of-services@127.0.0.1:{server.port}/tistream"
        with sample_over(tmp_path, "--catalog", url) as up, client(up.url) as c:
            eventually(lambda: orders(c), up.output)
        with (
            pymysql.connect(
                host="127.0.0.1", port=server.port, user="tistream", password="word-of-services", database="tistream"
            ) as conn,
            conn.cursor() as cursor,
            pytest.raises(pymysql.err.OperationalError, match="DROP command denied"),
        ):
            cursor.execute("DROP TABLE tenants")
    finally:
        server.stop()


def test_keys_are_rotated_without_a_gap(tmp_path: Path) -> None:
    up = Up(tmp_path)
    up.args = tuple("keys" if word == "none" else word for word in up.args)
    with up:
        made = TiStreamProcess("key", "owner", "--data", str(tmp_path / "data"), log=tmp_path / "owner")
        with made:
            assert made.wait(60) == 0, made.output()
        owner = made.output().strip()
        with connect(up.url, key=owner) as c:
            pushers = c.tenant(1, 1).register()["push"]["key"]

        def works(key: str) -> bool:
            with connect(up.url, key=key, retry_s=0) as c:
                try:
                    c.get("/v1/whoami")
                except Unauthenticated:
                    return False
            return True

        with player(tmp_path, {}, TISTREAM_URL=up.url, TISTREAM_KEY=owner) as page:
            kept = ["warehouse.key", "warehouse-new.key", "warehouse-third.key", "pusher-new.key"]
            valid = list[list[str]]()
            for block in blocks("key-rotation.md"):
                page.play(block)
                made_keys = [name for name in kept if (tmp_path / name).exists()]
                valid.append([name for name in made_keys if works((tmp_path / name).read_text("utf-8").strip())])
        first, second, third, pusher = kept
        assert [first] in valid, "created"
        assert [first, second] in valid, "both count while the new one is handed over"
        eventually(lambda: not works((tmp_path / first).read_text("utf-8").strip()), "the revoked key is refused")
        eventually(lambda: not works((tmp_path / second).read_text("utf-8").strip()), "no overlap")
        assert works((tmp_path / third).read_text("utf-8").strip())
        assert works((tmp_path / pusher).read_text("utf-8").strip())
        assert works(pushers), "the old key of the pushers stays valid for a day"


@pytest.mark.parametrize("kind", ["s3", "folder"])
def test_a_service_moves_to_another_prefix(kind: str, tmp_path: Path) -> None:
    with s3_server() as s3:
        s3.create_bucket("bucket")
        aws = {**CREDENTIALS, "AWS_REGION": REGION, "AWS_ENDPOINT_URL": s3.endpoint}
        places = {
            "s3": (s3.url("bucket", "old"), s3.url("bucket", "new")),
            "folder": (f"file://{tmp_path}/ts/bucket", f"file://{tmp_path}/ts/bucket-new"),
        }
        old, new = places[kind]
        other_way = "cp -a" if kind == "s3" else "python copy_prefix.py"
        (tmp_path / "data").symlink_to(_made(tmp_path / "ts"))  # `Up` keeps its data there
        with sample_over(tmp_path, "--object-store", old, **aws) as up, client(up.url) as c:
            eventually(lambda: orders(c), up.output)
            table = c.tenant(1, 1).table("shop.orders")
            before = table.page(start="earliest")
            (tmp_path / "cursor").write_text(before.next_cursor, "utf-8")
            assert up.stop() == 0, up.output()
        port = str(free_port())
        words = {"8714": port, "shop.customers": "shop.orders"}
        words |= {f"s3://bucket/{n}?region=us-east-1": f"'{url}'" for n, url in (("old", old), ("new", new))}
        with player(tmp_path, words, **aws) as page:
            for block in blocks("move-bucket-prefix.md"):
                if other_way in block.text:
                    continue
                page.play(block)
                if "tistream up" in block.text:
                    eventually(lambda: is_ready(f"http://127.0.0.1:{port}"))
            with client(f"http://127.0.0.1:{port}") as c:
                table = c.tenant(1, 1).table("shop.orders")
                again = table.page(start="earliest", end=str(before.resolved_ts))
                assert again.lines()[1:] == before.lines()[1:]
                assert table.page(cursor=before.next_cursor).resolved_ts >= before.resolved_ts


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
