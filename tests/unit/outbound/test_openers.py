"""Lists every place of the code that opens an address, and every option of a sink URI: a new one is noticed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from destinations.storage.settings import read_settings
from destinations.tikv.destination import TikvSettings
from destinations.uri import OptionReader, parse_sink_uri

ROOT = Path(__file__).parents[3]

#: module, what it opens -> whose address it is: of the settings, of the user on whose machine it runs, of another part
#: of the service, or of a caller, whose addresses a policy decides
PLACES = {
    ("destinations/storage/files.py", "_Bucket"): "caller",
    ("destinations/storage/files.py", "FolderFiles"): "caller",
    ("destinations/opening.py", "open_tikv"): "caller",
    ("destinations/tikv/destination.py", "PdClient"): "caller",
    ("destinations/tikv/destination.py", "RawClient"): "caller",
    ("tistream/tikv/pd.py", "PdChannel"): "caller",
    ("tistream/tikv/pd_channel.py", "Channels"): "caller",
    ("tistream/tikv/raw_client.py", "Channels"): "caller",
    ("tistream/tikv/raw_client.py", "RawClient"): "caller",
    ("tistream/tikv/channels.py", "insecure_channel"): "caller",
    ("tistream/tikv/channels.py", "secure_channel"): "caller",
    ("tistream/outbound/gate.py", "open_connection"): "caller",
    ("tistream/outbound/gate.py", "create_server"): "service",
    ("tistream/tikv/kv_scan.py", "Channels"): "user",
    ("pusher/tikv/locks.py", "Channels"): "user",
    ("pusher/tikv/stream.py", "open_channel"): "user",
    ("pusher/tikv/checks.py", "open_channel"): "user",
    ("pusher/control.py", "Client"): "user",
    ("pusher/tikv_push.py", "PdClient"): "user",
    ("pusher/tikv_push.py", "open_store"): "user",
    ("pusher/logbackup/push.py", "open_store"): "user",
    ("pusher/checks.py", "open_store"): "user",
    ("backup/cluster.py", "RawClient"): "user",
    ("backup/restore.py", "RawClient"): "user",
    ("backup/tidb.py", "connect"): "user",
    ("tistream/cli/raw.py", "open_store"): "user",
    ("tistream/cli/raw.py", "PdClient"): "user",
    ("tistream/cli/changefeed_verify.py", "open_tikv"): "user",
    ("tistream/cli/push.py", "open_store"): "user",
    ("tistream/cli/doctor.py", "PdClient"): "user",
    ("tistream/cli/doctor.py", "open_store"): "user",
    ("tistream/cli/files.py", "open_store"): "user",
    ("tistream/cli/server.py", "socket"): "settings",
    ("tistream/catalog/database/engine.py", "create_engine"): "settings",
    ("tistream/catalog/database/mysql.py", "create_engine"): "settings",
    ("tistream/objectstore/metered.py", "open_store"): "settings",
    ("tistream/objectstore/factory.py", "LocalStore"): "settings",
    ("tistream/objectstore/factory.py", "S3Store"): "settings",
    ("tistream/objectstore/s3.py", "_Bucket"): "settings",
    ("tistream/spark/access.py", "open_store"): "settings",
    ("backfill/replay.py", "open_store"): "settings",
    ("compactor/spark.py", "open_store"): "settings",
    ("tistream/runtime/aws.py", "client"): "settings",
    ("tistream/feed/queue_reader.py", "aws_client"): "settings",
    ("apiserver/control/push_access.py", "aws_client"): "settings",
    ("tistream/sealing/kms/aws.py", "aws_client"): "settings",
    ("tistream/feed/tls.py", "FlightClient"): "service",
}
_OPENERS = {
    "insecure_channel", "secure_channel", "open_channel", "Channels", "PdChannel", "PdClient", "RawClient", "open_tikv",
    "_Bucket", "S3Store", "LocalStore", "FolderFiles", "open_store", "create_engine", "FlightClient", "urlopen",
    "create_connection", "open_connection", "create_server", "AsyncClient", "HTTPTransport", "AsyncHTTPTransport",
    "HTTPSConnection", "PoolManager", "ClientSession", "aws_client",
}  # fmt: skip
_METHODS = {("Session()", "client"), ("pymysql", "connect"), ("socket", "socket"), ("flight", "connect"),
            ("httpx2", "get"), ("httpx2", "post"), ("httpx2", "stream"), ("httpx2", "request"),
            ("httpx2", "Client"), ("http.client", "HTTPConnection")}  # fmt: skip
_PACKAGES = ("tistream", "reading", "schemas", "destinations", "replicator", "dispatcher", "sorter", "compactor",
             "apiserver", "metaserver", "pusher", "backfill", "backup")  # fmt: skip
#: the HTTP client of users, which sends requests where its user says
_CLIENT = "tistream/client/"


def opening_places() -> set[tuple[str, str]]:
    openers = set()
    for package in _PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name, text = path.relative_to(ROOT).as_posix(), path.read_text("utf-8")
            for node in ast.walk(ast.parse(text)):
                called = _opener(node.func) if isinstance(node, ast.Call) and not name.startswith(_CLIENT) else None
                if called and (called != "_Bucket" or "obstore" in text):
                    openers.add((name, called))
    return openers


def _opener(called: ast.expr) -> str | None:
    if isinstance(called, ast.Name):
        return called.id if called.id in _OPENERS else None
    if isinstance(called, ast.Attribute):
        of = ast.unparse(called.value)
        if called.attr in _OPENERS or (of, called.attr) in _METHODS:
            return called.attr
    return None


def test_every_place_that_opens_an_address_is_known() -> None:
    """A new one belongs in PLACES; if it is a caller's, it takes a policy, and a row of the tables below."""
    assert opening_places() == set(PLACES)


def test_a_place_that_opens_for_a_caller_takes_a_policy() -> None:
    for name, _ in (place for place, whose in PLACES.items() if whose == "caller"):
        text = (ROOT / name).read_text("utf-8")
        assert any(word in text for word in ("CheckedNames", "Policy", "checked addresses")), name


def test_no_opener_gives_rights_that_its_caller_did_not_name() -> None:
    """A policy, and what opens with one, is always an argument: who forgets it gets an error and no operator's rights.
    The rights of an operator are for a program on its user's own machine."""
    given, operated = [], []
    for path in (path for package in (*_PACKAGES, "simulator") for path in (ROOT / package).rglob("*.py")):
        name, text = path.relative_to(ROOT).as_posix(), path.read_text("utf-8")
        if "OPERATED" in text:
            operated.append(name)
        is_about_it = "outbound.policy" in text or "OpenLetters" in text
        for node in ast.walk(ast.parse(text)) if is_about_it else ():
            defaults = [each for each in _defaulted(node) if ast.unparse(each) in ("Policy", "OpenLetters")]
            given += [f"{name}:{each.lineno}" for each in defaults]
    assert not given, "these have a default"
    on_its_machine = "tistream/cli/changefeed_verify.py"
    assert sorted(operated) == ["simulator/dst/sinking.py", on_its_machine, "tistream/outbound/policy.py"]


def _defaulted(node: ast.AST) -> list[ast.expr]:
    """Annotations of the parameters or fields of this node that have a default."""
    if isinstance(node, ast.AnnAssign):
        return [node.annotation] if node.value is not None else []
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    of = node.args
    plain = [*of.posonlyargs, *of.args]
    late = [arg for arg, default in zip(of.kwonlyargs, of.kw_defaults, strict=True) if default is not None]
    return [arg.annotation for arg in (*plain[len(plain) - len(of.defaults) :], *late) if arg.annotation is not None]


#: every option of a sink URI that is more than plain text, and what it means
_OF_ADDRESSES = {"endpoint", "region", "force-path-style"}
_OF_FILES = {"ca-path", "cert-path", "key-path"}
_OF_CREDENTIALS = {"access-key", "secret-access-key", "session-token"}
_PLAIN = {
    "protocol", "flush-interval", "file-size", "date-separator", "enable-partition-separator", "worker-count",
    "delimiter", "quote", "null", "terminator", "include-commit-ts", "output-old-value", "binary-encoding-method",
    "output-raw-change-event", "enable-tidb-extension", "content-compatible", "only-output-updated-columns",
    "rate-limit", "concurrency", "batch-size", "backoff-base", "backoff-max", "write-timeout", "keyspace",
    "api-version",
}  # fmt: skip


def test_every_option_of_a_sink_uri_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one that names an address, a file or credentials belongs in the tables below."""
    read: set[str] = set()
    text = OptionReader.text

    def noted(self: OptionReader, name: str, default: str = "") -> str:
        read.add(name)
        return text(self, name, default)

    monkeypatch.setattr(OptionReader, "text", noted)
    for protocol in ("csv", "canal-json", "parquet"):
        read_settings(parse_sink_uri(f"s3://bucket?protocol={protocol}&worker-count=1"))
    TikvSettings.of(parse_sink_uri("tikv://pd:2379?api-version=v2"), 1)
    assert read == _OF_ADDRESSES | _OF_FILES | _OF_CREDENTIALS | _PLAIN
