"""The lake examples: Delta and Iceberg tables follow tables of the recording, however often they are interrupted."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from tests.kit.log_builder import recording_end
from tests.kit.served_log import ServedLog, served_log
from tistream.client import Client, connect

pytestmark = pytest.mark.filterwarnings("ignore")  # a delete that meets no row, among others
EXAMPLES = Path(__file__).parents[2] / "examples"
TABLES = [
    ("shop", "acct"),  # an unsigned key
    ("shop", "pkmove"),  # a key that TiKV knows nothing of
    ("shop_arch", "bulk5k"),  # every kind of column, and a transaction of 5000 rows
    ("shop", "t_gen"),
    ("shop_arch", "moves"),
    ("shop", "charset_t"),  # is given a column
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedLog]:
    with served_log(tmp_path_factory.mktemp("lake")) as new_log:
        new_log.log.build(12).seed()
        yield new_log


@pytest.fixture(scope="module")
def client(served: ServedLog) -> Iterator[Client]:
    with connect(served.url) as new_client:
        yield new_client


@pytest.fixture(scope="module")
def example() -> Iterator[Callable[[str], Any]]:
    sys.path.insert(0, str(EXAMPLES))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    sys.path.remove(str(EXAMPLES))


class Interrupted(Exception):
    """Stands for a process that is killed."""


def source(example: Callable[[str], Any], client: Client, name: tuple[str, str], rows: int, pages: int | None) -> Any:
    """A source whose reader dies after so many pages, before or behind its commit."""
    shared = example("lake_source")

    class Dying(shared.TableSource):  # type: ignore[name-defined,misc]
        def changes(self, *args: Any) -> Iterator[Any]:
            for number, page in enumerate(super().changes(*args)):
                if number == pages:
                    raise Interrupted
                yield page

    return Dying(client.tenant(1, 1), *name, rows_per_page=rows)


def begin(client: Client, name: tuple[str, str]) -> str:
    """The first commit of the table."""
    page = client.tenant(1, 1).within(*name).page(format="arrow", limit=1)
    return str(page.arrow()["_commit_ts"][0])


def truth(example: Callable[[str], Any], client: Client, name: tuple[str, str]) -> list[dict[str, Any]]:
    """The table at the recording's end."""
    _, rows = example("lake_source").TableSource(client.tenant(1, 1), *name).snapshot(str(recording_end()))
    return ordered(rows)


def ordered(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=lambda row: repr(sorted(row.items())))


@pytest.mark.parametrize("name", TABLES, ids=".".join)
def test_a_delta_table_follows(
    example: Callable[[str], Any], client: Client, tmp_path: Path, name: tuple[str, str]
) -> None:
    delta, folder = example("to_delta"), str(tmp_path / "table")
    with pytest.raises(Interrupted):
        delta.sync(source(example, client, name, 5, 1), folder, begin(client, name))
    assert delta.sync(source(example, client, name, 300, None), folder) > 0
    assert delta.sync(source(example, client, name, 300, None), folder) == 0, "nothing is left to do"
    table = delta.DeltaTable(folder)
    assert ordered(pa.table(table.to_pyarrow_table())) == truth(example, client, name)
    assert table.transaction_version(f"tistream/1/1/{name[0]}/{name[1]}") <= recording_end()


def test_a_delta_table_is_of_one_source(example: Callable[[str], Any], client: Client, tmp_path: Path) -> None:
    delta = example("to_delta")
    delta.sync(source(example, client, TABLES[0], 300, None), str(tmp_path))
    with pytest.raises(SystemExit, match="was not made from"):
        delta.sync(source(example, client, TABLES[1], 300, None), str(tmp_path))


def test_one_of_two_delta_writers_wins(example: Callable[[str], Any], client: Client, tmp_path: Path) -> None:
    """Both begin at the same place: the page of the slower one is refused, and nothing comes twice."""
    delta, name, folder = example("to_delta"), TABLES[0], str(tmp_path / "table")
    with pytest.raises(Interrupted):
        delta.sync(source(example, client, name, 50, 0), folder, begin(client, name))
    slow = delta.DeltaTable(folder)
    of = source(example, client, name, 50, None)
    ts, page = next(iter(of.changes(slow.transaction_version(of.name), of.primary_key())))
    delta.sync(of, folder)
    with pytest.raises(Exception, match=r"(?i)transaction|conflict|version"):
        delta.merge(slow, page, of.primary_key(), delta.at(of, ts))
    assert ordered(pa.table(delta.DeltaTable(folder).to_pyarrow_table())) == truth(example, client, name)


@pytest.mark.parametrize("name", TABLES, ids=".".join)
def test_an_iceberg_table_follows(
    example: Callable[[str], Any], client: Client, tmp_path: Path, name: tuple[str, str]
) -> None:
    iceberg = example("to_iceberg")
    catalog = iceberg.open_catalog(str(tmp_path))
    with pytest.raises(Interrupted):
        iceberg.sync(source(example, client, name, 5, 1), catalog, begin(client, name))
    assert iceberg.sync(source(example, client, name, 900, None), catalog) > 0
    assert iceberg.sync(source(example, client, name, 900, None), catalog) == 0, "nothing is left to do"
    table = catalog.load_table(name)
    assert ordered(table.scan().to_arrow()) == truth(example, client, name)
    assert int(table.properties[iceberg.STANDS_AT]) <= recording_end()
