"""Mutants of what a changefeed may write where: places and their owners, files that are only created, ends."""

from __future__ import annotations

from simulator.dst.mutants import broken

_CLAIM = "tistream.catalog.tenancy.destinations:claim"
_CREATE = "destinations.storage.destination:StorageDestination._create_all"

broken(
    "place-taken-at-once (letters): who claims a place does not wait for the one who had it",
    (_CLAIM, "is_free=not overlapping", "is_free=True"),
)
broken(
    "place-forgets-attempts (letters): who claims a place does not know what was attempted there",
    (_CLAIM, "max((row.attempted_ts for row in overlapping if tenant_of(row) == tenant), default=0)", "0"),
)
broken(
    "data-file-replaced (sink): a data file is put, in place of one that is there",
    (_CREATE, "if not await self._files.create(*item):", "if await self._files.put(*item):"),
)
broken(
    "other-file-counts (sink): a file of the name counts as written, whatever it has",
    (_CREATE, "self._taken.add(key)", "pass"),
)
broken(
    "update-keeps-stretch (sink): another place or other filters leave lanes and unfinished stretches as they are",
    (
        "tistream.catalog.work.changefeeds:update_changefeed",
        "if not is_over and (location_in(options), filters) !=",
        "if False and (location_in(options), filters) !=",
    ),
)
broken(
    "ended-before-told (sink): a changefeed ends before its destination knows of the target",
    ("replicator.lane_run:LaneRun._complete", "self._note(of_all)", "pass"),
)
broken(
    "end-not-looked-for (sink): a changefeed that stands at its target stays as it is",
    ("replicator.lane_run:LaneRun._turn", "if self.core.is_finished:", "if False:"),
)
broken(
    "repeat-not-named (sink): no event says what a changefeed that was cut anew may write again",
    ("tistream.catalog.work.lanes:repeats", "if upto > above else {}", "if False else {}"),
)
