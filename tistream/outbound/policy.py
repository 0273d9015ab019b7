"""Decides what may be opened for one target of a tenant.

    policy = Policy(terms=Terms.of(...), rules=rules of the tenant, is_operated=False)
    policy.check(target)            refused before anything is resolved or opened
    policy.check_bucket(target)     also: may the machine's own credentials be used there
    policy.check_files(option)      may files of the machine be read
    policy.addresses(target)        the only addresses that may be connected to now

| who names the target | hosts and buckets | machine's credentials | files of the machine |
| --- | --- | --- | --- |
| a tenant's administrator | those of a rule | where the rule says so | folders of a rule; no certificates |
| an operator | all | yes | yes |

Not for operators either: the log's own folder or prefix, the catalog's server, link-local and multicast addresses. To
a tenant's administrator also the whole bucket of the log. A name may resolve to public addresses and to the
deployment's `networks`, for operators to all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import structlog

from tistream.errors import NotAllowed
from tistream.outbound.addresses import is_never, is_public, resolve
from tistream.outbound.rules import Address, Network, Rule, Target, TargetRefused, parse_networks

log = structlog.get_logger(__name__)

_MYSQL_PORT = 3306


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What belongs to the service itself."""

    folders: tuple[str, ...] = ()  #: of the log, resolved; and files of the catalog
    bucket: str = ""
    prefix: str = ""
    endpoint: str = ""  #: empty = AWS
    servers: tuple[tuple[str, int], ...] = ()  #: host and port

    @classmethod
    def of(cls, store_url: str, catalog_url: str) -> Own:
        """Of the service with this object store and catalog."""
        store, catalog = urlsplit(store_url), urlsplit(catalog_url)
        options = dict(pair.partition("=")[::2] for pair in store.query.split("&"))
        folders = [os.path.realpath(unquote(store.path))] if store.scheme == "file" else []
        if catalog.scheme.startswith("sqlite") and catalog.path.strip("/"):
            folders.append(os.path.realpath(unquote(catalog.path[1:])))
        is_s3 = store.scheme == "s3"
        return cls(
            folders=tuple(folders),
            bucket=store.netloc if is_s3 else "",
            prefix=unquote(store.path).strip("/") if is_s3 else "",
            endpoint=unquote(options.get("endpoint", "")).rstrip("/") if is_s3 else "",
            servers=((catalog.hostname, catalog.port or _MYSQL_PORT),) if catalog.hostname else (),
        )

    def has_folder(self, folder: str) -> bool:
        """Whether this folder holds the log or the catalog, or is in it."""
        real = os.path.realpath(folder)
        return any(os.path.commonpath((real, own)) in (real, own) for own in self.folders)

    def has_objects(self, bucket: str, prefix: str, endpoint: str) -> bool:
        """Whether this prefix holds the log, or is in it."""
        if (bucket, endpoint.rstrip("/").lower()) != (self.bucket, self.endpoint.lower()):
            return False
        asked, own = f"{prefix}/".lstrip("/"), f"{self.prefix}/".lstrip("/")
        return asked.startswith(own) or own.startswith(asked)

    def has_server(self, host: str, port: int, addresses: Sequence[Address]) -> bool:
        """Whether this is a server of the service, by name or by address."""
        for own_host, own_port in self.servers:
            if port == own_port and (host == own_host or set(addresses) & set(_known(own_host, own_port))):
                return True
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The deployment's part of every policy."""

    rules: tuple[Rule, ...] = ()  #: for all tenants
    networks: tuple[Network, ...] = ()  #: not public, to which an allowed name may resolve
    own: Own = Own()

    @classmethod
    def of(cls, allow: str, networks: str, *, store_url: str, catalog_url: str) -> Terms:
        """From settings. InvalidInput when a rule or a network is none."""
        return cls(
            rules=tuple(Rule.parse(word) for word in allow.split()),
            networks=parse_networks(networks),
            own=Own.of(store_url, catalog_url),
        )


NO_TERMS = Terms()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """See the module."""

    terms: Terms
    rules: tuple[Rule, ...] = ()  #: of the tenant
    is_operated: bool  #: an operator has named the target

    def check(self, target: Target) -> None:
        """Whether it may be opened, as far as its text says. TargetRefused, NotAllowed for a folder."""
        is_allowed = self.is_operated or bool(self._matching(target))
        if target.scheme == "file":
            if not is_allowed:
                raise NotAllowed("This key may not let the service write there: it needs the right 'operate'.")
            if self.terms.own.has_folder(f"/{target.path}"):
                raise self._refused(target, "it is a folder of the service")
        if not is_allowed:
            raise self._refused(target, "no rule allows it")

    def check_bucket(self, target: Target, *, bucket: str, prefix: str, endpoint: str, machine: bool) -> None:
        """The same for a bucket; `machine`: its credentials are those of the machine. TargetRefused, NotAllowed."""
        self.check(target)
        own = self.terms.own
        if own.has_objects(bucket, prefix, endpoint) or (not self.is_operated and bucket == own.bucket != ""):
            raise self._refused(target, "it is the bucket of the log")
        if machine and not self.is_operated and not any(rule.machine for rule in self._matching(target)):
            raise NotAllowed(
                "Without access-key and secret-access-key the service would use its own credentials: that needs the "
                "right 'operate'.",
                option="access-key",
            )

    def check_files(self, option: str) -> None:
        """Whether a file of the machine may be read for this option. NotAllowed."""
        if not self.is_operated:
            raise NotAllowed(
                f"The option {option} names a file of the service's machine: it needs the right 'operate'.",
                option=option,
            )

    def addresses(self, target: Target) -> tuple[Address, ...]:
        """Where this server may be connected to now: the name is resolved here, and its addresses are all checked.
        TargetRefused; OSError when the name has none."""
        self.check(target)
        addresses = resolve(target.host, target.port)
        for address in addresses:
            is_named = target.address is not None  # a rule names the address itself
            known = is_named or is_public(address) or any(address in network for network in self.terms.networks)
            if is_never(address) or not (self.is_operated or known):
                raise self._refused(target, f"it resolves to {address}")
        if self.terms.own.has_server(target.host, target.port, addresses):
            raise self._refused(target, "it is a server of the service")
        return addresses

    def _matching(self, target: Target) -> list[Rule]:
        return [rule for rule in (*self.terms.rules, *self.rules) if rule.admits(target)]

    def _refused(self, target: Target, why: str) -> TargetRefused:
        """One answer for all reasons; the log has the reason."""
        log.info("target refused", scheme=target.scheme, host=target.host, port=target.port, why=why)
        place = f"{target.host}:{target.port}" if target.port else target.host or f"/{target.path}"
        return TargetRefused(target=f"{target.scheme}://{place}")


#: for a program on its user's own machine: everything but what no one may open
OPERATED = Policy(terms=NO_TERMS, is_operated=True)


def _known(host: str, port: int) -> tuple[Address, ...]:
    try:
        return resolve(host, port)
    except OSError:
        return ()
