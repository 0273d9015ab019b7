"""Requests of a member of a consumer, and what their answers mean (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tistream.client.core.requests import Page, Target, given, page_of, wait_params
from tistream.errors import StateForbids


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Changes of one partition."""

    page: Page  #: in the format that was asked for; its `next_cursor` is what is acknowledged
    partition: int
    epoch: int
    checkpoint_ts: int  #: they follow it


class Membership:
    """What a member has asked for, and its session."""

    def __init__(
        self,
        target: Target,
        name: str,
        *,
        member: str,
        lease_s: float,
        format: str,
        limit: int | None,
        options: Mapping[str, str] | None,
    ) -> None:
        self.name = f"{target} {name}"
        self.path = f"{target.path}/consumers/{quote(name, safe='')}"
        self.member = member
        self._params = {**(options or {}), **given({"member": member, "format": format, "limit": limit})}
        self._params["lease_s"] = str(lease_s)
        self._session: str | None = None

    def params(self, wait_s: float) -> dict[str, str]:
        """The query of a pull."""
        return self._params | given({"session": self._session}) | wait_params(wait_s)

    def took(self, content: bytes, headers: Mapping[str, str]) -> Batch | None:
        """The batch of an answer; None without a partition."""
        self._session = headers["TiStream-Session"]
        if "TiStream-Next-Cursor" not in headers:
            return None
        return Batch(
            page=page_of(content, headers),
            partition=int(headers["TiStream-Partition"]),
            epoch=int(headers["TiStream-Epoch"]),
            checkpoint_ts=int(headers["TiStream-Checkpoint-Ts"]),
        )

    def leaving(self) -> dict[str, Any] | None:
        """The body of a request to leave, once; None when the member never pulled."""
        session, self._session = self._session, None
        return None if session is None else {"member": self.member, "session": int(session)}


class Reading:
    """A loop over batches: where it ends."""

    def __init__(self, *, follow: bool) -> None:
        self._follow = follow
        self._until: int | None = None

    def ends_with(self, batch: Batch | None) -> bool:
        """Whether the loop is over: everything was delivered that was served when it began."""
        if self._follow:
            return False
        if self._until is None and batch is not None and batch.page.open_transaction_ts is None:
            self._until = batch.page.resolved_ts
        return batch is None or (self._until is not None and batch.checkpoint_ts >= self._until)


def has_finished(error: StateForbids) -> bool:
    """Whether the consumer has reached its target."""
    return error.facts.get("state") == "finished"
