"""Deletions wait for an export: what a restored catalog names or needs is still in the bucket.

A catalog that is restored from its newest export knows nothing of what was decided since. So an object is deleted in
two steps. First a transaction decides that nothing needs it, and notes in `decided_no` how many exports had begun.
Then, when an export that began later is verified, the object may go: every catalog that is restored from now on has
the decision.

    deletable  <=>  decided_no < exports_verified

Numbers and not times decide, because a transaction may commit long after the time that it wrote, and clocks jump. The
shared lock of `tistream.catalog.database.generation` makes the numbers exact.

While exports are switched off (`exports_on` = 0) nothing waits; in an unconfirmed catalog
everything does.
"""

from __future__ import annotations

from sqlalchemy import Column, ColumnElement, ScalarSelect, case, literal_column, select

from tistream.catalog.database.generation import CatalogState
from tistream.catalog.database.release_tables import catalog_release

_c = catalog_release.c
_EVERYTHING = (1 << 63) - 1


def begun_no() -> ScalarSelect[int]:
    """How many exports have begun, as the `decided_no` of a decision of this transaction."""
    return select(_c.exports_begun).where(_c.id == 1).scalar_subquery()


def is_deletable(decided_no: Column[int]) -> ColumnElement[bool]:
    """Condition: the decision of this number is in every catalog that can be restored."""
    verified = case(
        (_c.state == CatalogState.UNCONFIRMED, literal_column("0")),
        (_c.exports_on == 0, literal_column(str(_EVERYTHING))),
        else_=_c.exports_verified,
    )
    return decided_no < select(verified).where(_c.id == 1).scalar_subquery()
