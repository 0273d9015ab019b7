"""Options and filters of the Spark source."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual, Not

from tistream.errors import ConfigError
from tistream.spark.core.filters import Narrowed, narrow
from tistream.spark.core.options import parse_options

NEEDED = {"cluster": "1", "tenant": "2"}


def test_names_are_forgiving_and_values_travel() -> None:
    options = parse_options(
        {**NEEDED, "DATABASE": "d", "table": "t", "start_ts": "5", "end-ts": "9", "numpartitions": "3"}
    )
    assert (options.cluster, options.tenant, options.database, options.table) == (1, 2, "d", "t")
    assert (options.start_ts, options.end_ts, options.partitions, options.decodes) == ("5", "9", 3, True)
    assert pickle.loads(pickle.dumps(options)) == options
    secured = parse_options({**NEEDED, "CA": "ca.pem", "client_cert": "c.crt", "client_key": "c.key"})
    assert (secured.ca, secured.cert) == ("ca.pem", ("c.crt", "c.key"))
    assert not parse_options(NEEDED).decodes, "rows of several tables have no columns in common"
    assert not parse_options({**NEEDED, "database": "d", "table": "t", "decode": "false"}).decodes


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"cluster": "1"}, "tenant"),
        ({**NEEDED, "tabel": "x"}, "tabel"),
        ({**NEEDED, "table": "x"}, "table"),
        ({**NEEDED, "tenant": "one"}, "tenant"),
        ({**NEEDED, "numPartitions": "0"}, "numPartitions"),
        ({**NEEDED, "rowsPerPage": "999999999"}, "rowsPerPage"),
        ({**NEEDED, "pushFilters": "maybe"}, "pushFilters"),
        ({**NEEDED, "onUndecodable": "ignore"}, "onUndecodable"),
        ({**NEEDED, "catalog": "sqlite://"}, "catalog"),
        ({**NEEDED, "clientCert": "client.crt"}, "clientCert"),
        ({**NEEDED, "prefix": "61"}, "prefix"),
        ({**NEEDED, "keys": "true", "database": "d"}, "database"),
        ({**NEEDED, "keys": "true", "keyFormat": "octal"}, "keyFormat"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError) as e:
        parse_options(given)
    assert e.value.facts["option"] == named


TS = ("_commit_ts",)


@pytest.mark.parametrize(
    ("filters", "after", "upto"),
    [
        ([GreaterThan(TS, 10)], 10, None),
        ([GreaterThanOrEqual(TS, 10)], 9, None),
        ([LessThan(TS, 10)], None, 9),
        ([LessThanOrEqual(TS, 10)], None, 10),
        ([EqualTo(TS, 10)], 9, 10),
        ([GreaterThan(TS, 5), GreaterThan(TS, 7), LessThan(TS, 20), LessThanOrEqual(TS, 12)], 7, 12),
    ],
)
def test_bounds_are_taken_over(filters: list[Filter], after: int | None, upto: int | None) -> None:
    assert narrow(filters, commit_ts="_commit_ts", by_name=False) == (Narrowed(after=after, upto=upto), [])


def test_what_is_not_a_bound_stays_with_spark() -> None:
    filters = [In(TS, (1, 2)), Not(GreaterThan(TS, 5)), GreaterThan(("id",), 5), EqualTo(("database",), "shop")]
    assert narrow(filters, commit_ts="_commit_ts", by_name=False) == (Narrowed(), filters)


def test_names_narrow_and_stay() -> None:
    filters = [EqualTo(("database",), "shop"), EqualTo(("table",), "t"), GreaterThan(("commit_ts",), 3)]
    narrowed, left = narrow(filters, commit_ts="commit_ts", by_name=True)
    assert narrowed == Narrowed(after=3, database="shop", table="t")
    assert left == filters[:2]
