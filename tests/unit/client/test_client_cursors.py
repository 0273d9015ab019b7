"""Cursor stores, and consumers that are killed at every point: nothing is lost, with SQL nothing comes twice."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tistream.client import Client, CursorStore, FileCursorStore, SqlCursorStore
from tistream.client.core.requests import ALIVE
from tistream.errors import ChangedMeanwhile

PAGES = 4


class Killed(BaseException):
    """Stands for a process that is killed."""


class Log(httpx2.BaseTransport):
    """Pages 1 to PAGES, each after the one that the cursor names; page n holds the number n."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path == ALIVE:
            return httpx2.Response(200)
        number = int(dict(request.url.params).get("cursor", "0")) + 1
        facts = {
            "TiStream-Next-Cursor": str(min(number, PAGES)),
            "TiStream-Resolved-Ts": "9",
            "TiStream-Has-More": "true" if number < PAGES else "false",
        }
        return httpx2.Response(200, headers=facts, content=str(number).encode() if number <= PAGES else b"")


def consume(store: CursorStore, take: Callable[[int], None]) -> None:
    with Client("http://host:1", transport=Log()) as client:
        for page in client.tenant(1, 1).changes(store=store).pages():
            if page.content:
                take(int(page.content))


class Deadly:
    """A database connection whose process dies at the n-th call of one of its methods, before or after it."""

    def __init__(self, real: sqlite3.Connection, method: str, number: int, behind: bool) -> None:
        self._real, self._method, self._left, self._behind = real, method, number, behind

    def __getattr__(self, name: str) -> Any:
        true = getattr(self._real, name)
        if name != self._method:
            return true

        def call(*args: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._behind:
                raise Killed
            result = true(*args)
            if self._left == 0:
                raise Killed
            return result

        return call


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE taken (number INTEGER)")
    return path


def run_in(database: Path, method: str = "", number: int = 0, behind: bool = False) -> bool:
    """One life of a consumer; whether it came to the end."""
    real = sqlite3.connect(database)
    connection = Deadly(real, method, number, behind)
    try:
        store = SqlCursorStore(connection, "me", mark="?")

        def take(number: int) -> None:
            connection.cursor().execute("INSERT INTO taken VALUES (?)", (number,))

        consume(store, take)
    except Killed:
        return False
    finally:
        real.close()  # undoes what is not committed, as a death does
    return True


def forget(database: Path) -> None:
    """Delete what the consumer has written."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DELETE FROM taken")
        connection.execute("DROP TABLE IF EXISTS tistream_cursors")


def taken(database: Path) -> list[int]:
    with closing(sqlite3.connect(database)) as connection:
        return [n for (n,) in connection.execute("SELECT number FROM taken ORDER BY rowid")]


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("method", ["cursor", "commit"])
def test_with_sql_each_page_counts_once_wherever_the_consumer_dies(database: Path, method: str, behind: bool) -> None:
    number, deaths = 1, 0
    while not run_in(database, method, number, behind):
        deaths += 1
        assert taken(database) == list(range(1, len(taken(database)) + 1))
        forget(database)
        run_in(database, method, number, behind)  # dies
        assert run_in(database), "a consumer that is started again comes to the end"
        assert taken(database) == [1, 2, 3, 4]
        forget(database)
        number += 1
    assert deaths > PAGES


def test_a_loop_that_is_left_early_has_not_taken_its_page(database: Path) -> None:
    connection = sqlite3.connect(database)
    with Client("http://host:1", transport=Log()) as client:
        for page in client.tenant(1, 1).changes(store=SqlCursorStore(connection, "me", mark="?")).pages():
            connection.execute("INSERT INTO taken VALUES (?)", (int(page.content),))
            if page.next_cursor == "2":
                break
    assert SqlCursorStore(connection, "me", mark="?").load() == "1"
    connection.commit()
    assert taken(database) == [1], "what was written behind the cursor is undone"
    connection.close()
    assert run_in(database)
    assert taken(database) == [1, 2, 3, 4]


def test_of_two_consumers_of_one_name_the_slower_one_writes_nothing(database: Path) -> None:
    one, two = sqlite3.connect(database), sqlite3.connect(database)
    first, second = (SqlCursorStore(c, "me", mark="?") for c in (one, two))
    assert (first.load(), second.load()) == (None, None)
    first.save("1")
    two.execute("INSERT INTO taken VALUES (1)")
    with pytest.raises(sqlite3.IntegrityError):
        second.save("1")
    assert second.load() == "1"
    first.save("2")
    two.execute("INSERT INTO taken VALUES (2)")
    with pytest.raises(ChangedMeanwhile, match="'me' has saved meanwhile"):
        second.save("2")
    first.save("2")  # a page may end where the one before did
    assert second.load() == "2"
    one.close()
    two.close()
    assert taken(database) == []


def test_names_stand_apart(database: Path) -> None:
    connection = sqlite3.connect(database)
    one, two = (SqlCursorStore(connection, name, mark="?", table="positions") for name in ("one", "two"))
    assert (one.load(), two.load()) == (None, None)
    one.save("a")
    two.save("b")
    assert (one.load(), two.load()) == ("a", "b")
    connection.close()


def test_with_a_file_nothing_is_lost(tmp_path: Path) -> None:
    path, numbers = tmp_path / "at", list[int]()

    def take(number: int) -> None:
        numbers.append(number)
        if len(numbers) == 2:
            raise Killed

    with pytest.raises(Killed):
        consume(FileCursorStore(path), take)
    consume(FileCursorStore(path), take)
    assert numbers == [1, 2, 2, 3, 4], "the page in work came again"
    assert FileCursorStore(path).load() == "4"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["at"]


def test_a_file_that_a_kill_left_half_written_is_none(tmp_path: Path) -> None:
    store = FileCursorStore(tmp_path / "at")
    (tmp_path / "at.new").write_text("hal")
    assert store.load() is None
    store.save("whole")
    assert store.load() == "whole"
