"""RawKV of another TiKV cluster as a destination: `tikv://pd1:2379,pd2:2379?concurrency=4`.

    destination = open_tikv(uri, share, source, clock, policy)
    destination.check()              before the changefeed starts
    destination.ranges(wanted, 2)    one part for each lane

- Of the versions of a key in a stretch the newest is written; puts with the time to live that is left by the time of
  the destination's PD at each try, or a delete when nothing is left;
- RawKV has no transactions and cannot fence a writer. A request ends with the time that the lane's lease allows, also
  at the store, as far as it has not begun. One without an answer is waited for until then;
- it connects at its first use, so that a destination that is away is an error of that use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import structlog

from destinations.protocol import (
    Allowed,
    DestinationRefused,
    DestinationUnavailable,
    LeaseOver,
    Plan,
    Share,
    Stretch,
    together,
)
from destinations.tikv.core.writes import TikvPlan, cut_ranges, plan_writes
from destinations.uri import OptionReader, SinkUri
from tistream import ts
from tistream.catalog.rows.kinds import Keyspace
from tistream.clock import Clock
from tistream.codec.raw.keys import KEYSPACE_ID_MAX
from tistream.errors import ErrorKind, InvalidInput, NotFound, TiStreamError, invariant
from tistream.keyrange import KeyRange
from tistream.limits import LANE_LEASE_MS
from tistream.outbound.checked_names import CheckedNames
from tistream.outbound.policy import Policy
from tistream.outbound.rules import Target
from tistream.tikv.channels import Tls, TlsFiles
from tistream.tikv.core.api_versions import Api
from tistream.tikv.core.raw_messages import RawRefused, RawSpace
from tistream.tikv.pd import PdClient
from tistream.tikv.raw_client import RawClient, WriteLimits, learn_api
from tistream.tikv.region_leaders import OutOfTime

log = structlog.get_logger(__name__)

_APIS = {"v1": Api.V1, "v1ttl": Api.V1TTL, "v2": Api.V2}
_PD_PATIENCE_S = 5.0
_CONNECTIONS = 4  #: to a server, of all lanes of a process: one alone carries too little over a long distance


@dataclass(frozen=True, slots=True, kw_only=True)
class TikvSettings:
    """Options of the URI."""

    endpoints: tuple[str, ...]
    limits: WriteLimits
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    keyspace: str = ""  #: name or id; empty = that of the source: its name if it has one, else its id
    api: Api | None = None  #: None = as the stores say

    @staticmethod
    def of(uri: SinkUri, lanes: int) -> TikvSettings:
        """InvalidInput names the option. The rate limit is the changefeed's; each of its lanes has a share."""
        endpoints = tuple(filter(None, uri.authority.split(",")))
        if not endpoints or uri.path.strip("/"):
            raise InvalidInput(
                "A URI of TiKV names the PD servers, such as tikv://pd1:2379,pd2:2379", option="sink-uri"
            )
        read = OptionReader(uri)
        paths = [Path(text) if (text := read.text(name)) else None for name in ("ca-path", "cert-path", "key-path")]
        rate = read.number("rate-limit", 0, least=0, most=1 << 40)
        limits = WriteLimits(
            concurrency=read.number("concurrency", 4, least=1, most=256),
            batch_keys=read.number("batch-size", 1024, least=1, most=10_240),
            rate_bytes_s=max(rate // lanes, 1) if rate else 0,
            backoff_base_s=read.seconds("backoff-base", 0.1, least=0.001, most=60),
            backoff_max_s=read.seconds("backoff-max", 5.0, least=0.001, most=600),
            write_s=read.seconds("write-timeout", 3.0, least=0.1, most=LANE_LEASE_MS / 1000),
        )
        keyspace, api = read.text("keyspace"), read.text("api-version")
        read.finish()
        return TikvSettings(
            endpoints=endpoints,
            limits=limits,
            ca=paths[0],
            certificate=paths[1],
            key=paths[2],
            keyspace=keyspace,
            api=_APIS[read.choice("api-version", tuple(_APIS))] if api else None,
        )

    def admit(self, policy: Policy) -> None:
        """TargetRefused when the PD servers, or files of the machine, may not be used."""
        for option, path in (("ca-path", self.ca), ("cert-path", self.certificate), ("key-path", self.key)):
            if path is not None:
                policy.check_files(option)
        for endpoint in self.endpoints:
            policy.check(Target.server("tikv", endpoint))

    def tls(self) -> Tls | None:
        """InvalidInput when a file cannot be read."""
        if not (self.ca or self.certificate or self.key):
            return None
        try:
            return TlsFiles(ca=self.ca, certificate=self.certificate, key=self.key)
        except OSError as e:
            option = {self.ca: "ca-path", self.certificate: "cert-path", self.key: "key-path"}
            named = option.get(Path(e.filename) if e.filename else None, "ca-path")
            raise InvalidInput(f"The file of the option {named} cannot be read: {e}", option=named) from e


@dataclass(frozen=True, slots=True, kw_only=True)
class TikvCheck:
    """What a destination is."""

    cluster_id: int
    api: Api
    keyspace_id: int | None  #: None: it has no keyspaces
    is_known: bool  #: False: its PD cannot say whether there is this keyspace
    has_expiry: bool  #: whether entries can expire there


class TikvDestination:
    """See the module."""

    def __init__(
        self,
        settings: TikvSettings,
        source: Keyspace,
        clock: Clock,
        connection: int,
        policy: Policy,
        cluster_id: int | None = None,
    ) -> None:
        """`connection`: those of a process with the same number share their connections. `policy`: where it may
        connect; PD's answers are held against it, too. `cluster_id`: that PD must have; None = any."""
        self._cluster_id = cluster_id
        self._settings, self._source, self._clock, self._connection = settings, source, clock, connection
        self._policy, self._names = policy, CheckedNames(policy, "tikv", clock)
        self._connected: tuple[PdClient, RawClient] | None = None

    def look(self) -> TikvCheck:
        """Reach the cluster. InvalidInput when an option does not fit it; DestinationUnavailable when it is away."""
        with self._translated():
            pd, client = self._connect()
            space = client.space
            client.get(b"")
            keyspace_id = space.keyspace_id if space.api is Api.V2 else None
            return TikvCheck(
                cluster_id=pd.cluster_id,
                api=space.api,
                keyspace_id=keyspace_id,
                is_known=keyspace_id is None or pd.keyspace_of_id(keyspace_id) is not None,
                has_expiry=space.has_expiry,
            )

    def check(self) -> Sequence[str]:
        """See the protocol."""
        place = self.look()
        if place.keyspace_id is not None:
            unknown = "" if place.is_known else " Its PD is too old to say whether there is this keyspace."
            return (
                f"Keys are written to the keyspace with id {place.keyspace_id} of cluster {place.cluster_id}.{unknown}",
            )
        notes = [f"Cluster {place.cluster_id} has API {place.api}: keys are written without mode and keyspace."]
        if not place.has_expiry:
            notes.append("Its stores have no expiry: a key that expires stops its key range.")
        return notes

    def ranges(self, range_: KeyRange, count: int) -> Sequence[KeyRange]:
        """See the protocol; keys of users."""
        with self._translated():
            _, client = self._connect()
            return cut_ranges((part.start for part in client.regions(range_)), range_, count)

    def plan(self, stretch: Stretch, record: str) -> TikvPlan:
        """No record is needed: the stretch determines what is written."""
        return plan_writes(stretch.rows)

    def write(self, plan: Plan, allowed: Allowed) -> None:
        """Write all of it, durably."""
        invariant(isinstance(plan, TikvPlan), "a plan of another destination")
        assert isinstance(plan, TikvPlan)
        if not plan.rows:
            return
        if allowed() <= 0:
            raise LeaseOver
        with self._translated():
            pd, client = self._connect()
            try:
                self._put_all(plan, pd, client, allowed)
            finally:
                pd.rest()

    def _put_all(self, plan: TikvPlan, pd: PdClient, client: RawClient, allowed: Allowed) -> None:
        if not client.space.has_expiry and plan.expires.any():
            plan, timed = plan.without_expiry(ts.physical_ms(pd.tso()) // 1000)
            if timed:
                raise together(
                    DestinationRefused(
                        "The destination cannot take an entry that expires",
                        key=key.hex(),
                        cause="its stores have no expiry (storage.enable-ttl is off)",
                    )
                    for key in timed
                )
        keys, values, expires = plan.puts()
        if len(keys):
            client.batch_put(keys, values, expires, allowed=allowed)
        if len(gone := plan.deletes()):
            client.batch_delete(gone, allowed=allowed)

    def pairs(self, range_: KeyRange) -> Iterator[pa.Table]:
        """What is there, page by page in key order: columns key (of users) and value."""
        with self._translated():
            _, client = self._connect()
            for page in client.scan(range_):
                yield pa.table({"key": page.keys, "value": page.values})

    def now_ts(self) -> int:
        """A timestamp of the destination's PD."""
        with self._translated():
            return self._connect()[0].tso()

    def note_checkpoint(self, ts: int, allowed: Allowed) -> None:
        """Nothing is kept there."""

    def close(self) -> None:
        if self._connected is not None:
            pd, client = self._connected
            self._connected = None
            client.close()
            pd.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _connect(self) -> tuple[PdClient, RawClient]:
        if self._connected is not None:
            return self._connected
        settings, clock, tls, connection = self._settings, self._clock, self._settings.tls(), self._connection
        names = self._names
        pd = PdClient(
            settings.endpoints, tls=tls, clock=clock, patience_s=_PD_PATIENCE_S, connection=connection, names=names
        )
        try:
            if self._cluster_id is not None and pd.cluster_id != self._cluster_id:
                raise InvalidInput(
                    "The destination is another cluster than when the changefeed was created.", option="sink-uri"
                )
            api = settings.api or learn_api(pd, clock=clock, tls=tls, limits=settings.limits, names=names)
            space = self._space(pd, api)
            client = RawClient(
                pd, space, clock=clock, tls=tls, limits=settings.limits, connection=connection, names=names
            )
            self._connected = pd, client
        except BaseException:
            pd.close()
            raise
        return self._connected

    def _space(self, pd: PdClient, api: Api) -> RawSpace:
        """Where the keys go: a keyspace of API V2, else the whole cluster."""
        given = self._settings.keyspace
        if api is not Api.V2:
            if given:
                raise InvalidInput(f"The destination has API {api}, which has no keyspaces.", option="keyspace")
            return RawSpace(api)
        wanted = _keyspace(given) if given else self._source
        if wanted.id is not None and wanted.id > KEYSPACE_ID_MAX:
            raise InvalidInput(f"There is no keyspace {wanted.id}: ids end at {KEYSPACE_ID_MAX}.", option="keyspace")
        called = f"with id {wanted.id}" if wanted.name is None else repr(wanted.name)
        try:
            space = pd.keyspace_of_id(wanted.id or 0) if wanted.name is None else pd.keyspace(wanted.name)
        except NotFound as e:
            default = "" if given else ", as the source is called. Name one with the option keyspace"
            raise InvalidInput(f"The destination has no keyspace {called}{default}.", option="keyspace") from e
        if space is None:  # PD has no list of them
            return RawSpace(api, wanted.id or 0)
        if space.state:
            raise InvalidInput(f"The keyspace {called} of the destination is not enabled.", option="keyspace")
        return RawSpace(api, space.id)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Errors of the client as those of a destination."""
        try:
            yield
        except OutOfTime as e:
            raise LeaseOver from e
        except RawRefused as e:
            if not e.refused:
                raise DestinationRefused("The destination refuses what is written", cause=e.message) from e
            raise together(
                DestinationRefused("The destination refuses a change", key=key.hex(), cause=cause)
                for key, cause in e.refused
            ) from e
        except (DestinationRefused, DestinationUnavailable):
            raise
        except TiStreamError as e:
            if e.kind is not ErrorKind.RETRY:
                raise
            log.info("a destination does not answer", cause=str(e))
            # a caller who names an address in a network that is allowed does not learn what is behind it
            facts = {"cause": str(e)} if self._policy.is_operated else {}
            raise DestinationUnavailable("The destination does not answer", **facts) from e


def open_tikv(
    uri: SinkUri, share: Share, source: Keyspace, clock: Clock, policy: Policy, cluster_id: int | None = None
) -> TikvDestination:
    """The destination of one lane. InvalidInput names the option that is wrong, TargetRefused what the policy refuses;
    nothing is connected yet. `cluster_id`: that its PD must have; None = any."""
    settings = TikvSettings.of(uri, share.of)
    settings.admit(policy)
    return TikvDestination(settings, source, clock, share.number % _CONNECTIONS, policy, cluster_id)


def _keyspace(text: str) -> Keyspace:
    """A keyspace by its id or by its name."""
    return Keyspace(id=int(text)) if text.isascii() and text.isdecimal() else Keyspace(name=text)
