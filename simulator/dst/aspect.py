"""What a scenario adds to the frame of a run (`world`): processes, faults, deeds of operators, and what must hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from simulator.dst.database import SimCatalog, SimDatabase
from tistream.catalog.work.features import Feature
from tistream.exports.restore import Restored
from tistream.objectstore.protocol import ObjectStore
from tistream.release import Release

if TYPE_CHECKING:
    from simulator.dst.running import Running


class Aspect:
    """One addition. The frame calls its hooks in this order; each does nothing unless the aspect defines it."""

    features: Sequence[Feature] = ()  #: of the releases that have them
    stores: Sequence[int] = ()  #: more stores of the judged tenant

    def meta(self, running: Running) -> Mapping[str, Any]:
        """Options of a meta server."""
        del running
        return {}

    def over(self, store: ObjectStore, role: str) -> ObjectStore:
        """The way to the bucket of a process of this role; empty: of the end of the run."""
        del role
        return store

    def enter(self, running: Running) -> None:
        """A process begins; by its own first thread."""

    def roles(self) -> Mapping[str, Callable[[Running], None]]:
        """The first thread of each kind of its processes."""
        return {}

    def processes(self) -> Iterable[tuple[str, str]]:
        """(role, name) of those that begin before the pushers do."""
        return ()

    def release_of(self, name: str) -> Release | None:
        """What a process of this name runs when it is started now; None: this release."""
        del name
        return None

    def patched(self) -> AbstractContextManager[object]:
        """Around the run: what it changes in the services' modules."""
        return nullcontext()

    def begin(self, catalog: SimCatalog) -> None:
        """No process is there yet."""

    def start(self) -> None:
        """The processes of the service, the pushers and the readers have begun."""

    def restored(self, database: SimDatabase, made: Restored) -> None:
        """A restored catalog counts from now on."""

    def rest(self) -> None:
        """Faults have ended."""

    def ahead_ms(self) -> int:
        """How far the upstream's clock is ahead now."""
        return 0

    def has_all(self, upto: int) -> bool:
        """At rest: whether those to whom it gives changes have all up to here."""
        return True

    def settle(self) -> None:
        """Everything is served: wait for what else must happen."""

    def at_rest(self) -> None:
        """The whole log was read: check the result."""

    def due(self) -> list[str]:
        """What has not happened yet, for a run that does not settle."""
        return []

    def counts(self) -> dict[str, int]:
        """How much happened."""
        return {}
