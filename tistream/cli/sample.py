"""`tistream up --sample`: a shop that keeps writing, as a tenant of the service in this process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tistream.cli.options import DEFAULT_URL
from tistream.ids import Tenant

if TYPE_CHECKING:
    from simulator.sample.running import RunningSample
    from tistream.cli.running import Running
    from tistream.runtime.service import Problem

TENANT = Tenant(1, 1)


class Sample:
    """Registers the tenant, and pushes once started."""

    def __init__(self, data: Path) -> None:
        from simulator.sample import kept

        self._path = data / kept.NAME
        self._greeted = False
        self.running: RunningSample | None = None

    def start(self, running: Running) -> None:
        """Begin to push to the service, or go on. StateForbids when the tenant was deleted."""
        from simulator.sample.running import RunningSample
        from tistream.catalog.tenancy.tenants import register_tenant

        register_tenant(running.parts.catalog, TENANT)
        key = self._key(running) if running.parts.settings.server.auth == "keys" else ""
        self.running = RunningSample(running.url, TENANT, self._path, key)

    def greet(self, url: str) -> None:
        """Say what to type next, once it shows rows."""
        if self._greeted or self.running is None or not self.running.push.readable.is_set():
            return
        self._greeted = True
        print(self._words(url), file=sys.stderr, flush=True)

    def _words(self, url: str) -> str:
        at = "" if url == DEFAULT_URL else f" --url {url}"
        return "\n".join(
            (
                f"  sample     a shop writes to tenant {TENANT}. In another terminal:",
                f"               tistream pull shop.orders --follow{at}",
                f"               tistream snapshot shop.customers --as-of latest{at}",
                f"             and on the console: {url}/",
            )
        )

    def stopped(self) -> Problem | None:
        """What ended it early, if anything."""
        from tistream.runtime.service import Problem

        error = None if self.running is None else self.running.error
        return None if error is None else Problem.of("the sample", error, fatal=True)

    def stop(self) -> None:
        if self.running is not None:
            self.running.stop()

    def _key(self, running: Running) -> str:
        """The key that was kept, if it still counts, else a new one."""
        from simulator.sample import kept
        from tistream.catalog.tenancy.keys import list_keys
        from tistream.http.auth.core.keys import parse_key
        from tistream.http.auth.core.roles import Role
        from tistream.http.auth.issue import issue_key

        found = kept.read(self._path)
        if found is not None and found.key:
            key_id = parse_key(found.key).key_id
            if any(row.key_id == key_id and row.state == "living" for row in list_keys(running.parts.catalog, TENANT)):
                return found.key
        name = f"pushers of {TENANT}"
        return issue_key(running.parts.catalog, name=name, role=Role.PUSHER, tenant=TENANT).text
