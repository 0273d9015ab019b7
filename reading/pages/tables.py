"""What a pull makes of the rows of the log: pages of tables here, of keys and values in `reading.pages.entries`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reading.core.inside import Inside
from reading.filters import NO_FILTER, Selected
from reading.log.inside import InsidePage, Manner
from reading.pages.rendering import Rendered, Rendering
from reading.rows.excluded_rows import Excluded, excluded_rows
from schemas.history import History
from schemas.limited import whole_of
from tistream.errors import invariant


class Pages(Protocol):
    """The pages of one pull."""

    @property
    def is_filtered(self) -> bool:
        """Whether rows of the log may be left out on request."""

    def check_names(self, after: int, upto: int) -> None:
        """FilterInvalid for names in filters that did not exist in the interval."""

    def table_ids(self, after: int, upto: int) -> Collection[int] | None:
        """The ids whose rows are read; None for all."""

    def select(self, rows: pa.Table) -> Selected:
        """The rows (schema change.COMMITTED) that are wanted."""

    def page(self, selected: Selected, after: int, upto: int, *, has_more: bool) -> Rendered:
        """The body with everything in (after, upto]. It may end earlier."""

    def manner(self) -> Manner:
        """How pages inside a commit are read."""

    def sizes(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        """Bytes of the body that each row becomes, estimated."""

    def inside(self, inside_page: InsidePage, at: Inside, *, upto: int) -> Rendered:
        """The body of a page inside a commit."""

    def empty(self, ts: int) -> pa.Buffer:
        """The body without changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePages:
    """Pages of a schema history's tables."""

    rendering: Rendering
    history: History | None  #: None while the tenant awaits its first schema snapshot: all pages are empty
    exclude: Callable[[list[Excluded]], None]  #: counts rows that belong to no table

    @property
    def is_filtered(self) -> bool:
        return self.rendering.filter != NO_FILTER

    def check_names(self, after: int, upto: int) -> None:
        if self.history is not None:
            self.rendering.filter.check_names(self.history, self.rendering.scope, after, upto)

    def table_ids(self, after: int, upto: int) -> Collection[int] | None:
        return self.rendering.filter.table_ids(self._known, self.rendering.scope, after, upto)

    def select(self, rows: pa.Table) -> Selected:
        self.exclude(excluded_rows(whole_of(self._known), rows))
        return self.rendering.select(self._known, rows)

    def page(self, selected: Selected, after: int, upto: int, *, has_more: bool) -> Rendered:
        return self.rendering.page(self._known, selected, after, upto, has_more=has_more)

    def manner(self) -> Manner:
        return self.rendering.manner(self._known)

    def sizes(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        return self.rendering.sizes(self._known, rows)

    def inside(self, inside_page: InsidePage, at: Inside, *, upto: int) -> Rendered:
        return self.rendering.inside(self._known, inside_page, at, upto=upto)

    def empty(self, ts: int) -> pa.Buffer:
        return self.rendering.empty(self.history, ts)

    @property
    def _known(self) -> History:
        invariant(self.history is not None, "nothing is served before the first schema snapshot")
        assert self.history is not None
        return self.history
