"""What the changefeeds and consumers of a restored catalog repeat: they continue where they were at the export.

No destination keeps the checkpoint of a changefeed, and none keeps its owner: the catalog alone has both. So what was
written or acknowledged after the export is written or delivered once more. What a reader with a cursor of its own has
is in that cursor, and nothing is repeated to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_event
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.consumers import CONSUMERS
from tistream.catalog.tenancy.destinations import repeats
from tistream.catalog.tenancy.log_readers import LogReader, ReaderState
from tistream.catalog.tenancy.tenants import GIVEN_UP, every_tenant
from tistream.catalog.work.lanes import list_lanes

_REPEATED = {
    "changes": "Its members get again what they acknowledged since then",
    "files": "Changes that it wrote since then may be there a second time, in files with further numbers: data files "
    "that are there stay, and the checkpoint in metadata goes back until it has written them",
    "keys": "Keys that it wrote since then it writes again, in the order of their commits: until it has caught up, a "
    "key may show an older version than before",
}
_WAITS = {ReaderState.STOPPED: "It is paused. ", ReaderState.FAILED: "It is failed. "}


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """A changefeed or consumer of a restored catalog."""

    noun: str  #: changefeed or consumer
    repeats: str  #: what it repeats: changes, files or keys; empty for a finished one
    row: LogReader
    unfinished_ts: int = 0  #: of files: up to here a stretch was begun, whose files keep their names; 0 = none was

    @property
    def facts(self) -> dict[str, Any]:
        """For programs."""
        at = self.row.checkpoint_ts
        return {
            "tenant": str(self.row.tenant),
            "kind": self.noun,
            "name": self.row.name,
            "state": str(self.row.state),
            "continues_ts": str(at),
            "continues_time": tso.to_text(at) if at else None,
            "repeats": self.repeats or "nothing",
            "keeps_names_upto_ts": str(self.unfinished_ts) if self.unfinished_ts else None,
        }

    @property
    def sentence(self) -> str:
        """For people."""
        who = f"{self.noun} {self.row.name} of tenant {self.row.tenant}"
        if not self.repeats:
            return f"{who} is finished: nothing is repeated."
        at = self.row.checkpoint_ts
        begins = f"continues above {tso.described(at)}" if at else "begins where the log begins"
        kept = f" A stretch up to {tso.described(self.unfinished_ts)} keeps its names." if self.unfinished_ts else ""
        return f"{who} {begins}. {_WAITS.get(self.row.state, '')}{_REPEATED[self.repeats]}.{kept}"


def continued(catalog: Catalog) -> Iterator[Continued]:
    """All changefeeds and consumers, by tenant and name."""
    for tenant in (row.tenant for row in every_tenant(catalog) if row.state not in GIVEN_UP):
        feeds = CHANGEFEEDS.of_tenant(catalog, tenant)
        begun: dict[str, int] = {}
        for lane in list_lanes(catalog, tenant) if feeds else ():
            if lane.record:
                begun[lane.changefeed_id] = max(begun.get(lane.changefeed_id, 0), lane.record_ts)
        for feed in feeds:
            is_files = not feed.sink_uri.lower().startswith("tikv://")
            what = _unless_finished(feed, "files" if is_files else "keys")
            unfinished_ts = begun.get(feed.name, 0) if what == "files" else 0
            yield Continued(noun="changefeed", repeats=what, row=feed, unfinished_ts=unfinished_ts)
        for consumer in CONSUMERS.of_tenant(catalog, tenant):
            yield Continued(noun="consumer", repeats=_unless_finished(consumer, "changes"), row=consumer)


def record_repeats(catalog: Catalog, readers: Iterable[Continued], upto_ts: int) -> None:
    """An event for each changefeed that may write changes up to `upto_ts` a second time: `tistream changefeed verify`
    takes repeats that no event names for faults."""
    with catalog.transaction() as conn:
        for row in (reader.row for reader in readers if reader.noun == "changefeed" and reader.repeats):
            if between := repeats(row.checkpoint_ts, upto_ts):
                record_event(conn, EventKind.CHANGEFEED_REPEATS, row.name, tenant=row.tenant, **between)


def _unless_finished(row: LogReader, what: str) -> str:
    return "" if row.state is ReaderState.FINISHED else what
