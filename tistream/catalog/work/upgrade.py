"""Where an upgrade to this release stands: the tables, who lives, and which features wait for whom.

    expand      migrations add what processes of the release before do not read; both run side by side
    replace     one process after the other, in any mix; back again as long as no feature is on
    contract    features are switched on when no older process lives; from then on older ones are refused

Nothing is changed here. Each fact is one read, so those of a moving deployment may be some milliseconds apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tistream.catalog.database.compatibility import demanded
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.revisions import Migration, lowest_beside
from tistream.catalog.work.features import FEATURES, Feature, living, switched_on
from tistream.release import OlderProcesses, Release

_NAMED = 5  #: processes in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """What stands between the catalog and this release."""

    release: Release  #: of this program
    revision: str | None  #: of the tables; None: there are none
    migrated_by: Release  #: who demanded `min_release`
    min_release: Release  #: the lowest release that may run on the catalog
    migrations: Sequence[Migration]  #: that have yet to run
    processes: Mapping[str, Release]  #: that live
    features: Sequence[Feature]  #: of this release
    switched_on: frozenset[str]

    @property
    def lowest_after(self) -> Release:
        """The lowest release that may run on the catalog once the migrations have begun."""
        return max([self.min_release, *(lowest_beside(each, self.release) for each in self.migrations)])

    @property
    def older(self) -> list[str]:
        """The processes of earlier releases."""
        return [name for name, release in self.processes.items() if release < self.release]

    @property
    def off(self) -> list[str]:
        """The features that are not switched on yet."""
        return [feature.name for feature in self.features if feature.name not in self.switched_on]

    @property
    def is_done(self) -> bool:
        """Whether nothing of this release is waited for."""
        return not (self.migrations or self.older or self.off)

    def refuse_to_fence(self) -> None:
        """OlderProcesses when the migrations would end processes that live."""
        lowest = self.lowest_after
        refused = [name for name, release in self.processes.items() if release < lowest]
        if refused:
            raise OlderProcesses(
                f"The migrations of TiStream {self.release} would end {some_of(refused)}: only {lowest} and later may "
                f"run beside it. Upgrade these processes to {lowest} or later first, or stop them.",
                processes=len(refused),
                lowest=lowest,
            )


def look(catalog: Catalog, features: Sequence[Feature] = FEATURES) -> Upgrade:
    """Where the upgrade to the catalog's release stands. ReleaseTooOld when a later one refuses it."""
    revision, here = catalog.revision(), catalog.release
    if revision is None:
        return Upgrade(
            release=here, revision=None, migrated_by=here, min_release=Release(0, 0, 0),
            migrations=catalog.missing_migrations(), processes={}, features=features, switched_on=frozenset(),
        )  # fmt: skip
    catalog.refuse_older()
    with catalog.reading() as conn:
        migrated_by, min_release = demanded(conn)
    return Upgrade(
        release=here, revision=revision, migrated_by=migrated_by, min_release=min_release,
        migrations=catalog.missing_migrations(), processes=living(catalog), features=features,
        switched_on=switched_on(catalog),
    )  # fmt: skip


def some_of(names: Sequence[str]) -> str:
    """A few names, and how many there are."""
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
