"""A member of a consumer: pulls changes by the consumer's name, and acknowledges them; the service keeps the position.

    consumer = Consumer(client, 1, 1, "warehouse", member="loader-1")
    for batch in consumer.batches(follow=True):
        load(batch.content)     # acknowledged when the loop asks for the next batch

Changes that were not acknowledged come again, to this member or another one. Fenced: another process has taken over;
what is at hand comes again there, so stop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tistream.client.api import Client
from tistream.client.core.requests import TIMEOUT_S, WAIT_S, Page, given, page_of, scope_path
from tistream.errors import StateForbids


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Changes of one partition."""

    page: Page  #: its `next_cursor` is what is acknowledged
    partition: int
    epoch: int
    checkpoint_ts: int  #: they follow it

    @property
    def content(self) -> bytes:
        """The changes in the format that was asked for."""
        return self.page.content


class Consumer:
    """One member of a registered consumer. For one thread."""

    def __init__(
        self,
        client: Client,
        cluster_id: int,
        tenant_id: int,
        name: str,
        *,
        member: str = "default",
        lease_s: float = 30,
        format: str = "ndjson",
        limit: int | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """`lease_s`: seconds without a pull after which other members take over. Make it longer than a batch takes to
        process."""
        self._client = client
        self._path = f"{scope_path(cluster_id, tenant_id, None, None)}/changefeeds/{quote(name, safe='')}"
        self._params = {**(options or {}), **given({"member": member, "format": format, "limit": limit})}
        self._params["lease_s"] = str(lease_s)
        self._member = member
        self._session: str | None = None

    def pull(self, *, wait_s: float = 0) -> Batch | None:
        """The next changes; the same ones again unless they were acknowledged. None while other members hold all
        partitions. `wait_s`: seconds to wait while there is nothing."""
        params = self._params | given({"session": self._session})
        if wait_s:
            params["wait_s"] = str(wait_s)
        response = self._client._request("GET", f"{self._path}/changes", params=params, timeout=wait_s + TIMEOUT_S)
        self._session = response.headers["TiStream-Session"]
        if "TiStream-Next-Cursor" not in response.headers:
            return None
        return Batch(
            page=page_of(response.content, response.headers),
            partition=int(response.headers["TiStream-Partition"]),
            epoch=int(response.headers["TiStream-Epoch"]),
            checkpoint_ts=int(response.headers["TiStream-Checkpoint-Ts"]),
        )

    def acknowledge(self, batch: Batch) -> None:
        """The batch is done. Safe to repeat; Fenced after a hand-over: it comes again elsewhere."""
        self._client.send("POST", f"{self._path}:acknowledge", {"cursor": batch.page.next_cursor})

    def leave(self) -> None:
        """Give the partitions up at once."""
        if self._session is not None:
            body: dict[str, Any] = {"member": self._member, "session": int(self._session)}
            self._client.send("POST", f"{self._path}:leave", body)
            self._session = None

    def batches(self, *, follow: bool = False, acknowledge: bool = True) -> Iterator[Batch]:
        """Batches up to what is served now, or with `follow` until the consumer has reached its target. A batch is
        acknowledged when the loop asks for the next one; without `acknowledge` that is left to the caller."""
        until: int | None = None
        while True:
            try:
                batch = self.pull(wait_s=WAIT_S if follow else 0)
            except StateForbids as e:
                if e.facts.get("state") == "finished":
                    return
                raise
            if not follow:
                until = batch.page.resolved_ts if until is None and batch is not None else until
                if batch is None or until is None or batch.checkpoint_ts >= until:
                    return
            if batch is not None:
                yield batch
                if acknowledge:
                    self.acknowledge(batch)
