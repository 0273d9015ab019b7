"""Targets that callers name, and the rules by which operators allow them. Pure.

    s3://BUCKET/PREFIX                AWS; `s3://*` is every bucket
    s3://BUCKET/PREFIX?credentials=machine   and the machine's own role may be used
    https://HOST:PORT/BUCKET/PREFIX   another S3 server; http:// likewise
    tikv://HOST:PORT                  PD members and stores
    file:///FOLDER                    a folder of the machine

HOST is a name, `*.DOMAIN`, `*`, an address or a network such as 10.2.0.0/16. Without a port a rule of tikv holds for
all of them, and one of http and https for the usual one. A path holds for everything below it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from tistream.errors import InvalidInput, NotAllowed, did_you_mean

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

SCHEMES = ("s3", "https", "http", "tikv", "file")
RULE_CHARS_MAX = 500
_USUAL_PORT: Mapping[str, int] = {"https": 443, "http": 80}
_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,62})?(\.[a-z0-9_]([a-z0-9_-]{0,62})?)*")
BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{0,254}", re.IGNORECASE)
_PLACE = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>\d{1,5}))?")
_BITS = re.compile(r"/(\d{1,3})(?=/|$)")
_MACHINE = "credentials=machine"
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class TargetRefused(NotAllowed):
    """The service may not open this target for this tenant."""

    code = "TS-1085"
    hint = "An operator allows targets: tistream tenant allow. docs/auth.md says what they may be."


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is to be opened."""

    scheme: str  #: one of SCHEMES
    host: str = ""  #: name or address, in lower case; the bucket of s3; empty for file
    port: int = 0  #: 0 for s3 and file
    path: str = ""  #: without outer slashes: below the host, in the bucket, or the folder

    @classmethod
    def server(cls, scheme: str, address: str, path: str = "") -> Target:
        """One of a server at HOST or HOST:PORT. InvalidInput when it is neither, or a port is missing."""
        host, port = split_address(address)
        port = port or _USUAL_PORT.get(scheme, 0)
        if not port:
            raise InvalidInput("An address is HOST:PORT.")
        return cls(scheme=scheme, host=host, port=port, path=path.strip("/"))

    @property
    def address(self) -> Address | None:
        """The host, if it is an address."""
        return address_of(self.host)

    @property
    def has_plain_path(self) -> bool:
        """Whether no part of the path could mean another folder."""
        return not self.path or all(part not in ("", ".", "..") and "\\" not in part for part in self.path.split("/"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Targets that an operator allows."""

    text: str
    scheme: str
    host: str = ""  #: name, `*.DOMAIN` or `*`; empty for a network, and for file
    network: Network | None = None
    port: int = 0  #: 0 = all
    path: str = ""
    machine: bool = False  #: the machine's own credentials may be used there

    @classmethod
    def parse(cls, text: str) -> Rule:
        """InvalidInput when it is none."""
        plain, _, query = text.strip().partition("?")
        scheme, mark, rest = plain.partition("://")
        scheme = scheme.lower()
        if not mark or scheme not in SCHEMES or len(text) > RULE_CHARS_MAX or not plain.isascii():
            raise _no_rule(text, did_you_mean(scheme, SCHEMES))
        if query and (query != _MACHINE or scheme != "s3"):
            raise _no_rule(text, f" `?{_MACHINE}` is all that may follow, and only in a rule of s3.")
        if scheme == "file":
            if not rest.startswith("/") or not rest.strip("/"):
                raise _no_rule(text, " A folder is file:///absolute/folder.")
            made = cls(text=text, scheme=scheme, path=rest.strip("/"))
        elif scheme == "s3":
            bucket, _, path = rest.partition("/")
            if bucket != "*" and not BUCKET.fullmatch(bucket):
                raise _no_rule(text, " A bucket is s3://BUCKET/PREFIX.")
            made = cls(text=text, scheme=scheme, host=bucket, path=path.strip("/"), machine=bool(query))
        else:
            made = cls._of_server(text, scheme, rest)
        if not Target(scheme=scheme, path=made.path).has_plain_path:
            raise _no_rule(text, " Its path is plain.")
        return made

    @classmethod
    def _of_server(cls, text: str, scheme: str, rest: str) -> Rule:
        place, slash, path = rest.partition("/")
        name, mark, port_text = place.partition(":") if place.startswith("*") else ("", "", "")
        if name:  # `*` and `*.DOMAIN`
            host, port = name.lower(), int(port_text) if port_text.isdecimal() and mark else 0
            if bool(mark) != bool(port) or (host != "*" and not _NAME.fullmatch(host.removeprefix("*."))):
                raise _no_rule(text, " A host is a name, *.DOMAIN, an address or a network.")
        else:
            try:
                host, port = split_address(place)
            except InvalidInput as error:
                raise _no_rule(text, f" {error.message}") from error
        address = address_of(host)
        network: Network | None = None
        if address is not None:
            bits = _BITS.match(slash + path)
            size = int(bits[1]) if bits else address.max_prefixlen
            try:
                network = ipaddress.ip_network(f"{address}/{size}")
            except ValueError as error:
                raise _no_rule(text, f" {error}.") from error
            path = (slash + path)[bits.end() :] if bits else path
        return cls(
            text=text, scheme=scheme, host="" if network else host, network=network,
            port=port or _USUAL_PORT.get(scheme, 0), path=path.strip("/"),
        )  # fmt: skip

    def admits(self, target: Target) -> bool:
        """Whether the target is one of the rule's, as far as its text says; names are resolved later."""
        if target.scheme != self.scheme or not target.has_plain_path or not _is_below(target.path, self.path):
            return False
        if self.port and self.port != target.port:
            return False
        if self.network is not None:
            return target.address is not None and target.address in self.network
        if self.host.startswith("*."):
            return target.address is None and target.host.endswith(self.host[1:])
        if self.host == "*":
            return target.address is None
        return self.host == target.host


def split_address(text: str) -> tuple[str, int]:
    """(host in lower case, port or 0) of HOST, HOST:PORT or [IPV6]:PORT. InvalidInput for anything else: an address
    with a user, a socket file or a resolver's name is none."""
    match = _PLACE.fullmatch(text)
    host = "" if match is None else (match["v6"] or match["name"]).lower().removesuffix(".")
    port = int(match["port"] or 0) if match is not None else 0
    is_address = address_of(host) is not None
    if match is None or port > 65535 or not (is_address if match["v6"] else is_address or _NAME.fullmatch(host)):
        raise InvalidInput("An address is HOST:PORT, with a name or an address as host.")
    return host, port


def address_of(host: str) -> Address | None:
    """The address that this text is; None for a name. An IPv4 address inside IPv6 is the IPv4 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return inner or address
    return address


def parse_networks(text: str) -> tuple[Network, ...]:
    """Networks, separated by spaces, commas or lines. InvalidInput when one is none."""
    try:
        return tuple(ipaddress.ip_network(word) for word in re.split(r"[\s,]+", text.strip()) if word)
    except ValueError as error:
        raise InvalidInput(f"not a network: {error}") from error


def endpoint_parts(endpoint: str) -> tuple[str, str]:
    """(scheme, HOST or HOST:PORT) of an S3 server's address. InvalidInput for more than these: a path, a user, a
    query."""
    try:
        parts = urlsplit(endpoint)
    except ValueError as error:
        raise InvalidInput("An endpoint is https://HOST:PORT or http://HOST:PORT.", option="endpoint") from error
    more = (
        parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc or unquote(endpoint) != endpoint
    )
    if parts.scheme not in _USUAL_PORT or not parts.netloc or more:
        raise InvalidInput("An endpoint is https://HOST:PORT or http://HOST:PORT.", option="endpoint")
    return parts.scheme, parts.netloc


def _is_below(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(f"{folder}/")


def _no_rule(text: str, more: str) -> InvalidInput:
    shown = text if len(text) <= 80 else f"{text[:80]}..."
    return InvalidInput(f"{shown!r} is not a target that can be allowed.{more}", option="target")
