"""Where a pull is: what it asks for next, and what an answer changes (pure).

    pages      from the position to the served watermark, or on and on: then the server waits for something new
    stream     the rest of a pull that follows a line format, over one connection

A stream holds changes only. A pull that begins with a snapshot, or at a cursor, which may lie in one, asks for pages
until the snapshot is complete.
"""

from __future__ import annotations

from collections.abc import Mapping

from tistream.client.core.requests import (
    WAIT_S,
    ChangeOptions,
    Page,
    Target,
    check_arguments,
    pull_params,
    wait_params,
)

#: formats whose streams have one message per line
STREAMED = frozenset({"ndjson", "canal-json", "debezium", "open-protocol", "simple", "tikv-cdc"})


class Walk:
    """A pull that is going on."""

    def __init__(
        self,
        target: Target,
        asked: ChangeOptions,
        *,
        format: str = "ndjson",
        options: Mapping[str, str] | None = None,
        follow: bool = False,
        wait_s: float = 0,
    ) -> None:
        """`wait_s`: that the server waits for a first page. TypeError for an unknown argument."""
        check_arguments(asked)
        self.done = False  #: whether everything has been delivered
        self.format = format
        self.asked = asked.copy()
        self.path = f"{target.path}/changes"
        self.wait_s = wait_s
        self._options, self._follow = dict(options or {}), follow
        self._may_be_in_snapshot = bool(asked.get("snapshot")) or asked.get("cursor") is not None

    @property
    def streams(self) -> bool:
        """Whether the rest is a stream."""
        return self._follow and self.format in STREAMED and not self._may_be_in_snapshot

    def params(self) -> dict[str, str]:
        """The query of the next request."""
        return pull_params(self.asked, self.format, self._options) | wait_params(0 if self.streams else self.wait_s)

    def took(self, page: Page) -> None:
        """A page has come."""
        self.asked["cursor"] = page.next_cursor
        if page.end_ts is not None:
            self.asked["end"] = page.end_ts  # resolves spans such as -5m
        self._may_be_in_snapshot = page.in_snapshot
        self.wait_s = WAIT_S if self._follow else 0
        self.done = page.is_last(follow=self._follow)
