"""The rules of a changefeed that the service writes to object storage, checked at each object and each COMMIT.

write-once     a data file never gets other bytes
complete       when the checkpoint of a changefeed moves, each change that it passes, and that passes the filters, is in
               a data file of the folder that the changefeed has then, unless an operator left it out
true           each row of a data file is a change of the upstream, once in the file
schemas        the schema file of a table version is there before its data
metadata       is never above a checkpoint that a changefeed with this folder has had; that of a finished changefeed has
               its target
fenced         a checkpoint moves only under the settings that it was written with: an update begins new ownerships
at rest        in each folder of a table the changes come in commit order, each once. What is there again, or after
               later ones, is in an interval that an event of the changefeed names
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from simulator.dst.sink import Put, Sink
from simulator.profiles import FIRST_TABLE_ID
from simulator.transactions import CommittedRow
from tistream.catalog.work.core.lane_scope import TableScope, parse_scope
from tistream.codec.table_key import RecordKey, parse_key
from tistream.model.change import Op

_DATA = re.compile(r"(\w+)/(\w+)/(\d+)/(?:.*/)?CDC(\d+)\.json")
_FEEDS = "SELECT changefeed_id, checkpoint_ts, state, target_ts, sink_uri, filters FROM changefeeds WHERE tenant_id = 1"
_LANES = "SELECT lane_id, scope, checkpoint_ts, attempted_ts, epoch FROM lanes WHERE tenant_id = 1 ORDER BY lane_id"
_EVENTS = "SELECT detail FROM events WHERE kind LIKE 'changefeed.%' OR kind LIKE 'lane.%'"

Change = tuple[int, str, int, str]
"""(commit_ts, table, handle, what happened to the row)"""


class _Feed(NamedTuple):
    name: str
    checkpoint_ts: int
    state: str
    target_ts: int
    sink_uri: str
    filters: str

    @property
    def folder(self) -> str:
        return folder_of(self.sink_uri)

    @property
    def settings(self) -> tuple[str, str, str]:
        """What must not change while a checkpoint moves."""
        return self.name, self.sink_uri, self.filters

    def has(self, table: str) -> bool:
        wanted = json.loads(self.filters).get("tables", "")
        return not wanted or f"Shop.{table}" in wanted.split(",")


class SinkRules:
    """The rules of one run. `committed`: the rows of the upstream, growing; `shows`: those that readers are shown."""

    def __init__(
        self,
        committed: Sequence[CommittedRow],
        shows: Callable[[CommittedRow], bool],
        sink: Sink,
        violated: Callable[[str], None],
    ) -> None:
        self._committed, self._shows, self._sink, self._violated = committed, shows, sink, violated
        self.left_out: set[tuple[int, str, int]] = set()  #: (commit_ts, table, handle): by an operator or as letters
        self.rewinds: set[int] = set()  #: where operators told it to continue
        self.owners: set[tuple[int, int]] = set()
        self.finished = 0  #: changefeeds that came to their end
        self._there: dict[str, Counter[Change]] = {}
        self._noted: dict[str, int] = {}
        self._allowed: dict[str, int] = {}  # by folder: the largest checkpoint of its changefeeds
        self._feed: _Feed | None = None
        self._lanes: dict[int, tuple[TableScope, int, int, int]] = {}
        sink.on_put = self.arrived

    # -- what happens

    def arrived(self, put: Put, before: bytes | None) -> None:
        """An object is there."""
        folder, key, data = put
        if key == "metadata":
            ts = json.loads(data)["checkpoint-ts"]
            self._noted[folder] = max(ts, self._noted.get(folder, 0))
            if ts > self._allowed.get(folder, 0):
                self._violated(f"metadata: {folder} has {ts}, its checkpoint was at most {self._allowed.get(folder)}")
        match = _DATA.fullmatch(key)
        if match is None:
            return
        if before is not None and before != data:
            self._violated(f"write-once: {folder}/{key} had {changes_in(before)}, and has {changes_in(data)}")
        if not any(k.startswith(f"{match[1]}/{match[2]}/meta/schema_{match[3]}_") for k in self._sink.folders[folder]):
            self._violated(f"schemas: {folder}/{key} is there before its schema file")
        changes = changes_in(data)
        if len(set(changes)) < len(changes):
            self._violated(f"true: {folder}/{key} has {changes}")
        self._there.setdefault(folder, Counter()).update(changes)

    def look(self, query: Callable[..., Any]) -> None:
        """Check after a COMMIT."""
        feeds = query(_FEEDS)
        was, now = self._feed, _Feed(*feeds[0]) if feeds else None
        lanes = {row[0]: (_tables(row[1]), *row[2:]) for row in query(_LANES)}
        self.owners.update((lane_id, lane[3]) for lane_id, lane in lanes.items())
        if (now, lanes) == (was, self._lanes):
            return
        before, self._feed, self._lanes = self._lanes, now, lanes
        if now is None:
            return
        self._allowed[now.folder] = max(now.checkpoint_ts, self._allowed.get(now.folder, 0))
        if was is None or was.name != now.name:
            return
        if was.settings != now.settings:
            for lane_id, lane in lanes.items():
                if lane_id in before and lane[3] == before[lane_id][3] and lane[2] > lane[1]:
                    self._violated(f"fenced: lane {lane_id} of {now} keeps its epoch and an unfinished stretch")
            return
        if now.checkpoint_ts > was.checkpoint_ts:
            self._check_complete(now, was.checkpoint_ts)
        if now.state == "finished" != was.state:
            self.finished += 1
            if self._noted.get(now.folder, 0) < now.target_ts:
                self._violated(f"metadata: {now} is finished, its folder says {self._noted.get(now.folder)}")

    @property
    def checkpoint_ts(self) -> int:
        """Of the changefeed; 0 without one."""
        return 0 if self._feed is None else self._feed.checkpoint_ts

    @property
    def is_settled(self) -> bool:
        """Whether it runs, and has no end."""
        return self._feed is not None and self._feed.state == "normal" and not self._feed.target_ts

    @property
    def is_idle(self) -> bool:
        """Whether it was paused, or has come to an end."""
        return self._feed is not None and self._feed.state in ("stopped", "failed", "finished")

    def lowest(self) -> int:
        """The checkpoint of the last lane; 0 before there is one."""
        return min((lane[1] for lane in self._lanes.values()), default=0)

    def at_rest(self, query: Callable[..., Any]) -> None:
        """Everything was written."""
        named = [
            (int(detail["repeats_above"]), int(detail["repeats_upto"]))
            for (text,) in query(_EVENTS)
            if "repeats_upto" in (detail := json.loads(text))
        ]
        known = set(self._changes(0, self._committed[-1].commit_ts if self._committed else 0))
        for folder, objects in self._sink.folders.items():
            for changes in _by_table(objects).values():
                seen, last = set[Change](), 0
                for change in changes:
                    if change not in known:
                        self._violated(f"true: {folder} has {change}, which was never committed")
                    repeats = change in seen or change[0] < last
                    if repeats and not any(above < change[0] <= upto for above, upto in named):
                        self._violated(f"at rest: {folder} has {change} again or late; named are {named}")
                    seen.add(change)
                    last = max(last, change[0])

    # -- inside

    def _check_complete(self, feed: _Feed, after: int) -> None:
        there = self._there.get(feed.folder, Counter())
        for change in self._changes(after, feed.checkpoint_ts):
            if feed.has(change[1]) and not there[change] and change[:3] not in self.left_out:
                self._violated(f"complete: {change} is in no file; {feed} was at {after}")

    def _changes(self, after: int, upto: int) -> list[Change]:
        """The changes in (after, upto]. The truth is not sorted while transactions are open."""
        return [
            (row.commit_ts, *place, type_of(row))
            for row in self._committed
            if after < row.commit_ts <= upto and self._shows(row) and (place := place_of(row.key)) is not None
        ]


def folder_of(sink_uri: str) -> str:
    """The folder of a sink URI."""
    return sink_uri.removeprefix("file://").partition("?")[0]


def place_of(key: bytes) -> tuple[str, int] | None:
    """(table, handle) of a key of a row; None for a key of the schema."""
    parsed = parse_key(key)
    if not isinstance(parsed, RecordKey) or parsed.table_id < FIRST_TABLE_ID:
        return None
    return f"Table{(parsed.table_id - FIRST_TABLE_ID) // 10 + 1}", int(parsed.handle)


def type_of(row: CommittedRow) -> str:
    """What happened to the row, as the files say it."""
    return "DELETE" if row.op == Op.DELETE else "INSERT" if row.old_value is None else "UPDATE"


def changes_in(data: bytes) -> list[Change]:
    """The changes of a data file."""
    return [
        (message["_tidb"]["commitTs"], message["table"], int(message["data"][0]["id"]), message["type"])
        for message in map(json.loads, data.split(b"\r\n")[:-1])
    ]


def _by_table(objects: Mapping[str, bytes]) -> dict[str, list[Change]]:
    """The changes of each folder of a table, in the order in which they are read."""
    rows: dict[str, list[tuple[str, int, bytes]]] = {}
    for key, data in objects.items():
        if (named := _DATA.fullmatch(key)) is not None:
            rows.setdefault(key.rpartition("/")[0], []).append((key, int(named[4]), data))
    return {
        folder: [change for _, _, data in sorted(files, key=lambda file: file[1]) for change in changes_in(data)]
        for folder, files in rows.items()
    }


def _tables(text: str) -> TableScope:
    scope = parse_scope(text)
    assert isinstance(scope, TableScope)
    return scope
