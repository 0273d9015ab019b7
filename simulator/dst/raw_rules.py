"""The rules of a RawKV tenant's log, checked at every read of it and once it has settled.

every read      its rows are writes that were applied, with their operation, value and expiry, ordered, once each; what
                an earlier read gave of the same interval it gives again
every gap       a write that the log lacks is in the interval (`start_ts`, `commit_ts`) of a marked row of its key:
                there the log does not claim to be complete. The marked row may be written later than others that are
                served, so this is checked at rest
at rest         the newest row of each key is the newest write, and a marked interval ends at a row of a scan: its
                `start_ts` is where a subscription of the key was opened
upstream        no store writes a version below the newest one of its key

The truth is the workload's; other keyspaces of the same regions are no business of this tenant's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from simulator.raw_workload import RawRow
from tistream.keyrange import KeyRange
from tistream.model.change import FLAG_OLD_VALUE_UNKNOWN, FLAG_SCANNED

_Place = tuple[int, bytes]  # commit_ts, key


class RawRules:
    """`truth`: key -> its writes in the order of application, growing. `range`: the tenant's."""

    def __init__(
        self, truth: Mapping[bytes, Sequence[RawRow]], range_: KeyRange, violated: Callable[[str], None]
    ) -> None:
        self.truth, self.range, self._violated = truth, range_, violated
        self._opened: list[tuple[KeyRange, int]] = []
        self._log: dict[_Place, dict[str, Any]] = {}
        self._known_upto = 0  # all of the log up to here is in `_log`
        self.missing = 0  #: writes that the log lacks

    def opened(self, range_: KeyRange, checkpoint_ts: int) -> None:
        """A subscription was opened."""
        self._opened.append((range_, checkpoint_ts))

    def read(self, who: str, rows: pa.Table, after: int, upto: int) -> None:
        """A reader was given (after, upto] of the log."""
        rows_read = rows.to_pylist()
        places = [(row["commit_ts"], row["key"]) for row in rows_read]
        order = [(row["commit_ts"], row["start_ts"], row["key"]) for row in rows_read]
        if order != sorted(order) or len(set(places)) < len(places):
            self._violated(f"raw order: {who} in ({after}, {upto}] got {[_show(row) for row in rows_read]}")
        for row in rows_read:
            if wrong := self._wrong(row):
                self._violated(f"raw row: {who} got {_show(row)}: {wrong}")
        if after > self._known_upto:
            return
        known = {place for place in self._log if after < place[0] <= upto}
        again = {place for place in places if place[0] <= self._known_upto}
        if known and known - set(places):
            self._violated(f"raw read: {who} in ({after}, {upto}] lacks {sorted(known - set(places))[:3]}")
        if again - known:
            self._violated(f"raw read: {who} in ({after}, {upto}] has {sorted(again - known)[:3]}, not there before")
        self._log |= dict(zip(places, rows_read, strict=True))
        self._known_upto = max(self._known_upto, upto)

    def at_rest(self) -> None:
        """Everything was read."""
        by_key: dict[bytes, list[dict[str, Any]]] = {}
        for _, row in sorted(self._log.items()):
            by_key.setdefault(row["key"], []).append(row)
        for key, truth in self.truth.items():
            if key not in self.range:
                continue
            rows = by_key.get(key, [])
            there = {row["commit_ts"] for row in rows}
            marked = [(row["start_ts"], row["commit_ts"]) for row in rows if row["flags"] & FLAG_SCANNED]
            if truth[-1].commit_ts not in there:
                self._violated(f"raw state: the newest write of {key!r} at {truth[-1].commit_ts} is not in the log")
            missing = [row.commit_ts for row in truth if row.commit_ts not in there]
            self.missing += len(missing)
            for ts in missing:
                if not any(start < ts < end for start, end in marked):
                    self._violated(f"raw gap: {key!r} at {ts} is not in the log, and in no interval of {marked}")

    def _wrong(self, row: dict[str, Any]) -> str:
        """What is wrong with a row of the log; empty when nothing is."""
        written = next((r for r in self.truth.get(row["key"], ()) if r.commit_ts == row["commit_ts"]), None)
        if row["key"] not in self.range or written is None:
            return "it was never written"
        if (row["op"], row["value"], row["expire_ts"]) != (written.op, written.value, written.expire_ts):
            return f"it was written as {written}"
        if row["old_value"] is not None or not row["flags"] & FLAG_OLD_VALUE_UNKNOWN or row["table_id"]:
            return "it has an old value or a table"
        if not row["flags"] & FLAG_SCANNED:
            return "" if row["start_ts"] == row["commit_ts"] else "it is not marked, and has two timestamps"
        if not any(start_ts == row["start_ts"] and row["key"] in range_ for range_, start_ts in self._opened):
            return "no subscription of its key was opened at its start_ts"
        return ""


def _show(row: Mapping[str, Any]) -> str:
    return f"{row['key']!r} {row['start_ts']}..{row['commit_ts']} = {row['value']!r} until {row['expire_ts']}"
