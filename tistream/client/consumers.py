"""A member of a consumer: pulls changes by the consumer's name, and acknowledges them; the service keeps the position.

    consumer = connect(url).tenant(1, 1).consumer("warehouse", member="loader-1")
    for batch in consumer.batches(follow=True):
        load(batch.page)     # acknowledged when the loop asks for the next batch

Changes that were not acknowledged come again, to this member or another one. Fenced: another process has taken over;
what is at hand comes again there, so stop.
"""

from __future__ import annotations

from collections.abc import Iterator

from tistream.client.connection import Connection
from tistream.client.core.membership import Batch, Reading, has_finished
from tistream.client.core.requests import TIMEOUT_S, WAIT_S
from tistream.client.shared import ConsumerBase
from tistream.errors import StateForbids


class Consumer(ConsumerBase):
    """One member of a registered consumer. For one thread."""

    _connection: Connection

    def pull(self, *, wait_s: float = 0) -> Batch | None:
        """The next changes; the same ones again unless they were acknowledged. None while other members hold all
        partitions. `wait_s`: seconds to wait while there is nothing."""
        member = self._membership
        path, params = f"{member.path}:pull", member.params(wait_s)
        answer = self._connection.request("POST", path, params=params, timeout_s=wait_s + TIMEOUT_S)
        return member.took(answer.content, answer.headers)

    def acknowledge(self, batch: Batch) -> None:
        """The batch is done. Safe to repeat; Fenced after a hand-over: it comes again elsewhere."""
        self._connection.send("POST", f"{self._membership.path}:acknowledge", {"cursor": batch.page.next_cursor})

    def leave(self) -> None:
        """Give the partitions up at once."""
        if (body := self._membership.leaving()) is not None:
            self._connection.send("POST", f"{self._membership.path}:leave", body)

    def batches(self, *, follow: bool = False, acknowledge: bool = True) -> Iterator[Batch]:
        """Batches up to what is served now, or with `follow` until the consumer has reached its target. A batch is
        acknowledged when the loop asks for the next one; without `acknowledge` that is left to the caller."""
        reading = Reading(follow=follow)
        while True:
            try:
                batch = self.pull(wait_s=WAIT_S if follow else 0)
            except StateForbids as e:
                if has_finished(e):
                    return
                raise
            if reading.ends_with(batch):
                return
            if batch is not None:
                yield batch
                if acknowledge:
                    self.acknowledge(batch)
