"""One page of the committed log, as one statement whose cost does not depend on the length of the log.

A page begins at `after_ts`. Its segments either begin after it, where an index gives them in order, or begin before
and end after it. For the latter each segment has a class by its time span: class k spans
less than 16**(k+1). A segment of class k that reaches beyond `after_ts` begins less than 16**(k+1) before it, so each
class is one short range of an index. The widest class has no bound and is right for any segment.

One statement sees one state of the log; between two, a compaction could replace segments.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, and_, bindparam, literal_column, select, union_all
from sqlalchemy.sql.elements import ColumnElement

from tistream.catalog.database.tables import objects as objects_table
from tistream.catalog.database.tables import of_asked_tenant, segments
from tistream.catalog.log.objects import ObjectState

_CLASS_BITS = 4
_CLASSES = 16  # 64 bits
_ORDER = ("lo_ts", "hi_ts", "object_key", "segment_no")


def span_class(lo_ts: int, hi_ts: int) -> int:
    """The class of a segment with these timestamps."""
    return max((hi_ts - lo_ts).bit_length() - 1, 0) // _CLASS_BITS


def page_bounds(after_ts: int, upto_ts: int) -> dict[str, int]:
    """Parameters of the statement."""
    bounds = {"after_ts": after_ts, "upto_ts": upto_ts, "before_ts": min(after_ts, upto_ts)}
    return bounds | {f"from_{k}": max(after_ts - (1 << _CLASS_BITS * (k + 1)) + 1, 0) for k in range(_CLASSES)}


def page_of_segments(condition: ColumnElement[bool] | None = None) -> Select[Any]:
    """At most `at_most` live segments of `asked_kind` in (after_ts, upto_ts] that satisfy the condition, in order."""
    # A lookup per segment: a join may start from the objects, and then read and sort all segments of each.
    state = select(objects_table.c.state).where(objects_table.c.object_key == segments.c.object_key).scalar_subquery()
    live = select(*(segments.c[name] for name in _ORDER)).where(
        of_asked_tenant(segments), segments.c.kind == bindparam("asked_kind"), state == ObjectState.LIVE
    )
    if condition is not None:
        live = live.where(condition)
    lo, hi = segments.c.lo_ts, segments.c.hi_ts
    # One SELECT per class instead of OR, so that each is an index range; `+ 0` keeps the planner from an index on
    # hi_ts, which would read everything later.
    reaching = union_all(
        *(
            live.where(
                segments.c.span_class == literal_column(str(k)),
                lo >= bindparam(f"from_{k}"),
                lo <= bindparam("before_ts"),
                hi + 0 > bindparam("after_ts"),
            )
            for k in range(_CLASSES)
        )
    ).subquery()
    later = live.where(lo > bindparam("after_ts"), lo <= bindparam("upto_ts"))
    first = later.order_by(*(segments.c[name] for name in _ORDER)).limit(bindparam("at_most")).subquery()
    both = union_all(select(reaching), select(first)).subquery()
    # + 0: otherwise SQLite reads each part by the index with this order instead of the part's own.
    in_order = (both.c.lo_ts + 0, *(both.c[name] for name in _ORDER[1:]))
    page = select(both).order_by(*in_order).limit(bindparam("at_most")).subquery()
    # Sort names only: full rows are so long that MariaDB sorts them in a file.
    same = and_(segments.c.object_key == page.c.object_key, segments.c.segment_no == page.c.segment_no)
    return select(segments).join(page, same).order_by(*(page.c[name] for name in _ORDER))
