"""Records of a page that belong to no table: counted by reason, never silently dropped.

    retired    written by a session that was one schema version behind, or duplicated by a reorganisation
    copy       duplicated by a reorganisation that has not taken effect yet
    system     of TiDB's own tables
    older      of a table that was gone before the schema history begins
    unnamed    no definition names the physical id: unexpected, and reported as a problem until the server restarts

They stay in the log. A read as of a timestamp returns them if a table has their id then.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.history import History
from schemas.ids import IdStatus
from tistream.codec.table_key import is_record
from tistream.errors import DecodeError
from tistream.ids import Tenant
from tistream.model.problem import Problem
from tistream.runtime import metrics

_UNNAMED_KEPT = 16  # the first of a process
_MESSAGE = "rows lie under a physical id that no table definition names; they are kept in the log and not delivered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """Records of one physical id that are not delivered, for one reason."""

    physical_id: int
    status: IdStatus
    rows: int
    first_commit_ts: int


def excluded_rows(history: History, rows: pa.Table) -> list[Excluded]:
    """The records among `rows` (schema change.COMMITTED) whose physical id no table reads at their commit."""
    if not rows.num_rows:
        return []
    first_ts = pc.min(rows["commit_ts"]).as_py()
    ids = pc.unique(rows["table_id"]).to_pylist()
    candidates = [i for i in ids if not history.version_intervals(i).whole_after(first_ts)]
    if not candidates:
        return []
    rows = rows.select(["table_id", "commit_ts", "key"]).filter(pc.is_in(rows["table_id"], pa.array(candidates)))
    rows = rows.filter(pa.array(is_record(rows["key"])))
    of, commit_ts = rows["table_id"].to_numpy(), rows["commit_ts"].to_numpy()
    return [part for i in sorted(candidates) for part in _of_one(history, i, commit_ts[of == i])]


def _of_one(history: History, physical_id: int, commit_ts: npt.NDArray[np.uint64]) -> Iterator[Excluded]:
    intervals = history.version_intervals(physical_id)
    lost = commit_ts[intervals.index(commit_ts) < 0]
    begun = lost > intervals.starts[0] if len(intervals.starts) else np.zeros(len(lost), np.bool_)
    for status, part in ((history.status_before(physical_id), lost[~begun]), (IdStatus.RETIRED, lost[begun])):
        if len(part):
            yield Excluded(physical_id=physical_id, status=status, rows=len(part), first_commit_ts=int(part.min()))


class ExcludedRows:
    """Excluded records of this process. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unnamed: dict[tuple[Tenant, int], Excluded] = {}

    def add(self, tenant: Tenant, excluded: Iterable[Excluded]) -> None:
        """Count them; a page that is read again counts again."""
        for part in excluded:
            metrics.LEFT_OUT.labels(part.status.value).inc(part.rows)
            if part.status is IdStatus.UNNAMED:
                with self._lock:
                    if len(self._unnamed) < _UNNAMED_KEPT:
                        self._unnamed.setdefault((tenant, part.physical_id), part)

    def problems(self) -> list[Problem]:
        """The physical ids that no definition names."""
        with self._lock:
            unnamed = list(self._unnamed.items())
        return [
            Problem(source=f"changes/{tenant}", code=DecodeError.code, message=_MESSAGE, facts=asdict(part))
            for (tenant, _), part in unnamed
        ]
