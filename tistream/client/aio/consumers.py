"""A member of a consumer, with `await`. As `tistream.client.consumers`.

async for batch in client.tenant(1, 1).consumer("warehouse").batches(follow=True):
    await load(batch.page)     # acknowledged when the loop asks for the next batch
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from tistream.client.aio.connection import AsyncConnection
from tistream.client.core.membership import Batch, Reading, has_finished
from tistream.client.core.requests import TIMEOUT_S, WAIT_S
from tistream.client.shared import ConsumerBase
from tistream.errors import StateForbids


class AsyncConsumer(ConsumerBase):
    """As `Consumer`. For one task."""

    _connection: AsyncConnection

    async def pull(self, *, wait_s: float = 0) -> Batch | None:
        """As `Consumer.pull`."""
        member = self._membership
        path, params = f"{member.path}:pull", member.params(wait_s)
        answer = await self._connection.request("POST", path, params=params, timeout_s=wait_s + TIMEOUT_S)
        return member.took(answer.content, answer.headers)

    async def acknowledge(self, batch: Batch) -> None:
        """As `Consumer.acknowledge`."""
        await self._connection.send("POST", f"{self._membership.path}:acknowledge", {"cursor": batch.page.next_cursor})

    async def leave(self) -> None:
        """Give the partitions up at once."""
        if (body := self._membership.leaving()) is not None:
            await self._connection.send("POST", f"{self._membership.path}:leave", body)

    async def batches(self, *, follow: bool = False, acknowledge: bool = True) -> AsyncIterator[Batch]:
        """As `Consumer.batches`."""
        reading = Reading(follow=follow)
        while True:
            try:
                batch = await self.pull(wait_s=WAIT_S if follow else 0)
            except StateForbids as e:
                if has_finished(e):
                    return
                raise
            if reading.ends_with(batch):
                return
            if batch is not None:
                yield batch
                if acknowledge:
                    await self.acknowledge(batch)
