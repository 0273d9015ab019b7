"""Options of `spark.read.format("tistream")`, as plain values that are sent to executors.

Case, `_` and `-` do not matter in a name: `startTs`, `start_ts` and `STARTTS` are the same. An unknown option is
refused, so that a misspelled one is not ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tistream.errors import ConfigError
from tistream.limits import PULL_ROWS_MAX, SPLITS_MAX

_NAMES = (
    "url", "key", "cluster", "tenant", "database", "table", "startTs", "endTs", "schemaTs", "decode", "onUndecodable",
    "maxRowsPerTrigger", "numPartitions", "partitionBytes", "rowsPerPage", "pushFilters", "catalog", "objectStore",
    "keys", "startKey", "endKey", "prefix", "keyFormat", "ca", "clientCert", "clientKey",
)  # fmt: skip
_KEY_FORMATS = ("hex", "base64", "utf8", "escaped")
_BOOL = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What of the tenant is read: one table, one database, or everything."""

    database: str | None = None
    table: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Which keys of a raw or txn tenant are read: a range of user keys, as text in the key format."""

    key_format: str = "hex"
    start_key: str | None = None
    end_key: str | None = None
    prefix: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What is read, from where, and in which portions."""

    cluster: int
    tenant: int
    url: str = "http://127.0.0.1:8711"
    key: str | None = None  #: API key; None: from the environment or the user's file, on driver and executors
    ca: str | None = None  #: PEM file with the authority of the service's certificate, at driver and executors
    cert: tuple[str, str] | None = None  #: PEM files of a client certificate and its key
    database: str | None = None
    table: str | None = None
    keys: Keys | None = None  #: of a raw or txn tenant: changes of keys
    start_ts: str = "earliest"
    end_ts: str | None = None  #: None: what is served when the frame is made; for streams no end
    schema_ts: str | None = None  #: None: end_ts, or what is served when the frame is made
    decodes: bool = True  #: columns of one table; otherwise keys and values as they are
    skips_undecodable: bool = False
    rows_per_trigger: int | None = None
    partitions: int | None = None  #: None: as many as `partition_bytes` gives
    partition_bytes: int = 16 << 20  #: stored bytes
    rows_per_page: int = 50_000
    pushes_filters: bool = False
    catalog: str = ""  #: with `object_store`: executors read the bucket themselves
    object_store: str = ""

    @property
    def scope(self) -> Scope:
        return Scope(database=self.database, table=self.table)

    @property
    def is_direct(self) -> bool:
        """Whether executors read catalog and bucket rather than the API."""
        return bool(self.catalog)


_DEFAULT = ReadOptions(cluster=0, tenant=0)


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """ConfigError names an option that is unknown, missing or has a wrong value."""
    spelled = {name.lower(): name for name in _NAMES}
    values: dict[str, str] = {}
    for word, value in given.items():
        name = spelled.get(word.lower().replace("_", "").replace("-", ""))
        if name is None:
            raise ConfigError(f"format(\"tistream\") has no option '{word}'; it has {', '.join(_NAMES)}.", option=word)
        values[name] = value
    for name in ("cluster", "tenant"):
        if name not in values:
            raise ConfigError(f"format(\"tistream\") needs the option '{name}'.", option=name)
    if "table" in values and "database" not in values:
        raise ConfigError("The option 'table' needs the option 'database'.", option="table")
    if ("catalog" in values) != ("objectStore" in values):
        raise ConfigError("The options 'catalog' and 'objectStore' go together.", option="catalog")
    if ("clientCert" in values) != ("clientKey" in values):
        raise ConfigError("The options 'clientCert' and 'clientKey' go together.", option="clientCert")
    keys = _keys(values)
    return ReadOptions(
        cluster=_number(values, "cluster", 0, least=0),
        tenant=_number(values, "tenant", 0, least=0),
        url=values.get("url", _DEFAULT.url),
        key=values.get("key"),
        ca=values.get("ca"),
        cert=(values["clientCert"], values["clientKey"]) if "clientCert" in values else None,
        database=values.get("database"),
        table=values.get("table"),
        keys=keys,
        start_ts=values.get("startTs", _DEFAULT.start_ts),
        end_ts=values.get("endTs"),
        schema_ts=values.get("schemaTs"),
        decodes=_bool(values, "decode", True) and "table" in values,
        skips_undecodable=_word(values, "onUndecodable", {"fail": False, "skip": True}, False),
        rows_per_trigger=_number(values, "maxRowsPerTrigger", 0) or None,
        partitions=_number(values, "numPartitions", 0, most=SPLITS_MAX) or None,
        partition_bytes=_number(values, "partitionBytes", _DEFAULT.partition_bytes),
        rows_per_page=_number(values, "rowsPerPage", _DEFAULT.rows_per_page, most=PULL_ROWS_MAX),
        pushes_filters=_bool(values, "pushFilters", False),
        catalog=values.get("catalog", ""),
        object_store=values.get("objectStore", ""),
    )


def _keys(values: Mapping[str, str]) -> Keys | None:
    """The range of keys; None when tables are read."""
    given = [name for name in ("startKey", "endKey", "prefix", "keyFormat") if name in values]
    if not _bool(values, "keys", False):
        if given:
            raise ConfigError(f"The option '{given[0]}' needs keys=true.", option=given[0])
        return None
    if "database" in values:
        raise ConfigError("The option 'database' does not go with keys=true: a keyspace has none.", option="database")
    form = values.get("keyFormat", _KEY_FORMATS[0]).strip().lower()
    if form not in _KEY_FORMATS:
        raise ConfigError(f"The option 'keyFormat' is one of {', '.join(_KEY_FORMATS)}.", option="keyFormat")
    return Keys(
        key_format=form,
        start_key=values.get("startKey"),
        end_key=values.get("endKey"),
        prefix=values.get("prefix"),
    )


def _number(values: Mapping[str, str], name: str, default: int, *, least: int = 1, most: int = (1 << 63) - 1) -> int:
    if name not in values:
        return default
    text = values[name].strip()
    if not text.isdecimal() or not least <= int(text) <= most:
        raise ConfigError(f"The option '{name}' is a number from {least} to {most}, not '{text[:40]}'.", option=name)
    return int(text)


def _bool(values: Mapping[str, str], name: str, default: bool) -> bool:
    return _word(values, name, _BOOL, default)


def _word(values: Mapping[str, str], name: str, words: Mapping[str, bool], default: bool) -> bool:
    if name not in values:
        return default
    value = words.get(values[name].strip().lower())
    if value is None:
        raise ConfigError(f"The option '{name}' is one of {', '.join(words)}.", option=name)
    return value
