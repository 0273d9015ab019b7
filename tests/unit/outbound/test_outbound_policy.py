"""The rule of what may be opened for a caller: a table of targets, and mutants of the rule that the table notices."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.manual_clock import ManualClock
from tistream.errors import InvalidInput, NotAllowed, StoreUnavailable
from tistream.outbound import addresses, policy, rules
from tistream.outbound.checked_names import CheckedNames
from tistream.outbound.policy import Own, Policy, Terms
from tistream.outbound.rules import Rule, Target, TargetRefused, endpoint_parts, split_address

PUBLIC, INSIDE = "93.184.216.34", "10.2.0.7"
NAMES = {
    "pd.example.com": [PUBLIC],
    "evil.example.com": ["127.0.0.1"],
    "half.example.com": [PUBLIC, "127.0.0.1"],
    "meta.example.com": ["169.254.169.254"],
    "mapped.example.com": ["::ffff:127.0.0.1"],
    "nat.example.com": ["64:ff9b::7f00:1"],
    "inside.example.com": [INSIDE],
    "catalog.corp": ["10.2.9.9"],
    "alias.example.com": ["10.2.9.9"],
}
RULES = (
    "tikv://*.example.com",
    "tikv://10.2.0.0/16",
    "https://minio.corp:9000/lake/hers",
    "http://10.3.0.1",
    "s3://hers/cdc",
    "s3://shared/hers?credentials=machine",
    "s3://log",
    "file:///srv/hers",
)
TERMS = Terms(
    networks=(ipaddress.ip_network("10.2.0.0/16"),),
    own=Own(
        folders=("/srv/hers/bucket", "/var/catalog.db"),
        bucket="log",
        prefix="prod",
        servers=(("catalog.corp", 3306),),
    ),
)


def tenants(*more: str) -> Policy:
    return Policy(terms=TERMS, rules=tuple(map(Rule.parse, (*RULES, *more))), is_operated=False)


OPERATORS = Policy(terms=TERMS, is_operated=True)


def opened(asked: Policy, target: Target) -> bool:
    """Whether it may be opened, with the addresses of its name."""
    try:
        if target.scheme in ("tikv", "http", "https"):
            return bool(asked.addresses(target))
        asked.check(target)
    except NotAllowed:
        return False
    return True


def bucket(asked: Policy, name: str, prefix: str, *, machine: bool, endpoint: str = "") -> bool:
    path = f"{name}/{prefix}".strip("/")
    scheme_and_host = endpoint_parts(endpoint) if endpoint else None
    target = Target.server(*scheme_and_host, path) if scheme_and_host else Target(scheme="s3", host=name, path=prefix)
    try:
        asked.check_bucket(target, bucket=name, prefix=prefix, endpoint=endpoint, machine=machine)
    except NotAllowed:
        return False
    return True


def tikv(address: str) -> Target:
    return Target.server("tikv", address)


def folder(path: str) -> Target:
    return Target(scheme="file", path=path.strip("/"))


#: (policy, target, whether it may be opened)
SERVERS: list[tuple[Policy, Target, bool]] = [
    (tenants(), tikv("pd.example.com:2379"), True),
    (tenants(), tikv("PD.Example.com.:2379"), True),
    (tenants(), tikv(f"{INSIDE}:20160"), True),
    (tenants(), tikv("inside.example.com:2379"), True),
    (tenants(), tikv("evil.example.com:2379"), False),
    (tenants(), tikv("half.example.com:2379"), False),
    (tenants(), tikv("meta.example.com:80"), False),
    (tenants(), tikv("mapped.example.com:2379"), False),
    (tenants(), tikv("nat.example.com:2379"), False),
    (tenants(), tikv("example.com:2379"), False),
    (tenants(), tikv("notexample.com:2379"), False),
    (tenants(), tikv("127.0.0.1:2379"), False),
    (tenants(), tikv("[::1]:2379"), False),
    (tenants(), tikv("[::ffff:7f00:1]:2379"), False),
    (tenants(), tikv("10.3.0.1:2379"), False),
    (tenants(), tikv("alias.example.com:3306"), False),
    (tenants(), tikv("alias.example.com:3307"), True),
    (tenants("tikv://169.254.0.0/16"), tikv("169.254.169.254:80"), False),
    (tenants("tikv://*"), tikv("evil.example.com:2379"), False),
    (tenants("tikv://*"), tikv("127.0.0.1:2379"), False),
    (tenants("tikv://127.0.0.1:2379"), tikv("127.0.0.1:2379"), True),
    (tenants("tikv://127.0.0.1:2379"), tikv("127.0.0.1:2380"), False),
    (tenants(), Target.server("https", "minio.corp:9000", "lake/hers/x"), False),  # a name that is not known
    (tenants(), Target.server("http", "10.3.0.1", "any"), True),
    (tenants(), Target.server("http", "10.3.0.1:8080", "any"), False),
    (tenants(), Target.server("https", "10.3.0.1", "any"), False),
    (OPERATORS, tikv("evil.example.com:2379"), True),
    (OPERATORS, tikv("127.0.0.1:2379"), True),
    (OPERATORS, tikv("meta.example.com:80"), False),
    (OPERATORS, tikv("169.254.169.254:80"), False),
    (OPERATORS, tikv("0.0.0.0:80"), False),
    (OPERATORS, tikv("catalog.corp:3306"), False),
    (OPERATORS, tikv("10.2.9.9:3306"), False),
    (tenants(), folder("/srv/hers/changes"), True),
    (tenants(), folder("/srv/hers/bucket"), False),
    (tenants(), folder("/srv/hers"), False),
    (tenants(), folder("/srv/hers/bucket/x"), False),
    (tenants(), folder("/srv/hers/../his"), False),
    (tenants(), folder("/srv/hersandmore"), False),
    (OPERATORS, folder("/srv/his"), True),
    (OPERATORS, folder("/srv/hers/x/../bucket"), False),
    (OPERATORS, folder("/"), False),
    (OPERATORS, folder("/var"), False),
]
#: (policy, bucket, prefix, endpoint, whether with the machine's credentials, whether it may be opened)
BUCKETS: list[tuple[Policy, str, str, str, bool, bool]] = [
    (tenants(), "hers", "cdc/x", "", False, True),
    (tenants(), "hers", "cdc", "", True, False),
    (tenants(), "hers", "cdcs", "", False, False),
    (tenants(), "hers", "cdc/../other", "", False, False),
    (tenants(), "shared", "hers/x", "", True, True),
    (tenants(), "shared", "his", "", True, False),
    (tenants(), "log", "elsewhere", "", False, False),
    (tenants(), "lake", "hers", "https://minio.corp:9000", False, True),
    (tenants(), "lake", "hers", "https://minio.corp:9000", True, False),
    (tenants(), "lake", "his", "https://minio.corp:9000", False, False),
    (tenants(), "lake", "hers", "http://minio.corp:9000", False, False),
    (tenants(), "lake", "hers", "https://minio.corp", False, False),
    (OPERATORS, "anything", "", "", True, True),
    (OPERATORS, "log", "prod", "", True, False),
    (OPERATORS, "log", "", "", True, False),
    (OPERATORS, "log", "prod/committed", "", True, False),
    (OPERATORS, "log", "production", "", True, True),
]


def by_table(host: str, port: int, **_: Any) -> list[Any]:
    if host not in NAMES:
        raise socket.gaierror("unknown name")
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in NAMES[host]]


def wrong() -> list[str]:
    """The rows of the table that the rule decides otherwise."""
    found = []
    for asked, target, expected in SERVERS:
        try:
            is_opened = opened(asked, target)
        except OSError:
            is_opened = False
        found += [f"{target}"] if is_opened != expected else []
    for asked, name, prefix, endpoint, machine, expected in BUCKETS:
        if bucket(asked, name, prefix, machine=machine, endpoint=endpoint) != expected:
            found.append(f"{name}/{prefix} {endpoint} {machine}")
    return found


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", by_table)


def test_every_row_of_the_table() -> None:
    assert wrong() == []


def _never_refuses(self: Policy, target: Target) -> None:
    pass


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "every target is allowed": (Policy, "check", _never_refuses),
    "every address is public": (policy, "is_public", lambda address: True),
    "one good address is enough": (policy, "resolve", lambda host, port: addresses.resolve(host, port)[:1]),
    "link-local is as any other": (policy, "is_never", lambda address: False),
    "IPv4 inside IPv6 is IPv6": (addresses, "address_of", lambda host: _plain(host)),
    "the catalog is a server as any other": (Own, "has_server", lambda *args: False),
    "the log's folder is one as any other": (Own, "has_folder", lambda *args: False),
    "the log's prefix is one as any other": (Own, "has_objects", lambda *args: False),
    "a prefix of text is a folder": (rules, "_is_below", lambda path, of: path.startswith(of)),
    "a path may go up": (Target, "has_plain_path", True),
    "a domain is a suffix of text": (Rule, "admits", lambda self, target: _loose(self, target)),
}


def _plain(host: str) -> Any:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


_ADMITS = Rule.admits


def _loose(rule: Rule, target: Target) -> bool:
    return _ADMITS(rule, target) or (rule.host.startswith("*.") and target.host.endswith(rule.host[2:]))


@pytest.mark.parametrize("name", MUTANTS)
def test_the_table_notices_a_mutant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    NAMES["notexample.com"] = NAMES["example.com"] = [PUBLIC]
    owner, attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(owner, attribute, mutant)
    assert wrong(), "nothing tells this mutant from the rule"


@pytest.mark.parametrize(
    "text",
    ["", "tikv", "ftp://x", "tikv://", "tikv://pd:99999", "tikv://u@pd:1", "tikv://10.0.0.1/16", "https://h/../x",
     "file://host/x", "file:///", "s3://", "s3://b?credentials=service", "tikv://pd?credentials=machine",
     "tikv://unix:/run/x", "https://exa mple", "s3://b/\u00e9", "tikv://*.*.com", "tikv://*:", "x" * 501],
)  # fmt: skip
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Rule.parse(text)
    assert refused.value.facts["option"] == "target"


@pytest.mark.parametrize(
    "text", ["unix:/run/x.sock", "dns:///x", "pd:0x50", "[::1", "a b:1", "pd:1:2", "u@pd:1", "[pd]:1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        split_address(text)
    with pytest.raises(TargetRefused):
        CheckedNames(OPERATORS, "tikv", ManualClock()).at(text)


@pytest.mark.parametrize(
    "endpoint", ["https://h/path", "https://u:p@h", "ftp://h", "https://", "h:9000", "https://h?x=1", "https://h%2Fx"]
)
def test_an_endpoint_is_a_server_alone(endpoint: str) -> None:
    with pytest.raises(InvalidInput):
        endpoint_parts(endpoint)


def test_a_name_is_asked_again_and_its_new_addresses_are_checked_before_they_are_used() -> None:
    clock = ManualClock()
    checked = CheckedNames(tenants(), "tikv", clock)
    assert checked.at("pd.example.com:2379") == (f"{PUBLIC}:2379",)
    NAMES["pd.example.com"] = ["127.0.0.1"]
    try:
        assert checked.at("pd.example.com:2379") == (f"{PUBLIC}:2379",), "the address that was checked"
        clock.advance(10)
        with pytest.raises(TargetRefused):
            checked.at("pd.example.com:2379")
        del NAMES["pd.example.com"]
        assert checked.at("pd.example.com:2379") == (f"{PUBLIC}:2379",), "while DNS is away"
    finally:
        NAMES["pd.example.com"] = [PUBLIC]
    with pytest.raises(StoreUnavailable):
        checked.at("unknown.example.com:1")


def test_nothing_is_resolved_for_a_target_that_no_rule_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*args: Any, **more: Any) -> None:
        raise AssertionError("a name was resolved")

    monkeypatch.setattr(socket, "getaddrinfo", asked)
    with pytest.raises(TargetRefused) as refused:
        tenants().addresses(tikv("internal.corp:2379"))
    assert str(refused.value.facts["target"]) == "tikv://internal.corp:2379"


def test_all_refusals_of_an_address_read_alike() -> None:
    every: list[Callable[[], object]] = [
        lambda: tenants().addresses(tikv("evil.example.com:2379")),
        lambda: tenants().addresses(tikv("alias.example.com:3306")),
        lambda: tenants().addresses(tikv("nowhere.corp:1")),
    ]
    messages = set()
    for each in every:
        with pytest.raises(TargetRefused) as refused:
            each()
        messages.add(refused.value.message)
    assert len(messages) == 1


def test_what_is_the_services_own_is_read_from_its_settings(tmp_path: Path) -> None:
    own = Own.of("s3://log/prod/?endpoint=http%3A%2F%2Fminio%3A9000&region=x", "mysql+pymysql://u:p@db.corp/tistream")
    assert (own.bucket, own.prefix, own.endpoint, own.servers) == (
        "log",
        "prod",
        "http://minio:9000",
        (("db.corp", 3306),),
    )
    (tmp_path / "link").symlink_to(tmp_path / "bucket")
    own = Own.of(f"file://{tmp_path}/bucket", f"sqlite:///{tmp_path}/catalog.db")
    assert own.has_folder(f"{tmp_path}/link/x")
    assert own.has_folder(f"{tmp_path}/catalog.db")
    assert not own.has_folder(f"{tmp_path}/lake")
