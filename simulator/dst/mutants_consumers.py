"""Mutants of consumers: the fencing of their members, where a partition continues, and what an acknowledgement moves.

`tests/properties/test_consumer_group.py` notices them too, all but the one of the page's end, which
`tests/unit/reading/test_position.py` notices.
"""

from __future__ import annotations

from simulator.dst.mutants import broken
from tistream.catalog.tenancy.core.consumer_group import ConsumerGroup

_GROUP = "tistream.catalog.tenancy.core.consumer_group:ConsumerGroup"
_TAKE = "member=member, epoch=self._next()))"
_PLACES = "(p.checkpoint_ts for p in self.partitions.values())"

broken(
    "acknowledged-by-any-epoch (consumers): a member whose partition was handed over may acknowledge",
    (f"{_GROUP}._acknowledged", "if event.epoch != partition.epoch:", "if False:"),
)
broken(
    "hand-over-keeps-epoch (consumers): a partition changes hands under the epoch that it has",
    (f"{_GROUP}._share", _TAKE, "member=member))"),
)
broken(
    "second-start-not-fenced (consumers): a member that is started again leaves its epochs to the one before",
    (f"{_GROUP}._pulled", "    if started:\n", "    if False:\n"),
)
broken(
    "handed-over-ahead (consumers): a partition continues where the furthest one is",
    (f"{_GROUP}._share", _TAKE, f"member=member, epoch=self._next(), checkpoint_ts=max{_PLACES}))"),
)
broken(
    "handed-over-behind (consumers): a partition continues where the last one is",
    (f"{_GROUP}._share", _TAKE, f"member=member, epoch=self._next(), checkpoint_ts=min{_PLACES}))"),
)
broken(
    "acknowledged-beyond-page (consumers): an acknowledgement is for all that was served, not for its page",
    ("reading.pages.member_page:member_cursor", "ts=answer.end,", "ts=answer.resolved_ts,"),
)
broken(
    "acknowledged-backwards (consumers): an acknowledgement that comes late moves the checkpoint back",
    (f"{_GROUP}._acknowledged", "if (event.ts, event.commit_position) > partition.reached:", "if True:"),
)
broken(
    "member-lease-never-ends (consumers): a member whose lease has ended keeps its partitions",
    (f"{_GROUP}._expired", lambda self, member, now_ms: False),
)
broken(
    "member-lease-ignored (consumers): the partitions of a member are taken although its lease runs",
    (f"{_GROUP}._expired", lambda self, member, now_ms: member.expires_ms - 200 <= now_ms),
)


def _furthest(group: ConsumerGroup) -> int:
    return max(p.checkpoint_ts for p in group.partitions.values())


broken(
    "checkpoint-of-the-furthest (consumers): a consumer's checkpoint is that of its furthest partition",
    (f"{_GROUP}.checkpoint_ts", property(_furthest)),
)
