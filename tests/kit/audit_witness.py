"""Compares what a service answered with its audit log.

witness = Witness(app, catalog)      client.event_hooks = {"response": [witness.look]}
witness.missing("me")                the operations that the log does not have as they were asked for
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import httpx2
from fastapi import FastAPI

from tests.kit.api_examples import Operations
from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.audit import AuditEntry
from tistream.catalog.tenancy.audit_log import EntryFilter, list_entries

ADDRESS = "testclient"  #: of Starlette's client


def entries(catalog: Catalog, **which: Any) -> list[AuditEntry]:
    """The newest first."""
    return list_entries(catalog, EntryFilter(**which), limit=100_000)


@dataclass
class Witness:
    """What the answers of an application say that it did, to be compared with its audit log."""

    app: FastAPI
    catalog: Catalog
    seen: Counter[tuple[str, int]] = field(default_factory=Counter)  # (operation, status)
    first: dict[str, str] = field(default_factory=dict)  # operation -> id of the first request

    @cached_property
    def operations(self) -> Operations:
        return Operations(self.app)

    def look(self, answer: httpx2.Response) -> None:
        """A hook of clients."""
        name = self.operations.of(answer.request)
        if name in self.operations.changing():
            self.seen[name, answer.status_code] += 1
            self.first.setdefault(name, answer.headers["x-request-id"])

    def missing(self, principal: str) -> set[str]:
        """The operations that the log does not have as they were asked for and answered."""
        self.app.state.audit.flush(at_once=True)
        logged: Counter[tuple[str, int]] = Counter()
        by_request = {}
        for entry in entries(self.catalog, principal=principal):
            logged[entry.operation, entry.status] += entry.times
            if entry.address == ADDRESS and entry.role and entry.key_id:
                by_request[entry.request_id] = entry.operation
        wrong = {name for name, status in self.seen if self.seen[name, status] != logged[name, status]}
        return wrong | {name for name, request_id in self.first.items() if by_request.get(request_id) != name}
